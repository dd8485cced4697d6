"""Asking the brokers of a topic: discovery, fan-out, long polls."""
