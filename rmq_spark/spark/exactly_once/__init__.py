"""Exactly-once delivery: the sink's manifests and staged batches, and the reader of committed rows.
"""
