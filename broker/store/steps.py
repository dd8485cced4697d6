"""Steps that wait for a job in another thread, such as a disk operation.

    steps ──start──▶ job, in another thread
      │ yield                │
      ◀────── its end ───────┘

The steps belong to a request and continue in the store's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TypeAlias, TypeVar

ResultT = TypeVar("ResultT")
Steps: TypeAlias = Generator["Future[None] | None", None, ResultT]
"""A generator that returns a result. It yields a future to wait for, or None to let others run."""
JobExecutor: TypeAlias = Callable[
    [Callable[[], None], Callable[["BaseException | None"], None]], None
]
"""``executor(job, on_done)``: run ``job`` in a worker thread, then call
``on_done(exception_or_None)`` in the store's thread.
"""


def run_in_thread(job: Callable[[], ResultT], executor: JobExecutor) -> Steps[ResultT]:
    """Run a job in another thread and wait for it; return its result or raise its error."""
    return (yield from start_in_thread(job, executor))


def start_in_thread(job: Callable[[], ResultT], executor: JobExecutor) -> Steps[ResultT]:
    """Start a job in another thread now; the returned steps wait for its end."""
    done: Future[None] = Future()
    results: list[ResultT] = []
    failures: list[BaseException] = []

    def on_done(error: BaseException | None) -> None:
        if error is not None:
            failures.append(error)
        done.set_result(None)

    def wait() -> Steps[ResultT]:
        yield done
        if failures:
            raise failures[0]
        return results[0]

    executor(lambda: results.append(job()), on_done)
    return wait()
