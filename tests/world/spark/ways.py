"""Stories with other ways to name queues and brokers: by number (`assign`), by names within a
namespace, or at addresses that only the user's own map resolves (`brokerAddresses`).

A separate random generator draws them, so that the rest of the story is the same without.
"""

import json
import random
from dataclasses import replace

from world.spark.rarities import is_reader, with_sources_changed
from world.story import Step, Trouble

_ASSIGNED = 0.3
_WITHIN = 0.2
_HIDDEN = 0.25
_BY_NAME_OF_THE_SPACE = 0.7
"""Share of users that use the namespace option; the others write full names."""

NAMESPACE = "eu"
_PREFIX = f"{NAMESPACE}%"
_LESS = frozenset({"make again", "change queues"})
"""Troubles after which a topic may have a single queue."""

_OF_TOPICS = ("assign", "startingOffsets", "startingOffsetsByTimestamp", "endingOffsets")
"""Options that may be trees whose first level are topics."""

_OUTSIDE = "10.8"
"""A host without a server."""


def with_other_ways(story):
    """Return the story with such users, or unchanged."""
    story = _with_queues_by_number(random.Random(f"{story.seed} assigned"), story)
    story = _within_a_namespace(random.Random(f"{story.seed} namespace"), story)
    return _with_hidden_brokers(random.Random(f"{story.seed} addresses"), story)


# ---- queues by number


def _with_queues_by_number(dice, story):
    if dice.random() >= _ASSIGNED:
        return story
    kinds = {trouble.kind for trouble in story.troubles}
    kinds |= {
        step.arguments["trouble"]
        for client in story.clients
        for step in client.steps
        if step.kind == "at"
    }
    numbers = [[0]] if kinds & _LESS else [[0], [1], [0, 1]]
    brokers = [client.name for client in story.clients if client.name.startswith("broker")]

    def assigned(source):
        options = dict(source["options"])
        if "topic" not in options:
            return source
        del options["topic"]
        tree = {topic: _some_of(dice, brokers, numbers) for topic in source["topics"]}
        return {**source, "options": {**options, "assign": json.dumps(tree)}}

    return with_sources_changed(story, is_reader, assigned)


def _some_of(dice, brokers, numbers):
    if dice.random() < 0.3:
        return dice.choice(numbers)
    some = dice.sample(brokers, dice.randint(1, len(brokers)))
    return {broker: dice.choice(numbers) for broker in sorted(some)}


# ---- a namespace


def prefix_of(story):
    """Return the prefix of the names of all topics of a story."""
    arguments = [step.arguments for client in story.clients for step in client.steps]
    named = [name for each in arguments for name in (each.get("topic"), *each.get("topics", ()))]
    spaces = [each["options"].get("namespace") for each in arguments if "options" in each]
    is_within = any(name is not None and name.startswith(_PREFIX) for name in named)
    return _PREFIX if is_within or any(spaces) else ""


def _within_a_namespace(dice, story):
    if dice.random() >= _WITHIN:
        return story
    troubles = tuple(
        replace(each, arguments=_of_whole_names(each.arguments)) for each in story.troubles
    )
    clients = tuple(
        replace(client, steps=tuple(_within(dice, step) for step in client.steps))
        for client in story.clients
    )
    return replace(story, troubles=troubles, clients=clients)


def _within(dice, step):
    arguments = _of_whole_names(step.arguments)
    if step.kind == "at":
        arguments["arguments"] = _of_whole_names(arguments["arguments"])
    if "options" in arguments:
        arguments = _said(dice, arguments)
    if "united_with" in arguments:
        others = [_of_whole_names(each) for each in arguments["united_with"]]
        arguments["united_with"] = [_said(dice, each) for each in others]
    return Step(step.kind, arguments)


def _of_whole_names(arguments):
    found = dict(arguments)
    if "topic" in found:
        found["topic"] = _PREFIX + found["topic"]
    if "topics" in found:
        found["topics"] = [_PREFIX + name for name in found["topics"]]
    return found


def _said(dice, source):
    """Set the options by which a source or sink finds its topics."""
    options = dict(source["options"])
    if dice.random() < _BY_NAME_OF_THE_SPACE:
        return {**source, "options": {**options, "namespace": NAMESPACE}}
    if "topic" in options:
        options["topic"] = ",".join(_PREFIX + name for name in options["topic"].split(","))
    if "subscribePattern" in options:
        options["subscribePattern"] = _PREFIX + options["subscribePattern"]
    for name in _OF_TOPICS:
        if options.get(name, "").startswith("{"):
            tree = json.loads(options[name])
            options[name] = json.dumps({_PREFIX + topic: below for topic, below in tree.items()})
    return {**source, "options": options}


# ---- addresses


def _with_hidden_brokers(dice, story):
    """Let name servers return addresses that lead nowhere, or to another broker."""
    if dice.random() >= _HIDDEN:
        return story
    how = dice.choice(("nowhere", "nowhere", "next"))
    brokers = [client.name for client in story.clients if client.name.startswith("broker")]
    ways = {}
    for number, name in enumerate(brokers):
        by_address = how == "nowhere" and dice.random() < 0.5
        ways[told_address(number) if by_address else name] = f"127.0.1.{number + 1}:10911"
        if how == "nowhere":
            ways[told_address(number, is_slave=True)] = f"127.0.5.{number + 1}:10911"
    given = {"brokerAddresses": json.dumps(ways)}
    story = with_sources_changed(
        story,
        lambda client: bool(client.steps) and "options" in client.steps[0].arguments,
        lambda source: {**source, "options": {**source["options"], **given}},
    )
    return replace(story, troubles=(*story.troubles, Trouble("hide", 0.0, 0.0, {"how": how})))


def told_address(number, *, is_slave=False):
    """Return the address that name servers return for a hidden broker."""
    return f"{_OUTSIDE}.{int(is_slave)}.{number + 1}:10911"


# ---- renamed brokers


def with_new_names(options, names):
    """Return the options of a user who knows the brokers' new names."""
    options = dict(options)
    for option in ("assign", "brokerAddresses"):
        if option in options:
            options[option] = json.dumps(_renamed(json.loads(options[option]), names))
    return options


def _renamed(tree, names):
    if not isinstance(tree, dict):
        return tree
    return {names.get(name, name): _renamed(below, names) for name, below in tree.items()}
