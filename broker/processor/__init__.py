"""The broker's answers to requests: one file for each family of request codes.

Processors use the store, longpolling and state; none of these knows them.
"""
