"""Keys of GET_BROKER_RUNTIME_INFO that only our broker has."""

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
