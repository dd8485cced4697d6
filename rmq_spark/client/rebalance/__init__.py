"""Which queues of a topic belong to which member of a group: each computes it, and all come to the same."""
