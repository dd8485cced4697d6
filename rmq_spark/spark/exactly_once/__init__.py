"""Exactly-once delivery: the sink's manifests and staged batches, the reader of committed rows."""
