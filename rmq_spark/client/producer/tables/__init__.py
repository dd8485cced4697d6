"""Sending Arrow tables and data frames in bulk, as messages or as staged batches."""
