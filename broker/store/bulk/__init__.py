"""Bulk processing: numpy and pyarrow, loaded on first use, and hashes of keys."""
