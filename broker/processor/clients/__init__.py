"""Clients: how they come and leave, and what the broker asks one of them on behalf of another.

Nothing here knows sends and pulls; of the other rooms only `groups` speaks to clients by it.
"""
