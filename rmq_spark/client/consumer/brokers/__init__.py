"""Requests of a group member to its brokers, and decoding of what they answer."""
