"""Consumers: a lite pull consumer is polled for messages, a push consumer calls a listener."""
