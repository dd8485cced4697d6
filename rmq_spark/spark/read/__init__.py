"""Reading in Spark's tasks: the ranges of a batch, and lookups by key."""
