"""Beginning: begins a client in a thread of its own, so that a signal cannot leave half of it.

A signal's handler may raise an error in whoever waits, as Ctrl-C does. What is under way by then is
taken back as soon as it is whole. Nothing here knows what is begun.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rmq_spark.client.threads.mutex import SIGNALS_SECONDS, waited_mutex
from rmq_spark.client.threads.starting import start_thread


class Beginning:
    """Work that is done once, whole, or taken back."""

    def __init__(
        self, name: str, work: Callable[[], None], take_back: Callable[[], object]
    ) -> None:
        self._name = name
        self._work = work
        self._take_back = take_back
        self._still_to_begin = [None]
        self._changing = waited_mutex()
        self._is_over = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do the work, and raise what it raises; if this is interrupted, it is taken back."""
        try:
            try:
                start_thread(threading.Thread(target=self._run, name=self._name, daemon=True))
            except RuntimeError:  # at a limit of threads
                self._run()
            self._wait()
        except BaseException:
            name = f"{self._name} no more"
            try:
                start_thread(threading.Thread(target=self._undo, name=name, daemon=True))
            except RuntimeError:  # at a limit of threads
                self._undo()
            raise
        if self._error is not None:
            raise self._error

    def _has_taken_it(self) -> bool:
        try:
            self._still_to_begin.pop()  # atomic: of several threads one begins
        except IndexError:
            return False
        return True

    def _run(self) -> None:
        if not self._has_taken_it():
            return
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  # for the caller
            self._error = error
        with self._changing:
            self._is_over = True
            self._changing.notify_all()

    def _wait(self) -> None:
        with self._changing:
            while not self._is_over:
                self._changing.wait(SIGNALS_SECONDS)

    def _undo(self) -> None:
        if self._has_taken_it():
            return
        self._wait()
        if self._error is None:
            self._take_back()
