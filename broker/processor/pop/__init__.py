"""The requests of consumers that pop messages."""
