"""Groups: their members, settings and offsets, and their lag."""
