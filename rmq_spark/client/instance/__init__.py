"""The instance: connections, routes and heartbeats that producers and consumers of a process share.

It knows these only as `members`, never as producers or consumers.
"""
