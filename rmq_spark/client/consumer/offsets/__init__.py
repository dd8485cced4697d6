"""Offsets of a group: where it begins, what it has consumed, what is stored."""
