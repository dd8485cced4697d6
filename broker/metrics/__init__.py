"""Metrics and health over HTTP, for Prometheus and for supervisors.

They read counters that the other rooms keep anyway, on the broker's thread and in steps, on each
request. Without ``metricsPort`` nothing of this is imported.
"""
