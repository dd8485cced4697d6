"""Benchmark of our Spark source and sink with our broker, and of Spark's Kafka format with Kafka.

python -m benchmarks.spark [--rounds N] [--rows N] [--seconds S] [--only SUBSTRING]
                           [--peer kafka|none] [--rocketmq VERSION|none] [--spark VERSION]
                           [--json PATH] [--quick]

All files of brokers and queries are in the checkout's build directory, and are removed at the end.
"""
