"""Opening a directory: its lock, recovery, and the check of derived files."""
