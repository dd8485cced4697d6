"""Statistics by topic, group and queue, over windows of time."""
