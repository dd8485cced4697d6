"""Request processors: the broker's responses to requests, one file for each family.

This package itself has what all families share, and how a request reaches its processor.
"""
