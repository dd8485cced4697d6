"""numpy and pyarrow for many records at once, loaded on first use; and hashes of keys."""
