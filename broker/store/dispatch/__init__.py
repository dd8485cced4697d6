"""Dispatch: builds the entries of consume queues and index from the log."""
