"""A broker on a loop whose turns are measured: how long each is what any other client waits for at most."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import uvloop

from broker.client_connection import ClientConnection, ConnectionTable
from broker.controller import BrokerController
from broker.loop_turn import LoopTurn
from broker.settings import load_config
from broker.store import chunks
from rmq_spark.wire.command import RemotingCommand, decode_command
from rmq_spark.wire.framing import FrameReader

_SECONDS_MAX = 120.0
_LOOK_SECONDS = 0.001


class Gap(NamedTuple):
    """The longest turn of the loop while something was done, and how long all of it took."""

    cpu_ms: float
    """What the loop's thread worked in it: that does not depend on what else the machine does."""
    wall_ms: float
    whole_ms: float


class Client:
    """A client without a socket, whose answers are counted by their codes."""

    def __init__(self, broker: MeasuredBroker) -> None:
        self.codes: Counter[int] = Counter()
        self.is_read_from = True
        self._frames = FrameReader()
        self.connection = broker.new_connection()
        self.connection.connection_made(cast("asyncio.BaseTransport", self))

    def get_extra_info(self, name: str) -> Any:
        """As a transport has it."""
        return self if name == "socket" else ("127.0.0.1", 5_555)

    def setsockopt(self, *_: int) -> None:
        """As a socket has it."""

    def set_write_buffer_limits(self, _: int) -> None:
        """As a transport has it."""

    def pause_reading(self) -> None:
        """It is not read from."""
        self.is_read_from = False

    def resume_reading(self) -> None:
        """It is read from again."""
        self.is_read_from = True

    def write(self, data: bytes) -> None:
        """Count the answers."""
        self._frames.feed(data)
        while (frame := self._frames.next_frame()) is not None:
            command = decode_command(frame)
            if command.is_response:  # not what members are told of
                self.codes[command.code] += 1

    def writelines(self, pieces: Iterable[bytes]) -> None:
        """The same for answers in pieces."""
        self.write(b"".join(pieces))


class MeasuredBroker:
    """A broker, and clients of it without sockets."""

    def __init__(self, directory: Path) -> None:
        """The directory is for its store; it must be ended by `shutdown`."""
        settings = [f"storePathRootDir={directory}", "listenPort=0", "flushDiskType=ASYNC_FLUSH"]
        self._config = load_config(None, [*settings, "maxTopics=20000"])
        self._loop = uvloop.new_event_loop()
        self.controller = BrokerController(self._config)
        self._loop.run_until_complete(self.controller.start())
        self._turn: LoopTurn = self.controller.turn
        while not chunks.are_loaded():  # else the first case would be the one to wait for that
            time.sleep(_LOOK_SECONDS)
        gc.collect()
        gc.freeze()  # a full collection takes as long as a turn, whatever is done: it is not measured here

    def new_connection(self) -> ClientConnection:
        """The broker's end of one more client."""
        processors = self.controller.processors
        return ClientConnection(
            self._loop,
            self._config.server,
            cast("ConnectionTable", _Table()),
            processors.dispatch,
            self._turn,
            processors.end_turn,
        )

    def gone(self, client: Client) -> None:
        """The client closes its connection."""
        client.connection.connection_lost(None)
        self.controller.hold_service.forget(client.connection)
        self.controller.processors.client_has_gone(client.connection)

    def aside(self, job: Callable[[], None], then: Callable[[BaseException | None], None]) -> None:
        """Have something done by the thread that keeps house."""
        self.controller._housekeeping.run_aside(job, then)  # nobody else asks for it

    def sweep_holds(self) -> None:
        """What is done every five seconds."""
        self.controller._housekeeping._sweep_holds(self.controller.hold_service)  # likewise

    def send(self, client: Client, requests: Sequence[RemotingCommand]) -> None:
        """Let requests arrive in one piece, and wait until all are answered."""
        self.longest_turn(client, requests)

    def longest_turn(
        self,
        client: Client | None = None,
        requests: Sequence[RemotingCommand] = (),
        *,
        act: Callable[[], object] = lambda: None,
        until: Callable[[], object] = lambda: True,
    ) -> Gap:
        """Let requests arrive, or do something else; wait for the answers, and until something is so."""
        return self._loop.run_until_complete(self._longest_turn(client, requests, act, until))

    async def _longest_turn(
        self,
        client: Client | None,
        requests: Sequence[RemotingCommand],
        act: Callable[[], object],
        until: Callable[[], object],
    ) -> Gap:
        turns: list[tuple[float, float]] = []
        heart = asyncio.ensure_future(_beat(turns))
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
        return Gap(max(cpu for cpu, _ in turns) * 1e3, max(wall for _, wall in turns) * 1e3, whole * 1e3)

    def shutdown(self) -> None:
        """Stop in order."""
        gc.unfreeze()
        self._loop.run_until_complete(self.controller.stop())
        self._loop.close()


class _Table:
    """A server that has other things to do."""

    answer_bytes_max = 1 << 23

    def __getattr__(self, _: str) -> Any:
        return lambda *_: None


async def _beat(turns: list[tuple[float, float]]) -> None:
    """Note what each turn of the loop takes."""
    while True:
        cpu, wall = time.thread_time(), time.perf_counter()
        await asyncio.sleep(0)
        turns.append((time.thread_time() - cpu, time.perf_counter() - wall))
