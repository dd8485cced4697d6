"""Themes of stories: optional additions to what all have, several at a time.

operators    reset groups, and query, from a process of their own
closing      they close topics and groups for a while
queues       topics get more queues or fewer
again        a topic is deleted and created again
filters      messages have tags, and members change their filters
users        commit offsets of their own, seek by time, end and start
where        groups begin elsewhere than at the start, and each life of a member elsewhere
names        members have the same client id in each life
two          a program has consumers of two groups
by hand      there is a consumer that assigns its own queues
settings     strategies, intervals, retries of sends, and clients without our extensions
"""

from dataclasses import replace

from world.clients import operators, users
from world.clients.acts import ACTS, TOPICS
from world.clients.consuming import CONSUME, STRATEGIES, WHERE
from world.story import Client, Step

THEMES = (
    "operators",
    "closing",
    "queues",
    "again",
    "filters",
    "users",
    "where",
    "names",
    "two",
    "by hand",
    "settings",
)
_ODDS = {"operators": 0.4, "two": 0.6}
_ODDS_OF_OTHERS = 0.28
_OPERATORS = ("set_offset", "set_offset", "reset_group", "reset_group", "look_around")
_CLOSERS = ("close_topic", "close_group")
_BY_HAND = ("assign_others", "pause_and_resume", "seek", "commit_given", "shut_down_and_start")
_USERS = ("commit_given", "commit_given", "seek_to_time", "shut_down_and_start", "seek")


def with_themes(story, dice):
    """Return the story with some of these themes."""
    themes = [each for each in THEMES if dice.random() < _ODDS.get(each, _ODDS_OF_OTHERS)]
    clients = list(story.clients)
    for theme in themes:
        clients = _TOLD[theme](dice, clients)
    return replace(story, clients=tuple(clients))


def _step(dice, kind):
    return Step(kind, ACTS[kind].draw(dice))


def _consumes(client):
    return [step for step in client.steps if step.kind == CONSUME]


def _with(dice, client, kinds):
    """Return a client with more steps at random places."""
    steps = list(client.steps)
    first = len(_consumes(client))
    for kind in kinds:
        at = dice.randint(first, len(steps))
        steps[at:at] = [_step(dice, "wait"), _step(dice, kind)]
    return replace(client, steps=tuple(steps))


def _each_consumer(dice, clients, kinds, counts):
    return [
        _with(dice, client, dice.choices(kinds, k=dice.choice(counts)))
        if _consumes(client)
        else client
        for client in clients
    ]


def _changed(client, change):
    """Return a client whose consumers have other settings."""
    return replace(
        client,
        steps=tuple(
            replace(step, arguments=change(dict(step.arguments))) if step.kind == CONSUME else step
            for step in client.steps
        ),
    )


def _operator(dice, clients, kinds, counts):
    name = f"o{sum(client.name.startswith('o') for client in clients)}"
    steps = []
    for kind in dice.choices(kinds, k=dice.choice(counts)):
        steps += [_step(dice, "wait") for _ in range(dice.choice([0, 1, 2, 3]))]
        steps.append(_step(dice, kind))
    return [*clients, Client(name, tuple(steps))]


def _operators(dice, clients):
    return _operator(dice, clients, _OPERATORS, [1, 3, 6])


def _closing(dice, clients):
    return _operator(dice, clients, _CLOSERS, [1, 2])


def _queues(dice, clients):
    return _operator(dice, clients, ("change_queues",), [1, 2, 3])


def _again(dice, clients):
    return _operator(dice, clients, (operators.MAKE_AGAIN,), [1, 1, 2])


def _filters(dice, clients):
    tagged = [
        replace(
            client,
            steps=tuple(
                replace(step, arguments={**step.arguments, "tags": (*users.TAGS, None)})
                if step.kind == "send"
                else step
                for step in client.steps
            ),
        )
        for client in clients
    ]
    return _each_consumer(dice, tagged, ("change_filter",), [0, 1, 2])


def _users(dice, clients):
    return _each_consumer(dice, clients, _USERS, [1, 2, 4])


def _where(dice, clients):
    return [
        _changed(
            client,
            lambda old: old if old["broadcasting"] else {**old, "where": dice.choice([*WHERE])},
        )
        for client in clients
    ]


def _names(dice, clients):
    return [
        _changed(client, lambda old, name=client.name: {**old, "client_id": f"client of {name}"})
        for client in clients
    ]


def _two(dice, clients):
    """Give the first program of a group a consumer of another group, like that of some other
    program."""
    consumers = [client for client in clients if _consumes(client)]
    if len(consumers) < 2:
        return clients
    one, other = dice.sample(consumers, 2)
    groups = [_consumes(each)[0].arguments["group"] for each in (one, other)]
    if groups[0] == groups[1]:
        return clients
    both = [*_consumes(one), _consumes(other)[0]]
    steps = []
    for step in (each for each in one.steps if each.kind != CONSUME):
        arguments = dict(step.arguments)
        if step.kind == "shut_down_and_start":
            arguments["keeps_client"] = False
        elif step.kind not in ("send", "wait"):
            arguments["which"] = dice.randrange(2)
        steps.append(replace(step, arguments=arguments))
    more = replace(one, steps=(*both, *steps))
    return [more if client is one else client for client in clients]


def _by_hand(dice, clients):
    settings = {
        "rebalance_interval_ms": 2_000,
        "persist_consumer_offset_interval_ms": dice.choice([1_000, 5_000]),
        "auto_commit_interval_ms": dice.choice([1_000, 5_000]),
        "topic_metadata_check_interval_ms": 5_000,
        "pull_batch_size": dice.choice([1, 8, 32]),
    }
    consume = Step(
        CONSUME,
        {
            "kind": "lite",
            "group": operators.BY_HAND,
            "topics": list(dice.choice([TOPICS[:1], TOPICS])),
            "broadcasting": False,
            "moods": ["good", "slow"],
            "settings": settings,
            "queue_messages_max": dice.choice([2, 1_000]),
            "auto_commit": dice.random() < 0.7,
            "is_assigned": True,
        },
    )
    kinds = dice.choices((*_BY_HAND, "assign_others"), k=dice.choice([1, 3, 5]))
    return [*clients, _with(dice, Client("h0", (consume,)), kinds)]


def _settings(dice, clients):
    strategies, changed = {}, []
    for client in clients:
        first = len(_consumes(client))
        produces = (_step(dice, "produce_with"),) if dice.random() < 0.5 else ()
        steps = client.steps[:first] + produces + client.steps[first:]

        def change(old):
            group = old["group"]
            strategy = strategies.setdefault(group, dice.choice([*STRATEGIES]))
            settings = dict(old["settings"])
            settings["broker_suspend_max_time_ms"] = dice.choice([100, 5_000, 15_000])
            settings["pull_time_delay_ms_when_exception"] = dice.choice([20, 1_000])
            if old["kind"] != "lite":
                settings["pull_interval_ms"] = dice.choice([0, 0, 200])
                settings["await_termination_ms"] = dice.choice([0, 1_000, 1_500])
            return {
                **old,
                "settings": settings,
                "strategy": strategy,
                "speaks_plainly": dice.random() < 0.4,
            }

        changed.append(_changed(replace(client, steps=steps), change))
    return changed


_TOLD = {
    "operators": _operators,
    "closing": _closing,
    "queues": _queues,
    "again": _again,
    "filters": _filters,
    "users": _users,
    "where": _where,
    "names": _names,
    "two": _two,
    "by hand": _by_hand,
    "settings": _settings,
}
