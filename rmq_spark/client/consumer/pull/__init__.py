"""Pulling: the tasks and services that pull queues, and the buffer between pulls and `poll`."""
