"""Metrics and health over HTTP, for Prometheus and for supervisors.

Each request reads the counters of the other packages, on the broker's thread and in steps. Without
``metricsPort`` this package is not imported.
"""
