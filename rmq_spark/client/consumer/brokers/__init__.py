"""Requests of a group member to its brokers, and decoding of the pulled records."""
