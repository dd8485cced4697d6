"""RocketMQ's own command line for administrators, run in the JVM of the clients,
and what it prints as facts.

Its tables have headings that begin with `#`, and cells that may be missing; a row is therefore told
by its first cells, and read from either end.
"""

from __future__ import annotations

import json
import re
from typing import Any

from support.rocketmq.java_clients import JavaClients


class CommandFailed(Exception):
    """It has printed nothing but a stack trace."""


class MqAdmin:
    """`mqadmin` of the version of its clients."""

    def __init__(self, clients: JavaClients, version: str) -> None:
        self._clients = clients
        self._version = version

    def run(self, command: str, *arguments: str) -> str:
        """What it prints."""
        said = self._clients.ask(f"mqadmin {command}", arguments=arguments)
        if not said["printed"].strip():
            raise CommandFailed(said["complained"])
        return said["printed"]

    def query_by_id(self, topic: str, message_id: str) -> str:
        """From 5.0 on it wants the topic as well, and 4.9 ends when it is told of one."""
        topic_too = [] if self._version.startswith("4.") else ["-t", topic]
        return self.run("queryMsgById", "-i", message_id, *topic_too)


def rows(printed: str, *first: str) -> list[list[str]]:
    """The lines of a table that begin with these cells; each as its cells."""
    lines = [
        line.split() for line in printed.splitlines() if line.strip() and not line.startswith("#")
    ]
    return [cells for cells in lines if cells[: len(first)] == list(first)]


def row(printed: str, *first: str) -> list[str]:
    """The one line that begins so."""
    found = rows(printed, *first)
    assert len(found) == 1, f"{len(found)} rows begin with {first}:\n{printed}"
    return found[0]


def named(printed: str, between: str = ":") -> dict[str, str]:
    """Lines of a name and its value."""
    parts = (line.partition(between) for line in printed.splitlines())
    return {name.strip(): value.strip() for name, found, value in parts if found}


def java_json(printed: str) -> Any:
    """JSON as RocketMQ prints it: numbers stand as names without quotes."""
    return json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', printed))
