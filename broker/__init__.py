"""RocketMQ's long polling and store in one Python process, imported as `rocketpoll.broker`.

A pull flows through server, processor and store. If the store has nothing for it, longpolling holds
it; the store's reput tells longpolling of arrivals, which replays the pull through the same
processor. Of the other side of the project, the broker knows only `rmq_spark.wire`.

The folder stands at the top of the repository, and ``rocketpoll/broker`` leads to it. ``broker`` is
a name that other distributions and people's own files have, so it is never imported by that name.
"""

if __name__ != "rocketpoll.broker":
    raise ImportError(
        "this is rocketpoll's broker, which is imported as rocketpoll.broker: `import "
        "rocketpoll.broker`",
        name=__name__,
    )
