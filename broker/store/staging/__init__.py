"""Staged rows and the table of committed batches, on the disk."""
