"""Requests about the broker as a whole: figures and settings."""
