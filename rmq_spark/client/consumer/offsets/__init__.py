"""Offsets of a group: where it begins, what it has consumed, and what is stored."""
