"""Acts: the steps of clients. Each act has a function that runs it and one that draws its
arguments.

An act is a coroutine of a player; it sends requests to the broker, and records requests and
responses in the ledger.
"""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

TOPICS = 3
QUEUES = 3
GROUPS = 2
SIZES = (0, 1, 10, 60, 300, 2_000, 9_000)
PASSING_TOPIC = "D"
"""The topic that acts delete and create again."""


class Act(NamedTuple):
    """One kind of step."""

    play: object
    draw: object


ACTS = {}


def act(draw):
    """Register a coroutine as an act, with a function that draws its arguments."""

    def register(play):
        ACTS[play.__name__] = Act(play, draw)
        return play

    return register


def place(dice):
    """Draw a queue of one of the permanent topics."""
    return {"topic": f"T{dice.randrange(TOPICS)}", "queue_id": dice.randrange(QUEUES)}


def group(dice):
    return f"G{dice.randrange(GROUPS)}"


for _name in ("sends", "pulls", "groups", "operators", "nuisances"):
    import_module(f"world.acts.{_name}")

OF_CLIENTS = tuple(ACTS)
"""The acts of all clients."""

import_module("world.acts.staging")

OF_SINKS = tuple(name for name in ACTS if name not in OF_CLIENTS)
"""The acts of clients that commit batches."""

import_module("world.acts.transactions")

OF_COMMITTERS = tuple(name for name in ACTS if name not in (*OF_CLIENTS, *OF_SINKS))
"""The acts of producers with transactions."""

import_module("world.acts.pops")

OF_POPPERS = tuple(name for name in ACTS if name not in (*OF_CLIENTS, *OF_SINKS, *OF_COMMITTERS))
"""The acts of members that pop."""
