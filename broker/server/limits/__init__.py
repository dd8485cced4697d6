"""Limits of connections: descriptors, partial requests, unread responses, concurrent work."""
