"""Offsets of a group: initial, consumed and stored ones."""
