"""Benchmark of the store on a real disk: append, dispatch, get, and open.

python -m benchmarks.store [--messages N] [--gib G] [--rounds N] [--only SUBSTRING] [--json PATH]

Every case that writes gets a new directory for each run; those that read share their logs. All
files are in the checkout's build directory, and are removed when the benchmark ends.
"""

from __future__ import annotations

from benchmarks.harness import Case
from benchmarks.store import appending, dispatching, getting, opening, singles
from benchmarks.store.workspace import Workspace

ROUNDS = 5
MESSAGES = 1_000_000
GIB = 0.25
CHUNK_BYTES = 8 << 20

_DISPATCHED = 400_000

LIBRARIES = ("numpy", "pyarrow")


def store_cases(
    workspace: Workspace,
    messages: int = MESSAGES,
    log_bytes: int = int(GIB * (1 << 30)),
    chunk_bytes: int = CHUNK_BYTES,
) -> list[Case]:
    """Return all cases, those of a subject side by side; nothing is written before they run.

    Args:
        workspace: The directories to write to.
        messages: The messages of the largest log that is read from.
        log_bytes: The size of the log of a store that is opened.
        chunk_bytes: The bytes that are appended, or got, in one piece.
    """
    return [
        *singles.cases(workspace),
        *appending.cases(workspace, chunk_bytes),
        *dispatching.cases(workspace, min(messages, _DISPATCHED)),
        *getting.cases(workspace, messages, chunk_bytes),
        *opening.cases(workspace, log_bytes),
    ]
