"""A broker on a loop whose turns are measured: the longest turn is a client's longest wait.

The loop's clock is its thread's processor time. So the broker yields after the same amount of work,
however busy the machine is.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import uvloop

from rmq_spark.wire.remoting.command import RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import FrameReader
from rocketpoll.broker.controller import BrokerController
from rocketpoll.broker.server.client_connection import ClientConnection
from rocketpoll.broker.settings.settings import load_config
from rocketpoll.broker.store.bulk import bulk_tools

_SECONDS_MAX = 120.0
_LOOK_SECONDS = 0.001
_SETTINGS = (
    "listenPort=0",
    "maxTopics=20000",
    "maxQueues=90000",
    "maxGroups=20000",
    "maxConnectionsPerAddress=12000",
    "maxAcceptsPerSecond=1000000",
    "firstFrameTimeoutMills=3600000",
    "metricsPort=0",
)


class Gap(NamedTuple):
    """The longest turn of the loop during an action, and the time of the whole action."""

    cpu_ms: float
    """The processor time of the loop's thread, which does not depend on the machine's load."""
    wall_ms: float
    whole_ms: float


class Client:
    """A client without a socket that counts its responses by code, between turns."""

    def __init__(self, broker: MeasuredBroker) -> None:
        self.codes: Counter[int] = Counter()
        self._frame_reader = FrameReader()
        self._written = broker.written
        self._loop = broker.loop
        self._is_closed = False
        self.connection = broker.new_connection()
        self.connection.connection_made(cast("asyncio.BaseTransport", self))

    def get_extra_info(self, name: str) -> Any:
        """Return nothing: there is no socket to describe."""
        return self if name == "socket" else ("127.0.0.1", 5_555)

    def setsockopt(self, *_: int) -> None:
        """Ignore a socket option."""

    def fileno(self) -> int:
        """Return the descriptor of a closed socket: no system buffers what is written."""
        return -1

    def set_write_buffer_limits(self, _: int) -> None:
        """Ignore the limits of a transport's buffer."""

    def get_write_buffer_size(self) -> int:
        """Return 0: all data was accepted."""
        return 0

    def pause_reading(self) -> None:
        """Do nothing: no data arrives by itself here."""

    def resume_reading(self) -> None:
        """Do nothing: this client always reads."""

    def write(self, data: bytes) -> None:
        """Accept data, to be read when the turn has ended."""
        self._written.append((self, data))

    def writelines(self, pieces: Iterable[bytes]) -> None:
        """Accept data in pieces."""
        self.write(b"".join(pieces))

    def read(self, data: bytes) -> None:
        """Count the responses in the data by their codes."""
        self._frame_reader.feed(data)
        while (frame := self._frame_reader.next_frame()) is not None:
            command = decode_command(frame)
            if command.is_response:  # not what members are told of
                self.codes[command.code] += 1

    def close(self) -> None:
        """Close the connection in the next turn, as a transport does."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.call_soon(self.connection.connection_lost, None)

    abort = close


class _WorkingTimeLoop(uvloop.Loop):
    """A loop whose clock advances only while the thread that created it works."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = time.pthread_getcpuclockid(threading.get_ident())

    def time(self) -> float:
        """Return the processor time of the loop's thread, in seconds; callable in any thread."""
        return time.clock_gettime(self._clock)


class MeasuredBroker:
    """A broker with clients that have no sockets."""

    def __init__(self, directory: Path, flush_disk_type: str = "ASYNC_FLUSH") -> None:
        """Start a broker with its store in a directory; it must be ended by `shutdown`."""
        settings = [f"storePathRootDir={directory}", f"flushDiskType={flush_disk_type}", *_SETTINGS]
        self.config = load_config(None, settings)
        self.written: list[tuple[Client, bytes]] = []
        """What clients have received in the current turn."""
        self.loop = _WorkingTimeLoop()
        self.controller = BrokerController(self.config)
        self.loop.run_until_complete(self.controller.start())
        while not bulk_tools.are_loaded():  # else the first case would be the one to wait for that
            time.sleep(_LOOK_SECONDS)
        gc.collect()
        # A full collection takes as long as a turn, whatever is done: it is not measured here.
        gc.freeze()

    def new_connection(self) -> ClientConnection:
        """Create the broker's end of a new client."""
        return self.controller.server._new_connection()  # nobody else makes one without a socket

    def ask_for_metrics(self, give: Callable[[object], None]) -> None:
        """Request the text of all metrics for a function, as a scraper does."""
        metrics = self.controller._metrics  # nobody else asks for them without a socket
        if metrics is not None:
            metrics._exposition.request(give)

    def send(self, client: Client, requests: Sequence[RemotingCommand]) -> None:
        """Deliver requests in one piece, and wait until all are answered."""
        self.longest_turn(client, requests)

    def usual_turn(
        self,
        rounds: int,
        client: Client | None = None,
        requests: Sequence[RemotingCommand] = (),
        *,
        act: Callable[[], object] = lambda: None,
        until: Callable[[], object] = lambda: True,
    ) -> Gap:
        """Repeat the same action; return the median of each figure of `longest_turn`."""
        found = [self.longest_turn(client, requests, act=act, until=until) for _ in range(rounds)]
        return Gap(*(statistics.median(figures) for figures in zip(*found, strict=True)))

    def longest_turn(
        self,
        client: Client | None = None,
        requests: Sequence[RemotingCommand] = (),
        *,
        act: Callable[[], object] = lambda: None,
        until: Callable[[], object] = lambda: True,
    ) -> Gap:
        """Deliver requests or run an action; wait for the responses and for a condition."""
        return self.loop.run_until_complete(self._longest_turn(client, requests, act, until))

    async def _longest_turn(
        self,
        client: Client | None,
        requests: Sequence[RemotingCommand],
        act: Callable[[], object],
        until: Callable[[], object],
    ) -> Gap:
        turns: list[tuple[float, float]] = []
        heart = asyncio.ensure_future(self._beat(turns))
        data = b"".join(request.encode() for request in requests)
        answers = client.codes.total() + len(requests) if client is not None else 0
        await asyncio.sleep(_LOOK_SECONDS)
        gc.disable()
        turns.clear()
        began = time.perf_counter()
        if client is not None and data:
            client.connection.data_received(data)
        act()
        await asyncio.sleep(_LOOK_SECONDS)  # the turn in which that was begun counts, too
        while (client is not None and client.codes.total() < answers) or not until():
            if time.perf_counter() - began > _SECONDS_MAX:
                raise TimeoutError("it has not come to an end")
            await asyncio.sleep(_LOOK_SECONDS)
        whole = time.perf_counter() - began
        gc.enable()
        heart.cancel()
        return Gap(
            max(cpu for cpu, _ in turns) * 1e3, max(wall for _, wall in turns) * 1e3, whole * 1e3
        )

    async def _beat(self, turns: list[tuple[float, float]]) -> None:
        """Record the duration of each turn of the loop; let clients read in between."""
        while True:
            cpu, wall = time.thread_time(), time.perf_counter()
            await asyncio.sleep(0)
            turns.append((time.thread_time() - cpu, time.perf_counter() - wall))
            for client, data in self.written:
                client.read(data)
            self.written.clear()

    def shutdown(self) -> None:
        """Stop the broker in order, and close its loop."""
        gc.unfreeze()
        self.loop.run_until_complete(self.controller.stop())
        self.loop.close()
