"""Commands about Spark: checkpoints, sinks, archives, Java."""
