"""The commit log: appending, flushing and recovering it."""
