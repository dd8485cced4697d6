"""The tools for many records at once, loaded when the first of them is used.

pyarrow alone takes longer to load than all the rest of a broker, and more memory; one that gets a few
messages never needs it. So whatever in this room is for many records asks for its tools here, by
`chunks.RecordChunk`, and no other module of the store imports them where it is itself imported.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow import py_buffer

    from broker.store.java_hash import hash_index_keys
    from rmq_spark.wire.chunk import COLUMNS, RecordChunk
    from rmq_spark.wire.chunk.checksums import Sealing, intact_records, with_empty_checksums
    from rmq_spark.wire.chunk.gather import take_bytes

_HOMES = {
    "COLUMNS": "rmq_spark.wire.chunk",
    "RecordChunk": "rmq_spark.wire.chunk",
    "py_buffer": "pyarrow",
    "Sealing": "rmq_spark.wire.chunk.checksums",
    "hash_index_keys": "broker.store.java_hash",
    "intact_records": "rmq_spark.wire.chunk.checksums",
    "take_bytes": "rmq_spark.wire.chunk.gather",
    "with_empty_checksums": "rmq_spark.wire.chunk.checksums",
}

__all__ = [
    "COLUMNS",
    "RecordChunk",
    "Sealing",
    "are_loaded",
    "hash_index_keys",
    "intact_records",
    "py_buffer",
    "take_bytes",
    "with_empty_checksums",
]


def are_loaded() -> bool:
    """Whether using them costs no time; if not, they are loaded beside from now on.

    For whoever has another way until then: loading stops a thread for a tenth of a second or two.
    """
    if _state.is_loaded:
        return True
    with _state.lock:
        if _state.thread is None:
            _state.thread = threading.Thread(target=_load, name="LoadChunkTools", daemon=True)
            _state.thread.start()
    return False


class _State:
    is_loaded = False
    thread: threading.Thread | None = None
    lock = threading.Lock()


_state = _State()


def _load() -> None:
    for home in set(_HOMES.values()):
        import_module(home)
    _state.is_loaded = True


def __getattr__(name: str) -> Any:
    """The tool of this name, from then on without coming here."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    tool = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return tool
