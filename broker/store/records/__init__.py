"""Records of the log: made of messages, looked at where they lie, and told whose they are.

Nothing here reads or writes a file.
"""
