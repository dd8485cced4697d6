"""The index: finds messages by key and unique id."""
