"""Appending: single messages, batches and encoded chunks."""
