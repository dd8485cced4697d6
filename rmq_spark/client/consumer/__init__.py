"""Consumers: some are asked for messages (lite pull), others call a listener (push)."""
