"""Bulk tools: pyarrow and what depends on it, loaded on first use.

pyarrow alone takes more time and memory to load than the rest of a broker, and a broker that gets
few messages never needs it. So code for many records gets its tools here, such as
`bulk_tools.RecordChunk`; no module of the store imports them when it is imported.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ...common.threads import DaemonThreadPool
from ..errors import Degradation, is_transient

if TYPE_CHECKING:
    from pyarrow import py_buffer

    from rmq_spark.wire.chunk.buffer_slices import take_bytes
    from rmq_spark.wire.chunk.checksums import (
        intact_records,
        with_empty_checksums,
        write_checksums,
    )
    from rmq_spark.wire.chunk.columns import COLUMNS
    from rmq_spark.wire.chunk.decode import RecordChunk

    from .java_hash import hash_index_keys, hash_slices, keys_before

_MODULE_BY_NAME = {
    "COLUMNS": "rmq_spark.wire.chunk.columns",
    "RecordChunk": "rmq_spark.wire.chunk.decode",
    "py_buffer": "pyarrow",
    "hash_index_keys": "rocketpoll.broker.store.bulk.java_hash",
    "hash_slices": "rocketpoll.broker.store.bulk.java_hash",
    "keys_before": "rocketpoll.broker.store.bulk.java_hash",
    "intact_records": "rmq_spark.wire.chunk.checksums",
    "take_bytes": "rmq_spark.wire.chunk.buffer_slices",
    "with_empty_checksums": "rmq_spark.wire.chunk.checksums",
    "write_checksums": "rmq_spark.wire.chunk.checksums",
}

__all__ = [
    "COLUMNS",
    "RecordChunk",
    "are_loaded",
    "hash_index_keys",
    "hash_slices",
    "intact_records",
    "keys_before",
    "load_in_steps",
    "py_buffer",
    "start_loading",
    "take_bytes",
    "with_empty_checksums",
    "write_checksums",
]


def are_loaded() -> bool:
    """Return whether the tools are loaded; if not, start loading them in another thread.

    Use this where the work can be done without the tools: loading them takes one or two tenths of a
    second.
    """
    if not _state.is_loaded:
        with suppress(RuntimeError, MemoryError):  # no thread can be started: a later call retries
            start_loading()
    return _state.is_loaded


def start_loading() -> Future[None]:
    """Start loading the tools in another thread, unless that has begun; return its future."""
    with _state.lock:
        attempt = _state.attempt
        if attempt is None or (attempt.done() and not _state.is_loaded):
            # A process waits for this thread before it ends: Arrow's libraries crash if Python ends
            # while they are loaded.
            workers = _state.workers = DaemonThreadPool("LoadChunkTools")
            attempt = _state.attempt = workers.submit(_load)
            attempt.add_done_callback(lambda _: workers.shutdown())
    return attempt


def check_loading() -> None:
    """Fail the loading if its thread has not started in time; call this periodically."""
    if _state.workers is not None:
        _state.workers.fail_stuck_jobs()


def load_in_steps() -> Generator[Future[None], None, None]:
    """Load the tools in another thread; yield the future to wait for, unless they are loaded."""
    attempt = start_loading()
    if not attempt.done():
        yield attempt
    attempt.result()


class _State:
    is_loaded = False
    attempt: Future[None] | None = None
    workers: DaemonThreadPool | None = None
    lock = threading.Lock()
    degradation = Degradation("numpy and pyarrow are not loaded")


_state = _State()


def _load() -> None:
    try:
        for home in dict.fromkeys(_MODULE_BY_NAME.values()):
            _import_module(home)
        # At its first conversion pyarrow imports pandas, if it is installed, which takes half a
        # second: do it here and not in a turn of the event loop. A conversion here would import it
        # inside pyarrow's C++, where a thread aborts the process if Python ends.
        with suppress(Exception):
            import_module("pandas")
    except BaseException as error:
        if is_transient(error):
            _state.degradation.begin(error)
        raise
    _state.is_loaded = True
    _state.degradation.end()


def __getattr__(name: str) -> Any:
    """Import the tool of this name; later look-ups find it without this call."""
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    tool = globals()[name] = getattr(_import_module(_MODULE_BY_NAME[name]), name)
    return tool


def _import_module(home: str) -> ModuleType:
    """Import a module; raise ImportError for any error but a shortage or an OSError.

    Incompatible versions of numpy and pyarrow, or another module with one of these names, may raise
    anything.
    """
    try:
        return import_module(home)
    except Exception as error:
        if is_transient(error) or isinstance(error, OSError):
            raise
        raise ImportError(
            f"{home} cannot be imported: pyarrow and numpy are incompatible, or another module "
            f"has one of their names: {type(error).__name__}: {error}"
        ) from error
