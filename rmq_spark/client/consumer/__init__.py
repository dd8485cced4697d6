"""Consumers: those that are asked for messages (lite pull) and those that call a listener (push)."""
