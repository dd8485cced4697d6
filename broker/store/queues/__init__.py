"""Consume queues: entries, their files, and the table of all queues."""
