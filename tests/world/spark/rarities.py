"""What few stories of Spark have: queries with several sources or few tasks, damaged bodies,
batches that are rolled back, brokers that are renamed, go on with an older copy of their disk, or
have a slave that lags behind.

Dice of their own draw it, so that all else in the story of a seed is as it would be without.
"""

from __future__ import annotations

import random
from dataclasses import replace

from world.story import Step, Trouble

_UNITED = 0.2
_FEW_TASKS = 0.25
_ROLLED_BACK = 0.25
_SOURCES = (1, 1, 2)
"""How many others a source may be united with."""

_COUNTS = (1, 1, 2, 3)
_AGES_SECONDS = (0.2, 1.0, 3.0)
_DOWN_SECONDS = (0.05, 0.3, 1.0, 3.0)
_ROWS = (1, 5, 40, 300)
_SLOW_SECONDS = (0.05, 0.3, 1.0)
_WITHOUT_SINKS = frozenset({"rename"})
"""What has no place beside sinks: a rename."""

_LEAVES_THE_LOG = frozenset({"kill a broker", "stop a broker", "lose power"})
"""Troubles behind which a broker looks for damage itself; what it serves then is another matter."""


def with_rarities(story, within_seconds, source):
    """The story with something rare in it, or as it is.

    ``source(dice, name)`` draws the arguments of a stream with one source.
    """
    story = _with_rollbacks(random.Random(f"{story.seed} rolled back"), story, within_seconds)
    return _with_few_tasks(
        random.Random(f"{story.seed} few tasks"), _with_one_of_many(story, within_seconds, source)
    )


def _with_one_of_many(story, within_seconds, source):
    dice = random.Random(f"{story.seed} rarities")
    if dice.random() < _UNITED:
        story = _with_a_union(dice, story, source)
    kind = dice.choice([None, None, None, "damage", "rename", "older copy", "slave"])
    if kind is None or (kind in _WITHOUT_SINKS and any(map(_is_sink, story.clients))):
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
    """Batches of a sink cannot be committed."""
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
    """Whoever reads does so by few tasks."""
    if dice.random() >= _FEW_TASKS:
        return story
    given = {"maxPartitions": str(dice.choice((1, 2, 3)))}
    return replace(story, clients=tuple(_with_options(each, given) for each in story.clients))


def _with_a_union(dice, story, source):
    """One of the streams has more sources."""
    streams = [each.name for each in story.clients if _is_plain_stream(each)]
    name = dice.choice(streams)
    others = []
    for number in range(dice.choice(_SOURCES)):
        drawn = source(dice, f"{name}-{number}")
        options = dict(drawn["options"])
        options.pop("endingOffsets", None)  # which is for streams that come to their end
        others.append({"topics": drawn["topics"], "options": options})
    return _changed(story, lambda each: each.name == name, {"united_with": others})


def _with_damage(dice, story):
    """Whoever reads says what is to become of messages that cannot be read."""
    story = replace(
        story,
        troubles=tuple(each for each in story.troubles if each.kind not in _LEAVES_THE_LOG),
        clients=tuple(map(_without_ends_of_brokers, story.clients)),
    )
    then = {"on_bad_record_then": dice.choice(["null", "skip"])}
    story = _changed(story, _is_reader, then)
    how = dice.choice(["fail", "null", "skip"])
    given = {"onBadRecord": how}
    return replace(
        story,
        clients=tuple(
            _with_options(each, given) if _is_reader(each) else each for each in story.clients
        ),
    )


def _with_options(client, more):
    """The same client, whose sources have more options, but for those that do not go together."""
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


def _is_plain_stream(client):
    return client.name.startswith("stream")


def _is_reader(client):
    return _is_plain_stream(client) or (bool(client.steps) and client.steps[0].kind == "read")


def _is_sink(client):
    return bool(client.steps) and client.steps[0].kind == "sink"
