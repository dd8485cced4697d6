"""Queues of a member: what it owns, has pulled, and knows of their identity."""
