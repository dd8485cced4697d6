"""The index: finding messages by key and unique id."""
