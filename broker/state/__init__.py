"""Topics, groups, offsets and clients: the broker's small tables, saved as RocketMQ's JSON.

They know neither store nor requests: each is given a `Table` to load from and save to, and a clock.
Everything here is called on the broker's one thread, but for a ``save``, the only thing that
touches a disk: that may happen in any.
"""
