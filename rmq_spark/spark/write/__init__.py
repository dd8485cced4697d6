"""Writing in Spark's tasks: rows to messages, their routing and sending."""
