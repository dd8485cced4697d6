"""Planning micro-batches: offsets, limits, partitions."""
