"""``rocketpoll exporter``: lag, offsets and rates of a RocketMQ cluster, for Prometheus.

The exporter asks a cluster that has no metrics of its own, such as RocketMQ 4.9, as an operator
would. Our own broker needs no exporter: it has ``metricsPort``.
"""
