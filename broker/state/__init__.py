"""Topics, groups, offsets and clients: the broker's small tables, saved as RocketMQ's JSON. Not built yet."""
