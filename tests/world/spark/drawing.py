"""Draws stories of Spark from a seed: queries and their options, messages, and troubles.

Each seed has its own character, because most bugs need several rare things at once.
"""

import json
import random

from world.cluster.lies import WORLD_LIES
from world.cluster.lying import SHARE, with_lies
from world.cluster.name_server import ADDRESS
from world.spark.bodies import with_formats
from world.spark.other_words import with_other_words
from world.spark.producers import COLOURS
from world.spark.rarities import is_reader, with_rarities, with_sources_changed
from world.spark.ways import with_other_ways
from world.story import Client, Step, Story, Trouble

TOPICS = ("T0", "T1")
QUEUES = 2
BROKERS = ("broker-a", "broker-b", "broker-c")
POINTS = (
    "planned",
    "offsets are logged",
    "told of the batch before",
    "partitions are planned",
    "rows are written",
    "the batch is committed",
)
"""Moments at which a driver may be killed, or delayed while something else happens."""

TROUBLES_SECONDS = 8.0
"""Seconds within which all troubles start."""

COLUMNS = "topic,brokerName,queueId,queueOffset,keys,tags,body,storeTimestamp,properties"
_LIES = tuple(name for name, lie in WORLD_LIES.items() if not (lie.is_about_sends and lie.is_claim))
"""Kinds of lies without claims about the place of sent rows: a sink believes those, because nothing
contradicts them."""

_SECONDS = (0.05, 0.3, 1.0, 1.0, 3.0, 6.0)


def draw(seed):
    """Return the story of a seed."""
    return lied_to(drawn_without_lies(seed), share=SHARE)


def lied_to(story, share):
    """Return the story with lies, in this share of stories.

    The ledger could not check rows whose body is null or was not verified.
    """
    lied = with_lies(story, TROUBLES_SECONDS, len(BROKERS), share, _LIES)
    return story if lied is story else with_sources_changed(lied, is_reader, _with_bodies)


def _with_bodies(source):
    options = {name: given for name, given in source["options"].items() if name != "checkCrc"}
    if options.get("onBadRecord") == "null":
        options = {**options, "onBadRecord": "skip"}
    return {**source, "options": options, "on_bad_record_then": "skip"}


def drawn_without_lies(seed):
    """Return the story of a seed whose brokers are all honest."""
    dice = random.Random(seed)
    settings = {
        "flushDiskType": "SYNC_FLUSH" if dice.random() < 0.5 else "ASYNC_FLUSH",
        "flushIntervalCommitLog": "1000",
        "mappedFileSizeCommitLog": str(dice.choice([16, 16, 1_024]) * 1024),
        "mappedFileSizeConsumeQueue": str(20 * dice.choice([8, 500])),
        "maxMessageSize": str(12 * 1024),
        "cleanResourceInterval": "1000",
        "enablePropertyFilter": "true",
    }
    kinds = dice.sample([*_TROUBLES, *_OF_PROGRAMS], dice.choice([1, 2, 3, 5]))
    streams = [f"stream{number}" for number in range(dice.choice([1, 1, 2]))]
    others = dice.choice([[], [], ["reads"], ["writes"], ["writes"]])
    others = {name: {"reads": _reads, "writes": _writes}[name](dice, name) for name in others}
    # a separate generator: other stories stay the same
    more = random.Random(f"{seed} exactly once")
    readers = ()
    if "writes" in others and more.random() < 0.5:
        others["writes"] = _exactly_once(
            more, others["writes"], random.Random(f"{seed} begins again")
        )
        readers = tuple(_committed(more, f"committed{number}") for number in range(2))
    brokers = BROKERS[: dice.choice([1, 2, 2, 3])]
    # a separate generator: other stories stay the same
    all_see = random.Random(f"{seed} visible to all")
    if readers and all_see.random() < 0.5:
        others["writes"] = _visible_to_all(others["writes"])
        brokers = BROKERS[:1]
    story = Story(
        seed=seed,
        settings=settings,
        endings=(),
        clients=(
            *(Client(name, ()) for name in brokers),
            *(_stream(dice, name, kinds) for name in streams),
            *others.values(),
            *readers,
            *(_producer(dice, f"producer{number}") for number in range(dice.choice([1, 2]))),
        ),
        troubles=tuple(
            _trouble(dice, kinds, streams, [*streams, *others])
            for _ in range(dice.choice([0, 1, 2, 3, 4, 6]))
        ),
        latency_seconds=dice.choice([0.000_1, 0.000_5, 0.02]),
        flush_seconds=dice.choice([0.000_2, 0.002]),
        preemption=dice.choice([0, 0, 0.02]),
    )
    story = with_rarities(
        story, TROUBLES_SECONDS, lambda dice, name: _stream(dice, name, kinds).steps[0].arguments
    )
    story = with_other_words(random.Random(f"{seed} other words"), story)
    return with_formats(with_other_ways(story))


# ---- queries


def _stream(dice, name, kinds):
    topics = dice.choice([[TOPICS[0]], list(TOPICS)])
    options = {
        "namesrvAddr": ADDRESS,
        "columns": COLUMNS,
        "startingOffsets": dice.choice(["earliest", "earliest", "latest", "-3 messages", "-1s"]),
        "retryTimeoutMs": dice.choice(["1000", "5000", "60000"]),
        "discoveryIntervalMs": dice.choice(["300", "5000"]),
        "suspendTimeoutMs": dice.choice(["300", "1000"]),
        "requestTimeoutMs": dice.choice(["1000", "3000"]),
        **dice.choice([{}, {}, {"failOnDataLoss": "false"}]),
        **dice.choice([{}, {}, {"onBrokerAway": "skip"}]),
        **dice.choice([{}, {}, {}, *_filters(dice)]),
        **dice.choice([{}, {}, {"maxOffsetsPerTrigger": str(dice.choice([2, 5, 20]))}]),
        **dice.choice([{}, {}, {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "2s"}]),
        **dice.choice([{}, {}, {"maxBytesPerTrigger": "9000"}]),
        **dice.choice([{}, {}, {"minPartitions": "5"}, {"maxRecordsPerPartition": "4"}]),
        **dice.choice([{}, {}, {"consumerGroup": f"G-{name}"}]),
    }
    if "minOffsetsPerTrigger" in options:
        options.pop("maxOffsetsPerTrigger", None)
    available_now = dice.random() < 0.3
    options.update(_selection(dice, topics))
    if available_now and "topic" in options and dice.random() < 0.4:
        end = {topic: {"*": {"*": dice.choice([3, 10])}} for topic in topics}
        options["endingOffsets"] = json.dumps(end)
    arguments = {
        "topics": topics,
        "options": options,
        "trigger_seconds": dice.choice([0.0, 0.2, 0.5]),
        "available_now": available_now,
        **_fate(dice),
    }
    events = [Step("at", _event(dice, kinds)) for _ in range(dice.choice([0, 0, 1, 2, 4]))]
    return Client(name, (Step("stream", arguments), *events))


def _event(dice, kinds):
    """Draw the moment and batch at which a driver is killed or slow, and the trouble then."""
    kind = dice.choice([None, *(each for each in kinds if each in _TROUBLES)])
    return {
        "point": dice.choice(POINTS),
        "passes": dice.choice([1, 1, 2, 3, 5]),
        "dies": dice.random() < 0.6,
        "seconds": dice.choice(_SECONDS),
        "trouble": kind,
        "arguments": {} if kind is None else _TROUBLES[kind](dice),
    }


def _filters(dice):
    return [{"tags": dice.choice(["Aa", "Aa || C"])}, {"sql": f"colour = '{dice.choice(COLOURS)}'"}]


def _selection(dice, topics):
    if len(topics) > 1 and dice.random() < 0.5:
        return {"subscribePattern": "T."}
    return {"topic": ",".join(topics)}


def _reads(dice, name):
    topics = dice.choice([[TOPICS[0]], list(TOPICS)])
    options = {
        "namesrvAddr": ADDRESS,
        "columns": COLUMNS,
        "topic": ",".join(topics),
        "retryTimeoutMs": dice.choice(["1000", "5000"]),
        **dice.choice([{}, {}, {"failOnDataLoss": "false"}]),
        **dice.choice([{}, {}, *_filters(dice)]),
        **dice.choice([{}, {}, {"minPartitions": "5"}, {"maxRecordsPerPartition": "4"}]),
    }
    steps = [
        Step("action", {"after": dice.choice(_SECONDS)}) for _ in range(dice.choice([1, 2, 4]))
    ]
    return Client(
        name, (Step("read", {"topics": topics, "options": options, **_fate(dice)}), *steps)
    )


def _writes(dice, name):
    options = {
        "namesrvAddr": ADDRESS,
        "topic": "S0",
        "retryTimeoutMs": dice.choice(["1000", "5000", "60000"]),
        "requestTimeoutMs": dice.choice(["1000", "3000"]),
    }
    steps = [
        Step(
            "write",
            {
                "after": dice.choice(_SECONDS),
                "partitions": [dice.choice([0, 1, 7, 20]) for _ in range(dice.choice([1, 2, 3]))],
            },
        )
        for _ in range(dice.choice([1, 3, 5]))
    ]
    sink = Step("sink", {"options": options, "is_stream": dice.random() < 0.6, **_fate(dice)})
    return Client(name, (sink, *steps))


def _exactly_once(dice, writes, own_dice):
    """Return the same writes by an exactly-once stream."""
    sink, *steps = writes.steps
    options = sink.arguments["options"] | {
        "delivery": "exactly_once",
        "checkpointLocation": "anywhere",
    }
    sink = Step(
        "sink",
        {
            **sink.arguments,
            "options": options,
            "is_stream": True,
            "deaths": dice.choice([0, 0.2, 0.4]),
            "zombies": dice.choice([0, 0.3]),
            "deletions": own_dice.choice([0, 0.3]),
            "copies": own_dice.choice([0, 0, 0.3]),
        },
    )
    return Client(writes.name, (sink, *steps))


def _visible_to_all(writes):
    """Return the same writes with visibleTo=all."""
    sink, *steps = writes.steps
    options = sink.arguments["options"] | {"visibleTo": "all"}
    return Client(writes.name, (Step("sink", {**sink.arguments, "options": options}), *steps))


def _committed(dice, name):
    """Draw a query that reads committed rows."""
    options = {
        "namesrvAddr": ADDRESS,
        "topic": "S0",
        "isolation": "committed",
        "waitForTopic": "true",
        "columns": COLUMNS,
        "startingOffsets": "earliest",
        "retryTimeoutMs": dice.choice(["1000", "5000", "60000"]),
        "discoveryIntervalMs": "300",
        **dice.choice([{}, {"failOnDataLoss": "false"}]),
        **dice.choice([{}, {"maxOffsetsPerTrigger": "5"}]),
        **dice.choice([{}, {"minPartitions": "5"}, {"maxRecordsPerPartition": "4"}]),
    }
    arguments = {
        "topics": ["S0"],
        "options": options,
        "trigger_seconds": dice.choice([0.0, 0.2]),
        "available_now": dice.random() < 0.2,
        **_fate(dice),
    }
    events = [Step("at", _event(dice, [])) for _ in range(dice.choice([0, 1, 3]))]
    return Client(name, (Step("stream", arguments), *events))


def _fate(dice):
    return {"speculation": dice.choice([0, 0.2]), "kills": dice.choice([0, 0.1])}


# ---- messages


def _producer(dice, name):
    steps = []
    for _ in range(dice.choice([3, 6])):
        steps += [
            Step(
                "send",
                {
                    "topic": dice.choice(TOPICS),
                    "how": dice.choice(["single", "batch", "no wait"]),
                    "count": dice.choice([1, 5, 12]),
                    "gap": dice.choice([0.0, 0.05, 0.2]),
                    "size": dice.choice([0, 200, 2_000, 2_000]),
                },
            ),
            Step("wait", {"seconds": dice.choice([0.0, 0.2, 0.5, 1.5])}),
        ]
    return Client(name, tuple(steps))


# ---- troubles


def _trouble(dice, kinds, streams, programs):
    kind = dice.choice(kinds)
    begin = dice.uniform(0, TROUBLES_SECONDS)
    arguments = (
        _OF_PROGRAMS[kind](dice, streams, programs)
        if kind in _OF_PROGRAMS
        else _TROUBLES[kind](dice)
    )
    return Trouble(kind, begin, dice.choice(_SECONDS), arguments)


def _broker(dice):
    return {"broker": dice.randrange(len(BROKERS))}


def _any(dice):
    return {"broker": dice.choice([None, 0, 1])}


def _queues(dice):
    write = dice.choice([1, 2, 3, 4])
    return {
        "topic": dice.choice(TOPICS),
        "read_queues": dice.choice([write, 4]),
        "write_queues": write,
    }


_TROUBLES = {
    "kill a broker": _broker,
    "stop a broker": _broker,
    "lose power": _broker,
    "make again": lambda dice: {"topic": dice.choice(TOPICS), "queues": dice.choice([1, 2, 3])},
    "change queues": _queues,
    "fill": _broker,
    "forget a broker": _broker,
    "cut": _any,
    "silence": _any,
    "hold up": _broker,
    "slow": lambda dice: {"latency_seconds": dice.choice([0.2, 1.0])},
    "clock": lambda dice: {"ahead_seconds": dice.choice([-3_600.0, -5.0, 5.0, 3_600.0])},
}

_OF_PROGRAMS = {
    "kill a driver": lambda dice, streams, programs: {"program": dice.choice(programs)},
    "kill a planner": lambda dice, streams, programs: {"stream": dice.choice(streams)},
}
