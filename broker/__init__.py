"""The broker: RocketMQ's long polling and store in one Python process. Not built yet.

How a pull will flow: server, processor, store; held in longpolling when nothing is there; the store's
reput tells longpolling of arrivals, which replays the pull through the same processor. Of the other side
of the project it knows only `rmq_spark.wire`.
"""
