"""Connections: the way of a request to an address and of its answer back.

Sockets, TLS, frames, callers that wait, and when an address is dialled. Nothing here knows topics,
producers or consumers.
"""
