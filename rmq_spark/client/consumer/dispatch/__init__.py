"""Handing messages to listeners, and what becomes of those that fail."""
