"""Many bandwidth-limited readers of chunks next to a producer.

Each reads as Spark's tasks do: it requests as much as possible, reads the response to its end, and
requests again. A client that keeps reading must get its responses, and must not cost a producer a
send. On a machine too slow for all links at full speed, the readers are slower, but they still read
all the time, and as much stays unread.
"""

import asyncio
import socket
import threading
import time
from collections import Counter
from contextlib import ExitStack

import pytest
from support.brokers.processes import BrokerProcess
from support.clients.remoting_clients import BrokerClients, pull_request, send_request
from support.suite.selection import count

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.extensions import Extension, ExtensionsHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.command import RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import FrameReader

pytestmark = pytest.mark.deep

MB = 1_000_000
READERS = 32
LINK_BYTES_A_SECOND = 20 * MB
SECONDS = count("ROCKETPOLL_PACED_SECONDS", 5, wide=20)
SENDS_MIN = 25
"""Minimum number of sends, at any speed of the machine; none may be refused."""
ASKED_BYTES = 8 << 20
STORED_BYTES = 3 * ASKED_BYTES
BODY = "x" * 2_000
AT_ONCE = 1 << 17


class PacedReader:
    """A client with a bandwidth limit, in a thread; counts the bytes that it has read."""

    def __init__(self, port, stops):
        self.codes = Counter()
        self.bytes_read = 0
        self._stops = stops
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._frame_reader = FrameReader(1 << 30)
        header = ExtensionsHeader.of(frozenset(Extension))
        code = RequestCode.EXTENSIONS
        self._call(RemotingCommand(code, ext_fields=HEADERS[code].request.encode(header)))
        self._thread = threading.Thread(target=self._read, daemon=True)

    def start(self):
        self._thread.start()

    def close(self):
        """Wait until the current response is complete."""
        self._thread.join(60)
        self._socket.close()

    def _read(self):
        asks = pull_request(0, code=RequestCode.PULL_CHUNK, count=1 << 20, bytes_max=ASKED_BYTES)
        while not self._stops.is_set():
            self.codes[self._call(asks).code] += 1

    def _call(self, request):
        self._socket.sendall(request.encode())
        free_at = time.monotonic()
        while (frame := self._frame_reader.next_frame()) is None:
            data = self._socket.recv(AT_ONCE)
            assert data, "the broker has closed the connection"
            self._frame_reader.feed(data)
            self.bytes_read += len(data)
            free_at += len(data) / LINK_BYTES_A_SECOND
            time.sleep(max(free_at - time.monotonic(), 0))
        return decode_command(frame)


async def _fill(producer):
    for _ in range(STORED_BYTES // len(BODY) // 100):
        producer.send(b"".join(send_request(BODY, opaque=n).encode() for n in range(100)))
        for _ in range(100):
            assert (await producer.receive()).code == 0


async def _sent_beside(port, readers):
    """Return the codes and the times of a producer's sends while the readers read."""
    codes, took = Counter(), []
    async with BrokerClients(port) as clients:
        producer = await clients.connect()
        await _fill(producer)
        readers.start()
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends or len(took) < SENDS_MIN:
            began = time.monotonic()
            codes[(await producer.call(send_request("beside readers", topic="Other"))).code] += 1
            took.append(time.monotonic() - began)
    return codes, sorted(took)


class Readers:
    """All readers, from their start on."""

    def __init__(self, port, stack):
        self.readers = []
        self._port = port
        self._stack = stack
        self._stops = threading.Event()
        stack.callback(self.stop)

    def start(self):
        for _ in range(READERS):
            self.readers.append(PacedReader(self._port, self._stops))
            self.readers[-1].start()

    def stop(self):
        self._stops.set()
        for reader in self.readers:
            reader.close()


@pytest.mark.parametrize("flush_type", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_sends_are_not_refused_beside_paced_readers(tmp_path, flush_type):
    large = {
        "mappedFileSizeCommitLog": str(64 << 20),
        "mappedFileSizeConsumeQueue": str(6_000_000),
        "maxMessageSize": str(4 << 20),
    }
    with BrokerProcess(tmp_path, flushDiskType=flush_type, **large) as broker, ExitStack() as stack:
        readers = Readers(broker.port, stack)
        began = time.monotonic()
        codes, took = asyncio.run(_sent_beside(broker.port, readers))
        rate = (
            sum(reader.bytes_read for reader in readers.readers) / (time.monotonic() - began) / MB
        )
        memory = broker.rss_bytes() / MB
        readers.stop()
        print(  # noqa: T201  # figures for docs/adr/0024
            f"{flush_type}: {rate:.0f} of {READERS * LINK_BYTES_A_SECOND / MB:.0f} MB/s; "
            f"{codes.total()} sends, 1 in 100 of over {1_000 * took[len(took) * 99 // 100]:.0f} ms,"
            f" {dict(codes)}; {memory:.0f} MB of memory"
        )
        assert codes == {0: codes.total()}
        for reader in readers.readers:
            assert reader.codes == {0: reader.codes.total()}
            assert reader.codes.total()
