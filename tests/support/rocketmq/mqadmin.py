"""RocketMQ's mqadmin commands, run in the JVM of the clients, with parsed output.

Tables have headings that begin with `#`, and cells may be missing: a row is identified by its first
cells, and read from either end.
"""

from __future__ import annotations

import json
import re
from typing import Any

from support.rocketmq.java_clients import JavaClients


class CommandFailed(Exception):
    """Raised when a command has printed only a stack trace."""


class MqAdmin:
    """`mqadmin` of one RocketMQ version."""

    def __init__(self, clients: JavaClients, version: str) -> None:
        self._clients = clients
        self._version = version

    def run(self, command: str, *arguments: str) -> str:
        """Run a command; return its output."""
        said = self._clients.ask(f"mqadmin {command}", arguments=arguments)
        if not said["printed"].strip():
            raise CommandFailed(said["complained"])
        return said["printed"]

    def query_by_id(self, topic: str, message_id: str) -> str:
        """Query a message by id; 5.0 and later need the topic as well, 4.9 rejects it."""
        topic_too = [] if self._version.startswith("4.") else ["-t", topic]
        return self.run("queryMsgById", "-i", message_id, *topic_too)


def rows(printed: str, *first: str) -> list[list[str]]:
    """Return the table rows that begin with these cells."""
    lines = [
        line.split() for line in printed.splitlines() if line.strip() and not line.startswith("#")
    ]
    return [cells for cells in lines if cells[: len(first)] == list(first)]


def row(printed: str, *first: str) -> list[str]:
    """Return the only row that begins with these cells."""
    __tracebackhide__ = True
    found = rows(printed, *first)
    assert len(found) == 1, f"{len(found)} rows begin with {first}:\n{printed}"
    return found[0]


def named(printed: str, between: str = ":") -> dict[str, str]:
    """Return name and value of the lines that have both."""
    parts = (line.partition(between) for line in printed.splitlines())
    return {name.strip(): value.strip() for name, found, value in parts if found}


def java_json(printed: str) -> Any:
    """Parse JSON as RocketMQ prints it: numeric names have no quotes."""
    return json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', printed))
