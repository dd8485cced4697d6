"""Sending Arrow tables and data frames in bulk."""
