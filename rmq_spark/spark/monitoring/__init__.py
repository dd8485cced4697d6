"""Monitoring: the lag, the lineage and the checkpoints of queries."""
