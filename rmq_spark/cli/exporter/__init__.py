"""``rocketpoll exporter``: lag, offsets and rates of a RocketMQ cluster, for Prometheus.

The exporter queries a cluster without metrics, such as RocketMQ 4.9, with an operator's requests.
Our broker needs no exporter: it has ``metricsPort``.
"""
