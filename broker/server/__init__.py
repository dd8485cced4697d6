"""The server: the port, who gets in, each client's bytes, and the loop that all of it runs on.

It passes requests to a dispatcher that it is given, and knows no processor.
"""
