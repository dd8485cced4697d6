"""Concurrency: the client's threads and scheduled tasks, its shutdown, and forks."""
