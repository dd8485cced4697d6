"""What the broker does with each request: one file for each family of request codes. Not built yet.

Processors will use the store, longpolling and state; none of these knows them.
"""
