"""The client against a broker of ours: sends, pulls, how soon a held pull comes back, importing.

python -m benchmarks.client [--rounds N] [--seconds S] [--only SUBSTRING] [--json PATH]

The broker is a process of its own, with ASYNC_FLUSH and a store below build/ that is removed afterwards.
"""

from __future__ import annotations

from benchmarks.client import pulling, sending, starting
from benchmarks.client.running_broker import RunningBroker
from benchmarks.harness import Case

LIBRARIES = ("numpy", "pyarrow", "msgpack")


def client_cases(broker: RunningBroker) -> list[Case]:
    """All cases, those of a subject side by side."""
    return [*sending.cases(broker), *pulling.cases(broker), *starting.cases()]
