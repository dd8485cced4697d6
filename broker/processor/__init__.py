"""Request processors: the broker's responses to requests, one file for each family.

This package has what all families share, how a request reaches its processor, and requests about
the broker as a whole. Processors use the store, longpolling and state; none of these imports them.
"""
