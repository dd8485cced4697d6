"""Commit log, consume queues, index files, and what keeps them equal after a crash. Not built yet.

It will know files and offsets: no sockets, no clients, no other room of the broker.
"""
