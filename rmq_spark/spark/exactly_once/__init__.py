"""Exactly-once writes and the readers of what they commit."""
