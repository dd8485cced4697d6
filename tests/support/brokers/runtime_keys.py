"""The figures of GET_BROKER_RUNTIME_INFO that RocketMQ does not have."""

OURS = frozenset(
    [
        "rocketpollVersion",
        "storeFailure",
        "damagedRanges",
        "recentLosses",
        "requestsRefused",
        "clientsRefused",
        "connectionsCut",
        "pullsHeld",
        "pullsPutOff",
        "pullsRescued",
        "timersWaiting",
        "timersNextDue",
        "halfMessages",
        "popsInFlight",
    ]
)
