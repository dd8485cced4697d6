"""Queues of a member: assigned queues, their pulled messages, and their identity."""
