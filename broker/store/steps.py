"""Jobs aside: what has to wait for a disk is run in another thread, and waited for in steps.

    steps ──begun──▶ job, in another thread
      │ yield                │
      ◀────── its end ───────┘

The steps are those of a request, and go on in the thread of the store. This module must not know
what a job does, nor whose threads there are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TypeAlias, TypeVar

ResultT = TypeVar("ResultT")
Steps: TypeAlias = Generator["Future[None] | None", None, ResultT]
"""Steps, each of which waits for a future or lets others run, and what comes out at the end."""
JobExecutor: TypeAlias = Callable[
    [Callable[[], None], Callable[["BaseException | None"], None]], None
]
"""A function that runs its first argument, a job, in another thread.

Then, in the thread of the store, its second argument gets the exception that was raised, or None.
"""


def run_in_thread(job: Callable[[], ResultT], executor: JobExecutor) -> Steps[ResultT]:
    """Run a job in another thread, and go on behind it; return or raise what it does."""
    return (yield from start_in_thread(job, executor))


def start_in_thread(job: Callable[[], ResultT], executor: JobExecutor) -> Steps[ResultT]:
    """Begin a job in another thread now; the steps returned wait for its end, as in `beside`."""
    done: Future[None] = Future()
    answers: list[ResultT] = []
    failures: list[BaseException] = []

    def tell(error: BaseException | None) -> None:
        if error is not None:
            failures.append(error)
        done.set_result(None)

    def wait() -> Steps[ResultT]:
        yield done
        if failures:
            raise failures[0]
        return answers[0]

    executor(lambda: answers.append(job()), tell)
    return wait()
