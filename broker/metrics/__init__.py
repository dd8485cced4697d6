"""Metrics and health over HTTP: what Prometheus scrapes, and what a supervisor asks.

It reads counters that the other rooms keep anyway, on the broker's thread and in steps, whenever
somebody asks. No room knows of it, and without ``metricsPort`` nothing of it is imported.
"""
