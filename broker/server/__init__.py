"""The server: the port, admission of clients, their bytes, and the event loop.

It passes requests to the dispatcher that it is given.
"""
