"""Transport: carries a request to an address and its response back.

Sockets, TLS, frames, pending requests, and when connections are opened.
"""
