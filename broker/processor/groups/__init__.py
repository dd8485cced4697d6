"""Groups: their members, settings and offsets, and how far they are behind.

Nothing here knows sends and pulls.
"""
