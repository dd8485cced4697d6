"""Shared parts of the broker's rooms: connections, settings, histograms, threads, local time."""
