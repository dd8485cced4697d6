# Spark's image with rocketpoll, for drivers and executors on Kubernetes: see docs/clusters.md.
#
#   docker build -f deploy/kubernetes/spark.Dockerfile -t spark-rocketpoll .

FROM spark:4.0.1-python3
USER 0
COPY . /src
RUN python3 -m pip install --no-cache-dir /src
ENV PYSPARK_PYTHON=python3
# spark, by its number in the image
USER 185
