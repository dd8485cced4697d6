"""``rocketpoll exporter``: lag, offsets and rates of a RocketMQ cluster, for Prometheus.

The exporter is for clusters without metrics of their own, such as RocketMQ 4.9: it reads them with
admin requests. Our broker needs no exporter: it has ``metricsPort``.
"""
