"""Queries with other start options: a time, a tree of positions, a consumer group; and queries that
do not check bodies.

A separate random generator draws them, so that the rest of the story is the same without.
"""

import json
from dataclasses import replace

from world.spark.rarities import is_plain_stream
from world.story import Step
from world.threads import EPOCH_SECONDS

_OTHER_WORDS = 0.3
_AFTER_SECONDS = (-3_600, 0, 1, 3)
_LEAVES = ("earliest", "latest", "-2 messages", "-1s", 0)
_NONE_SO_NEW = {"startingOffsetsByTimestampStrategy": "latest"}


def with_other_words(dice, story):
    """Return the story with such queries, or unchanged."""
    if dice.random() >= _OTHER_WORDS:
        return story
    return replace(
        story,
        clients=tuple(
            _in_other_words(dice, each) if is_plain_stream(each) else each for each in story.clients
        ),
    )


def _in_other_words(dice, client):
    first, *rest = client.steps
    arguments = {**first.arguments, "options": _said_otherwise(dice, first.arguments, client.name)}
    if "united_with" in arguments:
        arguments["united_with"] = [
            {**each, "options": _said_otherwise(dice, each, f"{client.name}-{number}")}
            for number, each in enumerate(arguments["united_with"])
        ]
    return replace(client, steps=(Step(first.kind, arguments), *rest))


def _said_otherwise(dice, source, name):
    options = dict(source["options"])
    start = options.pop("startingOffsets")
    starts = _starts(dice, source["topics"], name)
    if any("consumerGroup" in each for each in source.get("options_of_lives", ())):
        starts = starts[:-1]  # the others need the group from the beginning
    options |= dice.choice([{"startingOffsets": start}, *starts])
    if "onBadRecord" not in options and dice.random() < 0.3:
        options["checkCrc"] = "false"
    return options


def _starts(dice, topics, name):
    ms = (EPOCH_SECONDS + dice.choice(_AFTER_SECONDS)) * 1_000
    return (
        {"startingTimestamp": str(ms), **_NONE_SO_NEW},
        {"startingOffsetsByTimestamp": json.dumps(_of_all(topics, lambda: ms)), **_NONE_SO_NEW},
        {"startingOffsets": json.dumps(_of_all(topics, lambda: dice.choice(_LEAVES)))},
        {
            "startingOffsets": dice.choice(("group", "group:latest")),
            "consumerGroup": f"G-{name}",
        },
    )


def _of_all(topics, leaf):
    """Return a tree of positions with one leaf for all queues of each topic."""
    return {topic: {"*": {"*": leaf()}} for topic in topics}
