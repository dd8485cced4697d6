"""Reading: pulls, and queries of messages by key, by id or by log offset."""
