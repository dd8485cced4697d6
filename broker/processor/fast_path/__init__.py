"""Shared parts of the fast paths of sends and pulls: header and response templates, client caches.
"""
