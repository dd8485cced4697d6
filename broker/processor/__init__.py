"""The broker's answers to requests: one file for each family, in rooms.

Here stand what all families share, how a request comes to its own, and the broker as a whole.
Processors use the store, longpolling and state; none of these knows them.
"""
