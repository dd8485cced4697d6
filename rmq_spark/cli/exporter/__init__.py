"""``rocketpoll exporter``: lag, offsets and rates of a RocketMQ cluster, for Prometheus.

A cluster that shows no metrics itself, as RocketMQ 4.9 does not, is asked for them as an operator
would ask. Our own broker needs no exporter: it has ``metricsPort``.
"""
