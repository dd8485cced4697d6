"""Records of the log: building them from messages, checking them in place, and their owners."""
