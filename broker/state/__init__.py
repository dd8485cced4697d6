"""Topics, groups, offsets and clients: the broker's small tables, saved as RocketMQ's JSON.

Each table loads from and saves to a `Table`, and has a clock. Call it on the broker's one thread;
only ``save``, which alone accesses the disk, may be called in any thread.
"""
