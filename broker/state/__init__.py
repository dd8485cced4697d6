"""Topics, groups, offsets and clients: the broker's small tables, saved as RocketMQ's JSON.

Each gets a `Table` to load from and save to, and a clock. All calls are made on the broker's one
thread, except ``save``, the only one that accesses the disk: any thread may call it.
"""
