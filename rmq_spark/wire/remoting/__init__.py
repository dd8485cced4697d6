"""Remoting: frames, headers in three codecs, and commands."""
