"""Benchmark of the wire on one thread, without I/O: frames, headers, single messages, chunks.

python -m benchmarks.wire [--rounds N] [--seconds S] [--only SUBSTRING] [--json PATH]
"""

from __future__ import annotations

from benchmarks.harness import Case
from benchmarks.wire import chunks, frames, one_message

CHUNK_BYTES = 8 << 20
"""The size of a typical partition of a Spark batch, larger than a core's own cache."""

LIBRARIES = ("numpy", "pyarrow", "orjson", "msgpack")


def wire_cases(chunk_bytes: int = CHUNK_BYTES) -> list[Case]:
    """Return all cases, those of a subject side by side."""
    return [*frames.cases(), *one_message.cases(), *chunks.cases(chunk_bytes)]
