"""Pulling: tasks, queues of pulled messages, and decoding."""
