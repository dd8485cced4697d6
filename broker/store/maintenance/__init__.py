"""Maintenance of an open store: checkpoints, retention, deletion of topics."""
