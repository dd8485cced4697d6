"""Rare features of Spark stories.

They are: queries with several sources or few tasks, or other options at each start; another sink in
addition to an exactly-once one; damaged bodies, rolled-back batches, brokers without our
extensions, renamed brokers, restored older disks, or a slave with lag. A separate random generator
draws them, so that the rest of the story stays the same.
"""

import random
from dataclasses import replace

from world.story import Client, Step, Trouble

_UNITED = 0.2
_FEW_TASKS = 0.25
_ROLLED_BACK = 0.25
_OTHER_OPTIONS = 0.3
_SECOND_SINK = 0.5
_PLAIN = 0.25
_SOURCES = (1, 1, 2)
"""Numbers of further sources in a union."""

_COUNTS = (1, 1, 2, 3)
_AGES_SECONDS = (0.2, 1.0, 3.0)
_DOWN_SECONDS = (0.05, 0.3, 1.0, 3.0)
_ROWS = (1, 5, 40, 300)
_SLOW_SECONDS = (0.05, 0.3, 1.0)
_WITHOUT_SINKS = frozenset({"rename"})
"""Troubles that exclude sinks."""

_OF_STREAMS = frozenset({"checkpointLocation", "visibleTo"})
"""Options that batch writes do not have."""

_LEAVES_THE_LOG = frozenset({"kill a broker", "stop a broker", "lose power"})
"""Troubles after which a broker checks its log for damage itself; it may then serve
other messages."""


def with_rarities(story, within_seconds, source):
    """Return the story with a rare feature, or unchanged. ``source(dice, name)`` draws the
    arguments of a stream with one source."""
    story = _with_rollbacks(random.Random(f"{story.seed} rolled back"), story, within_seconds)
    story = _with_one_of_many(story, within_seconds, source)
    story = _with_few_tasks(random.Random(f"{story.seed} few tasks"), story)
    story = _with_other_options(random.Random(f"{story.seed} other options"), story)
    story = _with_a_second_sink(random.Random(f"{story.seed} second sink"), story)
    return _with_plain_brokers(random.Random(f"{story.seed} plain"), story, within_seconds)


def _with_one_of_many(story, within_seconds, source):
    dice = random.Random(f"{story.seed} rarities")
    if dice.random() < _UNITED:
        story = _with_a_union(dice, story, source)
    kind = dice.choice([None, None, None, "damage", "rename", "older copy", "slave"])
    if kind is None or (kind in _WITHOUT_SINKS and any(map(is_sink, story.clients))):
        return story
    if kind == "damage":
        story = _with_damage(dice, story)
    troubles = [
        Trouble(kind, dice.uniform(0, within_seconds), dice.choice(_DOWN_SECONDS), arguments)
        for arguments in (_arguments(dice, kind) for _ in range(dice.choice(_COUNTS)))
    ]
    return replace(story, troubles=(*story.troubles, *troubles))


def _arguments(dice, kind):
    broker = {"broker": dice.randrange(3)}
    if kind in ("older copy", "slave"):
        return {**broker, "age_seconds": dice.choice(_AGES_SECONDS)}
    return broker


def _with_rollbacks(dice, story, within_seconds):
    """Let batches of a sink fail to commit."""
    if dice.random() >= _ROLLED_BACK:
        return story
    troubles = [
        Trouble(
            "roll back",
            dice.uniform(0, within_seconds),
            0.0,
            {
                "broker": dice.randrange(3),
                "topic": dice.choice(("T0", "T1")),
                "rows": dice.choice(_ROWS),
                "slow_seconds": dice.choice(_SLOW_SECONDS),
            },
        )
        for _ in range(dice.choice(_COUNTS))
    ]
    return replace(story, troubles=(*story.troubles, *troubles))


def _with_few_tasks(dice, story):
    """Let readers use few tasks."""
    if dice.random() >= _FEW_TASKS:
        return story
    given = {"maxPartitions": str(dice.choice((1, 2, 3)))}
    return replace(story, clients=tuple(_with_options(each, given) for each in story.clients))


def _with_other_options(dice, story):
    """Let users of streams set other options before each start."""
    if dice.random() >= _OTHER_OPTIONS:
        return story
    return replace(
        story, clients=tuple(_with_options_of_lives(dice, each) for each in story.clients)
    )


def _with_options_of_lives(dice, client):
    if not client.steps or client.steps[0].kind != "stream":
        return client
    first, *rest = client.steps
    lives = [_options_of_a_life(dice, client) for _ in range(dice.choice((2, 5)))]
    arguments = {**first.arguments, "options_of_lives": [{}, *lives]}
    return replace(client, steps=(Step(first.kind, arguments), *rest))


def _options_of_a_life(dice, client):
    """Draw one option of each kind; None removes the others."""
    sizes = {"minPartitions": "5"}, {"maxRecordsPerPartition": "4"}, {"maxPartitions": "2"}
    enough = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "2s"}
    kinds = [
        _one_of(dice, *sizes),
        _one_of(dice, {"maxOffsetsPerTrigger": "5"}, {"maxBytesPerTrigger": "9000"}, enough),
        dice.choice(({"suspendTimeoutMs": "300"}, {"suspendTimeoutMs": "1000"})),
        dice.choice(({}, {"failOnDataLoss": "false"}, {"failOnDataLoss": "true"})),
        dice.choice(({}, {"localFiles": "false"}, {"localFiles": "true"})),
    ]
    if is_plain_stream(client):
        kinds.append(dice.choice(({}, {"onBrokerAway": "skip"}, {"onBrokerAway": "wait"})))
        # each source of a union has its own group
        if "united_with" not in client.steps[0].arguments:
            groups = [{"consumerGroup": f"G-{client.name}-{number}"} for number in range(2)]
            kinds.append(_one_of(dice, *groups))
    return {key: value for kind in kinds for key, value in kind.items()}


def _one_of(dice, *choices):
    given = dice.choice(({}, *choices))
    return {**dict.fromkeys(key for each in choices for key in each), **given}


def _with_a_second_sink(dice, story):
    """Let another query, or batch writes, write exactly once to the same topic."""
    first = next(filter(is_exactly_once, story.clients), None)
    if first is None or dice.random() >= _SECOND_SINK:
        return story
    sink, *writes = first.steps
    arguments = {**sink.arguments, "is_stream": dice.random() < 0.6}
    options = arguments["options"] | {"checkpointLocation": "of the second"}
    if not arguments["is_stream"]:
        options = {name: each for name, each in options.items() if name not in _OF_STREAMS}
        arguments |= {"zombies": 0, "deletions": 0, "copies": 0}
    elif "visibleTo" in options:
        options |= {"sinkName": "second"}
    steps = [
        Step(step.kind, {**step.arguments, "after": dice.choice(_DOWN_SECONDS)}) for step in writes
    ]
    second = Client("writes2", (Step("sink", {**arguments, "options": options}), *steps))
    return replace(story, clients=(*story.clients, second))


def is_exactly_once(client):
    """Return whether the batches of a program count once."""
    return is_sink(client) and "delivery" in client.steps[0].arguments["options"]


def _with_plain_brokers(dice, story, within_seconds):
    """Let brokers support only RocketMQ's protocol, for a while or for good."""
    if dice.random() >= _PLAIN:
        return story
    sinks = [each.steps[0].arguments["options"] for each in story.clients if is_sink(each)]
    begin = dice.choice((0.0, dice.uniform(0, within_seconds)))
    for_good = dice.random() < 0.5 and not any("visibleTo" in each for each in sinks)
    trouble = Trouble(
        "plain", begin, 0.0 if for_good else dice.choice((1.0, 3.0)), {"for_good": for_good}
    )
    return replace(story, troubles=(*story.troubles, trouble))


def _with_a_union(dice, story, source):
    """Give one of the streams more sources."""
    streams = [each.name for each in story.clients if is_plain_stream(each)]
    name = dice.choice(streams)
    others = []
    for number in range(dice.choice(_SOURCES)):
        drawn = source(dice, f"{name}-{number}")
        options = dict(drawn["options"])
        options.pop("endingOffsets", None)  # only for streams without an end
        others.append({"topics": drawn["topics"], "options": options})
    return _changed(story, lambda each: each.name == name, {"united_with": others})


def _with_damage(dice, story):
    """Let users choose how readers handle unreadable messages."""
    story = replace(
        story,
        troubles=tuple(each for each in story.troubles if each.kind not in _LEAVES_THE_LOG),
        clients=tuple(map(_without_ends_of_brokers, story.clients)),
    )
    then = {"on_bad_record_then": dice.choice(["null", "skip"])}
    story = _changed(story, is_reader, then)
    how = dice.choice(["fail", "null", "skip"])
    given = {"onBadRecord": how}
    return replace(
        story,
        clients=tuple(
            _with_options(each, given) if is_reader(each) else each for each in story.clients
        ),
    )


def _with_options(client, more):
    """Return the client with more options of its sources, without contradictions."""
    if not client.steps or client.steps[0].kind not in ("stream", "read"):
        return client
    first, *rest = client.steps
    arguments = first.arguments
    given = {"options": _joined(arguments["options"], more)}
    if "united_with" in arguments:
        given["united_with"] = [
            {**each, "options": _joined(each["options"], more)} for each in arguments["united_with"]
        ]
    return replace(client, steps=(Step(first.kind, {**arguments, **given}), *rest))


def _joined(options, more):
    if "maxPartitions" not in more:
        return {**options, **more}
    if "maxRecordsPerPartition" in options:
        return options
    most = max(int(more["maxPartitions"]), int(options.get("minPartitions", 1)))
    return {**options, "maxPartitions": str(most)}


def _without_ends_of_brokers(client):
    steps = tuple(
        Step(step.kind, {**step.arguments, "trouble": None, "arguments": {}})
        if step.kind == "at" and step.arguments["trouble"] in _LEAVES_THE_LOG
        else step
        for step in client.steps
    )
    return replace(client, steps=steps)


def _changed(story, is_meant, more):
    return replace(
        story,
        clients=tuple(
            replace(
                each,
                steps=(
                    Step(each.steps[0].kind, {**each.steps[0].arguments, **more}),
                    *each.steps[1:],
                ),
            )
            if is_meant(each)
            else each
            for each in story.clients
        ),
    )


def with_sources_changed(story, is_meant, change):
    """Return the story with other arguments of the sources, or the sink, of some programs.
    ``change`` makes them from the present ones."""

    def changed(client):
        first, *rest = client.steps
        arguments = change(first.arguments)
        if "united_with" in arguments:
            others = [change(each) for each in arguments["united_with"]]
            arguments = {**arguments, "united_with": others}
        return replace(client, steps=(Step(first.kind, arguments), *rest))

    return replace(
        story, clients=tuple(changed(each) if is_meant(each) else each for each in story.clients)
    )


def is_plain_stream(client):
    """Return whether this is a query that reads all stored messages."""
    return client.name.startswith("stream")


def is_reader(client):
    """Return whether this is a program that reads all stored messages, once or as a stream."""
    return is_plain_stream(client) or (bool(client.steps) and client.steps[0].kind == "read")


def is_sink(client):
    """Return whether this is a program that writes."""
    return bool(client.steps) and client.steps[0].kind == "sink"
