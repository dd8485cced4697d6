"""Reading the partitions of a batch in Spark's tasks."""
