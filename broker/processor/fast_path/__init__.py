"""Shared parts of the fast paths of sends and pulls: templates and caches by client."""
