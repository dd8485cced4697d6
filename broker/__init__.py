"""RocketMQ's long polling and store in one Python process, imported as `rocketpoll.broker`.

A pull passes through server, processor and store. If the store has no message for it, longpolling
holds it. The store's reput notifies longpolling of arrivals, and longpolling replays the pull
through the same processor.

The folder is at the top of the repository, and ``rocketpoll/broker`` links to it. Other
distributions and users' own files are named ``broker`` too, so nothing imports it by that name.
"""

if __name__ != "rocketpoll.broker":
    raise ImportError(
        "this is rocketpoll's broker, which is imported as rocketpoll.broker: `import "
        "rocketpoll.broker`",
        name=__name__,
    )
