"""Reading: messages of a queue, by time, and by key."""
