"""Dispatch: entries of consume queues and index, made from the log."""
