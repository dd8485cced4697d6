"""The figures of GET_BROKER_RUNTIME_INFO that RocketMQ does not have."""

OURS = frozenset(
    [
        "rocketpollVersion",
        "storeFailure",
        "recentLoss",
        "pullsHeld",
        "pullsPutOff",
        "pullsRescued",
        "timersWaiting",
        "timersNextDue",
        "halfMessages",
        "popsInFlight",
    ]
)
