"""Reading: pulls, and messages looked up by key, by id or by their place.

Nothing here knows how messages come in.
"""
