"""Requests to the brokers of many queues: discovery, addresses, fan-out, long polls."""
