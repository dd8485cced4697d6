"""Concurrency: the client's threads, scheduled tasks and locks, its shutdown, and forks."""
