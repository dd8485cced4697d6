"""BrokerThread: a broker on a loop and a thread of its own, in this process.

The thread is a daemon, so that a program that forgets its broker ends all the same. It knows no
client, and nothing of directories: the code that starts it does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress

from rmq_spark.errors import RocketPollError
from rocketpoll.broker.controller import BrokerController
from rocketpoll.broker.server.event_loop import new_event_loop
from rocketpoll.broker.settings.config import BrokerConfig

_STOP_SECONDS = 30.0


class BrokerThread:
    """A broker on a daemon thread of this process, which is started once and stopped once."""

    def __init__(self, config: BrokerConfig) -> None:
        """Prepare a broker with these settings, without running it yet."""
        self._controller = BrokerController(config)
        self._started: Future[int] = Future()
        self._stopped: Future[None] = Future()
        self._go_on = threading.Event()
        self._go_on.set()
        self._thread = threading.Thread(target=self._run, name="EmbeddedBroker", daemon=True)

    def start(self) -> int:
        """Start the thread, and return the broker's port once it serves.

        Raises:
            RocketPollError, OSError: The broker cannot run. Nothing is left behind.
        """
        try:
            self._thread.start()
            return self._started.result()
        except BaseException:
            # After an interrupt it may be about to serve: then it stops as soon as it does.
            self._started.add_done_callback(lambda _: self._ask_to_stop())
            with suppress(RuntimeError):  # it never began
                self._thread.join(_STOP_SECONDS)
            raise

    def stop(self) -> None:
        """Stop the broker in order, and return when its thread has ended.

        Raises:
            RocketPollError, OSError: The broker could not save its state.
        """
        self.resume()
        self._ask_to_stop()
        self._thread.join(_STOP_SECONDS)
        if self._thread.is_alive():
            raise RocketPollError(f"the broker has not stopped within {_STOP_SECONDS:.0f} s")
        self._stopped.result()

    def pause(self) -> None:
        """Block the broker's event loop until `resume`."""
        if self._go_on.is_set():
            self._go_on.clear()
            self._loop.call_soon_threadsafe(self._go_on.wait)

    def resume(self) -> None:
        """Let an event loop that was blocked by `pause` go on."""
        self._go_on.set()

    def descriptors(self) -> Iterable[int]:
        """Return the descriptors that a fork of this process must not keep open.

        With them open in a fork, clients would not notice that the broker has ended.
        """
        return self._controller.descriptors()

    def _ask_to_stop(self) -> None:
        with suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._stop.set)

    def _run(self) -> None:
        self._loop = new_event_loop()
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001  # whatever it is, somebody waits for it
            (self._stopped if self._started.done() else self._started).set_exception(error)
        else:
            self._stopped.set_result(None)
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self._started.set_result(await self._controller.start())
        await self._stop.wait()
        await self._controller.stop()
