"""Two brokers that get the same bytes at the same times: one with fast paths, one without.

Their output is compared byte by byte. The clients have no sockets: the test decides which bytes
arrive in one piece, and nothing is random. The message clock and the loop's clock, by which sends
time out or are refused as busy, stand still until the test moves them, so that a busy machine
delays neither twin.
"""

import asyncio
import time
from collections import Counter, defaultdict
from unittest.mock import patch

from support.brokers.in_process import MovedLoop, small_broker
from support.disks.faulty_disk import ManualClock

from rmq_spark.wire.remoting.command import decode_command
from rmq_spark.wire.remoting.framing import FrameReader
from rocketpoll.broker.controller import BrokerController
from rocketpoll.broker.runtime import housekeeping
from rocketpoll.broker.server.client_connection import ClientConnection
from rocketpoll.broker.state.broker_stats import Durations

PORT = 10_911
_PATIENCE_SECONDS = 20
_NEVER_MS = 86_400_000
_NO_STORE_JOBS = {"checkpointIntervalMills": _NEVER_MS, "cleanResourceInterval": _NEVER_MS}
"""Settings without periodic work on the store: threads may not run while the test moves the clock,
because file names contain the time. A checkpoint makes the index catch up."""


class Wire:
    """A connection without a socket that keeps what is written."""

    def __init__(self, peer_port):
        self._names = {"peername": ("10.0.0.9", peer_port), "sockname": ("10.0.0.1", PORT)}
        self._reader = FrameReader()
        self._answers = []
        self.is_full = False
        self.protocol = None
        self.reads = True

    def get_extra_info(self, name):
        return self if name == "socket" else self._names[name]

    def setsockopt(self, *_):
        pass

    def set_write_buffer_limits(self, _):
        pass

    def fileno(self):
        return -1

    def get_write_buffer_size(self):
        return 0

    def write(self, data):
        self._reader.feed(bytes(data))
        if self.is_full:
            self.protocol.pause_writing()

    def writelines(self, pieces):
        self.write(b"".join(pieces))

    def pause_reading(self):
        self.reads = False

    def resume_reading(self):
        self.reads = True

    def close(self):
        pass

    abort = close

    def answers(self):
        while (frame := self._reader.next_frame()) is not None:
            self._answers.append(decode_command(frame)._replace(body=bytes(frame.body)))
        return self._answers


class CountedDurations(Durations):
    """Durations of operations that are never reset."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def add(self, took_ms, count=1):
        self.counts[took_ms] += count
        super().add(took_ms, count)


class Twin:
    """A broker and its recorded output."""

    def __init__(self, root, loop, clock, *, by_fast_path, disk=None, **settings):
        self._loop = loop
        self.root = root
        self.disk = disk
        config = small_broker(root, **{**_NO_STORE_JOBS, **settings})
        self.controller = BrokerController(config, disk, clock)
        # `settle` saves instead
        with patch.object(housekeeping, "_CONFIGURATION_SAVE_MS", _NEVER_MS):
            loop.run_until_complete(self.controller.start())
        self.controller.port = PORT
        self.processors = self.controller.processors
        self._by_fast_path = by_fast_path
        self._wires = {}
        self.arrivals = defaultdict(list)
        self._tell = self.controller.hold_service.notify_message_arriving
        self.controller.hold_service.notify_message_arriving = self._arrives
        self.got = defaultdict(lambda: [0, 0, 0])
        """Numbers of messages, bytes and pulls, by topic and group."""
        self._got = self.processors.stats.record_get
        self.processors.stats.record_get = self._counts_pull
        self.pulled = 0
        """Number of pulls that took the fast path."""
        self._count_pulls()
        self._puts = defaultdict(lambda: [0, 0, 0])
        self._put = self.processors.stats.record_put
        self.processors.stats.record_put = self._counts
        self.processors.stats.put_latency = CountedDurations()
        self.processors.acknowledger._record_wait = self.processors.stats.put_latency.add
        self.ran = []
        """Number of sends in each batch of the fast path."""
        self.alone = 0
        """Number of single sends on the fast path."""
        self._count_runs()
        self._deferred = []
        self._run_in_thread = self.processors.pending_sends._run_in_thread
        self.processors.pending_sends._run_in_thread = lambda *given: self._deferred.append(given)

    def _arrives(self, topic, queue_id, max_offset, tags_codes):
        self.arrivals[topic, queue_id] += tags_codes
        self._tell(topic, queue_id, max_offset, tags_codes)

    def _counts(self, topic, count, byte_count, *, calls=1):
        own = self._puts[topic]
        own[:] = own[0] + count, own[1] + byte_count, own[2] + calls
        self._put(topic, count, byte_count, calls=calls)

    def _counts_pull(self, topic, group, count, byte_count, took_ms):
        own = self.got[topic, group]
        own[:] = own[0] + count, own[1] + byte_count, own[2] + 1
        self._got(topic, group, count, byte_count, took_ms)

    def _count_pulls(self):
        fast_path = self.processors.fast_pull
        take = fast_path.process

        def counted(connection, data, start):
            end = take(connection, data, start)
            self.pulled += end > start
            return end

        fast_path.process = counted

    def _count_runs(self):
        put_run = self.controller.store.put_run

        def counted(run):
            result = put_run(run)
            if result is not None:
                self.ran.append(len(run.sizes))
            return result

        self.controller.store.put_run = counted
        fast_path = self.processors.sends.fast_path
        put_one = fast_path._put_one

        def counted_alone(*given):
            self.alone += 1
            put_one(*given)

        fast_path._put_one = counted_alone

    def connection(self, number):
        """Return a client's connection; create it on first use."""
        if number not in self._wires:
            wire = self._wires[number] = Wire(40_000 + number)
            wire.protocol = ClientConnection(
                self._loop,
                self.controller.server.limits,
                self.controller.server,
                self.processors.dispatch,
                self.controller.scheduler,
                self.processors.end_turn,
                self.processors.fast_paths if self._by_fast_path else (),
            )
            wire.protocol.connection_made(wire)
        return self._wires[number].protocol

    def wire(self, number):
        self.connection(number)
        return self._wires[number]

    def receive(self, number, data):
        """Deliver one piece of input in its own turn of the loop."""
        self.connection(number).data_received(data)
        self._loop.run_until_complete(asyncio.sleep(0))

    def settle(self, *asked):
        """Wait until all input is processed and all requests are answered.

        Topics are saved only here, never while input arrives: otherwise sends that wait for a topic
        would be stored at a random position.
        """
        self.wait_until(self._is_at_rest)
        while self._deferred:
            self._run_in_thread(*self._deferred.pop(0))
            self.wait_until(lambda: self._deferred or self._is_quiet())
        self.wait_until(lambda: self._is_quiet() and self._has_answered(*asked))

    def wait_for_jobs(self):
        """Wait until no periodic job is running."""
        self._loop.run_until_complete(self.controller.housekeeping.wait_idle())

    def wait_until(self, condition):
        """Wait until a condition holds for several turns."""
        self._loop.run_until_complete(self._wait_in_slices(condition))

    async def _wait_in_slices(self, condition):
        __tracebackhide__ = True
        ends = time.monotonic() + _PATIENCE_SECONDS
        quiet = 0
        while quiet < 5:
            quiet = quiet + 1 if condition() else 0
            if not quiet:  # other threads are working; no timer of this loop fires by itself
                await self._loop.run_in_executor(None, time.sleep, 0.0005)
            await asyncio.sleep(0)
            assert time.monotonic() < ends, "it does not come to rest"

    def _has_answered(self, number=0, opaque=None):
        return opaque is None or any(each.opaque == opaque for each in self.wire(number).answers())

    def _is_quiet(self):
        return self._is_at_rest() and not self.processors.pending_sends._is_saving

    def _is_at_rest(self):
        """Return whether only sends that wait for their topics are left."""
        state = self.controller.store.state()
        is_carried = state.failure is not None or state.reput_from_offset == state.written_offset
        acknowledger = self.processors.acknowledger
        waits = acknowledger.queue()[0] or acknowledger._results
        return is_carried and not waits and all(wire.reads for wire in self._wires.values())

    def answers(self, number):
        """Return all responses to a client, by opaque."""
        return sorted(self.wire(number).answers(), key=lambda answer: answer.opaque)

    def said_to(self, number):
        """Return all responses to a client, with the directory name removed."""
        return [
            answer._replace(remark=(answer.remark or "").replace(str(self.root), ""))
            for answer in self.answers(number)
        ]

    def stored(self):
        """Return the files of commit log, consume queues and index."""
        self.controller.store.save_checkpoint()
        return {
            path.relative_to(self.root): path.read_bytes().rstrip(b"\0")
            for directory in ("commitlog", "consumequeue", "index")
            for path in sorted((self.root / directory).rglob("*"))
            if path.is_file()
        }

    def found_by(self, topic, key):
        """Return the records that the index finds."""
        return list(map(bytes, self.controller.store.query_message(topic, key, 64, 0, 1 << 60)))

    def counted(self):
        stats = self.processors.stats
        took = stats.put_latency.counts
        access = self.controller.access
        refused = access.failures, access.denials
        return stats.put_messages, stats.put_bytes, stats.put_failures, took, self._puts, refused

    def shutdown(self):
        for wire in self._wires.values():
            wire.protocol.connection_lost(None)
        self._loop.run_until_complete(self.controller.stop())


class Twins:
    """Both brokers, on one loop with a clock that stands still."""

    def __init__(self, root, disks=(None, None), **settings):
        self.loop = MovedLoop()
        self.loop.stand_still()
        self.clock = ManualClock()
        self.fast_path, self.usual = self.both = [
            Twin(
                root / name, self.loop, self.clock, by_fast_path=by_fast_path, disk=disk, **settings
            )
            for name, by_fast_path, disk in zip(
                ("fast_path", "usual"), (True, False), disks, strict=True
            )
        ]

    def receive(self, number, *pieces):
        for twin in self.both:
            for piece in pieces:
                twin.receive(number, piece)

    def pass_ms(self, ms):
        """Move the clock, and run the timers that are due before more input arrives."""
        self.clock.now_ms += ms
        self.loop.move(ms / 1000)
        for _ in range(3):
            self.loop.run_until_complete(asyncio.sleep(0))

    def settle(self, *asked):
        for twin in self.both:
            twin.settle(*asked)

    def shutdown(self):
        for twin in self.both:
            twin.shutdown()
        self.loop.close()


def begun(begin):
    """Yield a function that starts twins with ``begin``; stop them afterwards."""
    stories = []

    def begin_one(*disks, **changed):
        stories.append(begin(*disks, **changed))
        return stories[-1]

    yield begin_one
    for story in stories:
        story.twins.shutdown()
