"""The server: the port, admission of clients, their bytes, and the event loop."""
