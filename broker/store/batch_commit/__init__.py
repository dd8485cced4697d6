"""Staged batches: their rows become visible all at once, or never."""
