"""The store on a real disk: appending, dispatching, getting, and opening what is there.

python -m benchmarks.store [--messages N] [--gib G] [--rounds N] [--only SUBSTRING] [--json PATH]

Every case that writes gets a new directory for each run; those that read share their logs. All of it lies
under the checkout's build directory, and is removed when the benchmark ends.
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
    """All cases, those of a subject side by side. Nothing is written before the first runs.

    Args:
        workspace: Where to write.
        messages: Of the largest log that is read from.
        log_bytes: Of the log of a store that is opened.
        chunk_bytes: What is appended in one piece, or got in one.
    """
    return [
        *singles.cases(workspace),
        *appending.cases(workspace, chunk_bytes),
        *dispatching.cases(workspace, min(messages, _DISPATCHED)),
        *getting.cases(workspace, messages, chunk_bytes),
        *opening.cases(workspace, log_bytes),
    ]
