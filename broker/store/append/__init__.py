"""Appending to the log: single messages, batches and encoded chunks."""
