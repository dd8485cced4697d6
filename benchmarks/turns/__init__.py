"""Benchmark of a broker's own work in a turn of its loop, without sockets.

The speeds of `benchmarks.broker` include broker, client and kernel, and vary with the load of the
machine. This benchmark measures the broker's own part, from bytes to bytes: frames, headers, store,
reput, responses.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import uvloop

from benchmarks.broker.requests import encode_request
from benchmarks.harness import Case
from benchmarks.traffic import VariedTraffic
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.codes import LanguageCode, PullSysFlag, RequestCode
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers.members import PullMessageRequestHeader, SendMessageRequestHeader
from rmq_spark.wire.message.message_batch import BatchedMessage, encode_batch
from rmq_spark.wire.message.properties import encode_properties
from rocketpoll.broker.controller import BrokerController
from rocketpoll.broker.server.client_connection import ClientConnection, ConnectionTable
from rocketpoll.broker.server.fair_scheduler import FairScheduler
from rocketpoll.broker.server.limits import ConcurrencyLimit, SendBufferLimits
from rocketpoll.broker.settings.settings import load_config
from rocketpoll.broker.store.bulk import bulk_tools

LIBRARIES = ("orjson", "numpy", "uvloop")
BATCH = 100
BODY_BYTES = 100
_BODY = bytes(BODY_BYTES)
_QUEUES = 4
_TURNS = 40
_SENDS_PER_TURN = (1, 20, 200)
_PULL_SIZES = (10, 32)
_FILLED = "filled"
_numbers = itertools.count(1)

_VARIED = "varied"
_VARIED_FILLED = "varied-filled"
_TAGGED = "tagged"


class Turns:
    """A broker on a loop of its own, and one client of it that has no socket."""

    def __init__(self, directory: Path, more_settings: Sequence[str] = ()) -> None:
        """Start a broker whose store is in ``directory``; `shutdown` must end it."""
        settings = [f"storePathRootDir={directory}", "listenPort=0", "flushDiskType=ASYNC_FLUSH"]
        config = load_config(None, [*settings, *more_settings])
        bulk_tools.start_loading().result()  # a young broker would answer batches in later turns
        self._loop = uvloop.new_event_loop()
        self._controller = BrokerController(config)
        self._loop.run_until_complete(self._controller.start())
        self._limits = config.server
        self._turn = FairScheduler(self._loop)
        self._clients: list[tuple[ClientConnection, _Transport]] = []
        self.connect()

    def connect(self, clients: int = 1, extensions: frozenset[Extension] = frozenset()) -> None:
        """Switch to this number of clients, which have agreed on these extensions."""
        processors = self._controller.processors
        while len(self._clients) < clients:
            connection = ClientConnection(
                self._loop,
                self._limits,
                cast("ConnectionTable[ClientConnection]", _Table()),
                processors.dispatch,
                self._turn,
                processors.end_turn,
                processors.fast_paths,
            )
            transport = _Transport()
            connection.connection_made(cast("asyncio.BaseTransport", transport))
            self._clients.append((connection, transport))
        for connection, _ in self._clients:
            connection.extensions = extensions

    def make_topic(self, topic: str, queues: int) -> None:
        """Create a topic with this number of queues."""
        topics = self._controller.tables.topics
        config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
        topics.put(config)
        topics.save()

    def play(self, turns: Iterable[bytes], clients: int = 1) -> int:
        """Deliver these pieces, each in a turn of its own, from this number of clients in turn.

        Return the number of response bytes.
        """
        chosen = self._clients[:clients]
        for _, transport in chosen:
            transport.byte_count = 0
        self._loop.run_until_complete(self._play(turns, itertools.cycle(chosen)))
        return sum(transport.byte_count for _, transport in chosen)

    async def _play(
        self, turns: Iterable[bytes], chosen: Iterable[tuple[ClientConnection, _Transport]]
    ) -> None:
        for data, (connection, transport) in zip(turns, chosen, strict=False):
            connection.data_received(data)
            await asyncio.sleep(0)
            while not transport.is_read_from:  # noqa: ASYNC110  # more than a turn has time for
                await asyncio.sleep(0)

    def shutdown(self) -> None:
        """Stop the broker in order, and close its loop."""
        for connection, _ in self._clients:
            connection.connection_lost(None)
        self._loop.run_until_complete(self._controller.stop())
        self._loop.close()


class _Table:
    """A server stub without other work."""

    def __init__(self) -> None:
        self.concurrency_limit = ConcurrencyLimit()
        self.send_buffers = SendBufferLimits[Any](1 << 26)

    def register(self, _: object) -> bool:
        """Accept every connection."""
        return True

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None


class _Transport:
    """A transport that accepts and counts all that is written."""

    def __init__(self) -> None:
        self.byte_count = 0
        self.is_read_from = True

    def get_extra_info(self, name: str) -> Any:
        return self if name == "socket" else ("127.0.0.1", 5_555)

    def setsockopt(self, *_: int) -> None:
        """Do nothing, in place of a socket's method."""

    def set_write_buffer_limits(self, _: int) -> None:
        """Do nothing, in place of a transport's method."""

    def pause_reading(self) -> None:
        self.is_read_from = False

    def resume_reading(self) -> None:
        self.is_read_from = True

    def write(self, data: bytes) -> None:
        self.byte_count += len(data)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.byte_count += sum(map(len, pieces))


def turn_cases(turns: Turns) -> list[Case]:
    """Return the cases, each of a few dozen turns."""
    turns.play([batch(_FILLED, 0) for _ in range(_QUEUES * 5)])
    return [
        *(_send_case(turns, count) for count in _SENDS_PER_TURN),
        _case(
            turns, f"a batch of {BATCH}", [batch("batches") for _ in range(_TURNS)], BATCH * _TURNS
        ),
        _tagged_batch_case(turns),
        _varied_case(turns, f"{_SENDS_PER_TURN[1]} varied sends", _SENDS_PER_TURN[1]),
        _varied_batch_case(turns),
        *(_pull_case(turns, size) for size in _PULL_SIZES),
        _varied_pull_case(turns, _PULL_SIZES[-1]),
    ]


def _case(turns: Turns, variant: str, pieces: Sequence[bytes], messages: int) -> Case:
    turns.play(pieces)  # whose topic is made here
    return Case("a turn of the broker", variant, lambda: turns.play(pieces), messages)


def _send_case(turns: Turns, count: int) -> Case:
    pieces = [b"".join(send("singles") for _ in range(count)) for _ in range(_TURNS)]
    return _case(turns, f"{count} sends", pieces, count * _TURNS)


def _varied_case(turns: Turns, variant: str, count: int) -> Case:
    traffic = VariedRequests()
    pieces = [b"".join(traffic.send(_VARIED) for _ in range(count)) for _ in range(_TURNS)]
    return _case(turns, variant, pieces, count * _TURNS)


def _varied_batch_case(turns: Turns) -> Case:
    traffic = VariedRequests()
    pieces = [traffic.batch(_VARIED, BATCH) for _ in range(_TURNS)]
    return _case(turns, f"a varied batch of {BATCH}", pieces, BATCH * _TURNS)


def _tagged_batch_case(turns: Turns) -> Case:
    traffic = VariedRequests()
    pieces = [traffic.batch_of_one_key(_TAGGED, BATCH) for _ in range(_TURNS)]
    return _case(turns, f"a batch of {BATCH}, a tag and a key each", pieces, BATCH * _TURNS)


def _pull_case(turns: Turns, size: int) -> Case:
    pieces = [pull(_FILLED, 0, queue_offset, size) for queue_offset in range(_TURNS)]
    return _case(turns, f"a pull of {size}", pieces, size * _TURNS)


def _varied_pull_case(turns: Turns, size: int) -> Case:
    traffic = VariedRequests()
    turns.play([traffic.batch(_VARIED_FILLED, BATCH, 0)])
    pieces = [pull(_VARIED_FILLED, 0, offset, size) for offset in range(_TURNS)]
    return _case(turns, f"a varied pull of {size}", pieces, size * _TURNS)


def _properties() -> str:
    """Return properties as Java's producer gives them."""
    return f"UNIQ_KEY\x01{next(_numbers):032X}\x02WAIT\x01true"


def send(topic: str, queue_id: int | None = None) -> bytes:
    """Return a send of a small message, to one queue or to all in turn."""
    header = _send_header(topic, queue_id, _properties())
    return _encode(RequestCode.SEND_MESSAGE_V2, header, _BODY)


def batch(topic: str, queue_id: int | None = None) -> bytes:
    """Return a batch of small messages, to one queue or to all in turn."""
    messages = [BatchedMessage(_BODY, _properties()) for _ in range(BATCH)]
    return _batch_of(topic, messages, queue_id)


def _batch_of(topic: str, messages: Sequence[BatchedMessage], queue_id: int | None = None) -> bytes:
    header = _send_header(topic, queue_id, "")._replace(batch=True)
    return _encode(RequestCode.SEND_BATCH_MESSAGE, header, encode_batch(messages))


class VariedRequests:
    """Sends and batches of varied messages."""

    def __init__(self) -> None:
        self._traffic = VariedTraffic()

    def send(self, topic: str) -> bytes:
        """Return a send of one message."""
        header = _send_header(topic, None, self._properties())
        return _encode(RequestCode.SEND_MESSAGE_V2, header, self._traffic.body())

    def batch(self, topic: str, count: int, queue_id: int | None = None) -> bytes:
        """Return a batch of messages, to one queue or to all in turn."""
        messages = [BatchedMessage(self._traffic.body(), self._properties()) for _ in range(count)]
        return _batch_of(topic, messages, queue_id)

    def batch_of_one_key(self, topic: str, count: int) -> bytes:
        """Return a batch of small messages, each with a tag, a key and a unique key."""
        traffic = self._traffic
        properties = (
            f"KEYS\x01{traffic.keys()[0]}\x02{_properties()}\x02TAGS\x01{traffic.tag()}"
            for _ in range(count)
        )
        return _batch_of(topic, [BatchedMessage(_BODY, each) for each in properties])

    def _properties(self) -> str:
        traffic = self._traffic
        values = {"KEYS": " ".join(traffic.keys()), "TAGS": traffic.tag(), **traffic.properties()}
        return f"{encode_properties(values)}{_properties()}"


def _send_header(topic: str, queue_id: int | None, properties: str) -> SendMessageRequestHeader:
    return SendMessageRequestHeader(
        producer_group="bench",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=_QUEUES,
        queue_id=next(_numbers) % _QUEUES if queue_id is None else queue_id,
        sys_flag=0,
        born_timestamp=time.time_ns() // 1_000_000,
        flag=0,
        properties=properties,
        reconsume_times=0,
    )


def pull(
    topic: str,
    queue_id: int,
    queue_offset: int,
    size: int,
    code: RequestCode = RequestCode.PULL_MESSAGE,
) -> bytes:
    """Return a pull of so many messages, as a consumer in Java sends it."""
    header = PullMessageRequestHeader(
        consumer_group="bench",
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        max_msg_nums=size,
        sys_flag=PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=15_000,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
    )
    return _encode(code, header)


def chunk_pull(topic: str, queue_id: int, queue_offset: int, size: int) -> bytes:
    """Return a pull of a chunk, as Spark's tasks send it."""
    return pull(topic, queue_id, queue_offset, size, RequestCode.PULL_CHUNK)


def _encode(code: int, header: NamedTuple, body: bytes = b"") -> bytes:
    return encode_request(code, header, body, opaque=next(_numbers), language=LanguageCode.JAVA)
