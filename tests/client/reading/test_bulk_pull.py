"""Bulk pulls: prefetched chunks, filters, reconnects; no offset is lost or repeated."""

import itertools
from concurrent.futures import Future

import pytest
from support.servers.fake_servers import FakeServer, answering

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.errors import ConnectionClosed, OffsetMoved, ProtocolError
from rmq_spark.client.message import Message, decode_messages
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.reading.bulk_pull import BulkPull, PullRules
from rmq_spark.client.reading.readable_chunks import readable_chunks
from rmq_spark.client.results import PullResult, PullStatus
from rmq_spark.client.transport.remoting_client import RemotingClient
from rmq_spark.wire.message.record import StoredMessage, encode_record
from rmq_spark.wire.message_queue import MessageQueue

QUEUE = MessageQueue("T", "broker-a", 0)
QUICK = PullRules(wait_ms=50)
COUNT = 500


@pytest.fixture(params=["our broker", "as RocketMQ's", "who waits reads"])
def api(request):
    extensions = {"extensions": frozenset()} if request.param == "as RocketMQ's" else {}
    connections = RemotingClient(reads_itself=request.param == "who waits reads", **extensions)
    yield BrokerApi(connections)
    connections.shutdown()


@pytest.fixture
def address(running_broker):
    with Producer("P", running_broker.address) as producer:
        producer.send(Message("T", b"0" * 100, "tag0"), lambda queues: queues[0])
        producer.instance.routes.refresh("T")
        for n in range(1, COUNT):
            producer.send_one_way(Message("T", b"%d" % n * 100, f"tag{n % 10}"), QUEUE)
        assert producer.send(Message("T", b"end"), QUEUE).queue_offset == COUNT
    return running_broker.address


def offsets(chunks):
    return [m.queue_offset for chunk in chunks for m in decode_messages(chunk.records, "broker-a")]


def test_bulk_pull_with_a_byte_limit_asks_for_the_rest(api, address):
    chunks = list(BulkPull(api, address, "G", QUEUE, 0, COUNT, PullRules(chunk_bytes=3_000)))
    assert offsets(chunks) == list(range(COUNT))


class AskedApi(BrokerApi):
    """Records the requests that it gets."""

    def __init__(self, connections):
        super().__init__(connections)
        self.asked = []

    def pull_async(self, address, header, *rest, **more):
        self.asked.append((header.queue_offset, header.max_msg_nums))
        return super().pull_async(address, header, *rest, **more)


def test_bulk_pull_learns_the_messages_per_chunk_from_the_first_one(address, connections):
    with Producer("P", address) as producer:
        for _ in range(40):
            producer.send_one_way(Message("T", b"x" * 200), QUEUE)
        producer.send(Message("T", b"x" * 200), QUEUE)
    asked_api = AskedApi(connections)
    pull = iter(
        BulkPull(
            asked_api, address, "G", QUEUE, COUNT + 1, COUNT + 41, PullRules(chunk_bytes=3_000)
        )
    )
    size = int(next(pull).sizes[0])
    full = 3_000 // size
    assert 5 < full < 15
    # One request for all chunks: only the answers say how many records each has.
    assert asked_api.asked == [
        (COUNT + 1, 40),
        (COUNT + 1 + full, full),
        (COUNT + 1 + 2 * full, full),
    ]
    assert offsets(pull) == list(range(COUNT + 1 + full, COUNT + 41))
    starts = [start for start, _ in asked_api.asked]
    assert starts == sorted(set(starts))
    assert all(count <= full for _, count in asked_api.asked[1:])


def test_bulk_pull_keeps_one_chunk_ahead(address, connections):
    asked_api = AskedApi(connections)
    pull = BulkPull(asked_api, address, "G", QUEUE, 0, COUNT, PullRules(chunk_bytes=3_000))
    for chunk in pull:
        ahead = [start for start, _ in asked_api.asked if start >= chunk.next_offset]
        assert 1 <= len(ahead) <= 2 or chunk.next_offset == COUNT


class FailingApi(BrokerApi):
    """A connection that fails once."""

    def __init__(self, connections, fails_at):
        super().__init__(connections)
        self._left = fails_at

    def pull_async(self, address, header, *rest, **more):
        self._left -= 1
        if not self._left:
            raise ConnectionClosed(address, "gone")
        return super().pull_async(address, header, *rest, **more)


@pytest.mark.parametrize(
    "extensions", [{}, {"extensions": frozenset()}], ids=["chunks", "as RocketMQ's"]
)
@pytest.mark.parametrize("subscription", ["*", "tag3"])
@pytest.mark.parametrize("fails_at", range(1, 9))
def test_bulk_pull_keeps_received_chunks_if_a_later_request_fails(
    address, extensions, subscription, fails_at
):
    connections = RemotingClient(**extensions)
    rules = PullRules(subscription=subscription, chunk_bytes=3_000, tries=2)
    pull = BulkPull(FailingApi(connections, fails_at), address, "G", QUEUE, 0, COUNT, rules)
    found = offsets(pull)
    connections.shutdown()
    assert found == [n for n in range(COUNT) if subscription == "*" or n % 10 == 3]


def test_bulk_pull_with_filter_that_matches_nothing_is_empty(api, address):
    assert list(BulkPull(api, address, "G", QUEUE, 0, COUNT, PullRules(subscription="none"))) == []


def test_bulk_pull_returns_record_sizes_if_broker_sends_them(address, connections):
    (chunk,) = BulkPull(BrokerApi(connections), address, "G", QUEUE, 0, COUNT)
    assert len(chunk.sizes) == COUNT
    assert sum(chunk.sizes) == len(chunk.records)


def test_bulk_pull_of_offsets_out_of_range_raises_offset_moved_with_next_offset(api, address):
    with pytest.raises(OffsetMoved) as raised:
        list(BulkPull(api, address, "G", QUEUE, COUNT + 5, COUNT + 9, QUICK))
    assert (raised.value.queue_offset, raised.value.next_begin_offset) == (COUNT + 5, COUNT + 1)
    pull = iter(BulkPull(api, address, "G", QUEUE, COUNT, COUNT + 9, QUICK))
    assert offsets([next(pull)]) == [COUNT]
    with pytest.raises(OffsetMoved, match=r"does not hold offset 501.*from 0 to before 501"):
        next(pull)


def test_bulk_pull_reconnects_while_it_waits(address, connections):
    class FailsOnce(BrokerApi):
        has_failed = False

        def pull_async(self, address, header, *rest, **more):
            if header.suspend_timeout_millis and not self.has_failed:
                self.has_failed = True
                raise ConnectionClosed(address, "gone")
            return super().pull_async(address, header, *rest, **more)

    api = FailsOnce(connections)
    with pytest.raises(OffsetMoved):
        list(BulkPull(api, address, "G", QUEUE, COUNT, COUNT + 2, QUICK))
    assert api.has_failed


class Broker:
    """A broker with a queue of ten messages, which serves two at a time."""

    def __init__(self, next_of=lambda offset: offset + 2, deaths=0, dies=lambda _: False):
        self.deaths = deaths
        self._dies, self._numbers = dies, itertools.count()
        self.asked = []
        self._next_of = next_of

    def __call__(self, request):
        if request.code != 11:
            return None
        if self.deaths or self._dies(next(self._numbers)):
            self.deaths -= bool(self.deaths)
            raise OSError("gone")
        start = int(request.ext_fields["queueOffset"])
        wanted = int(request.ext_fields["maxMsgNums"])
        self.asked.append((start, wanted))
        end = min(self._next_of(start), start + wanted)
        body = b"".join(
            encode_record(StoredMessage(topic="T", body=b"x", queue_offset=n))
            for n in range(start, max(end, start + 1))
        )
        fields = {
            "suggestWhichBrokerId": 0,
            "nextBeginOffset": end,
            "minOffset": 0,
            "maxOffset": 10,
        }
        return request.respond(0, None, {name: str(value) for name, value in fields.items()}, body)


@pytest.fixture
def plain():
    connections = RemotingClient()
    yield BrokerApi(connections)
    connections.shutdown()


def test_bulk_pull_learns_the_brokers_cap_and_asks_for_no_offset_twice(plain):
    broker = Broker()
    with FakeServer(answering(broker)) as server:
        assert offsets(BulkPull(plain, server.address, "G", QUEUE, 0, 10)) == list(range(10))
    assert sorted(start for start, _ in broker.asked) == [0, 2, 4, 6, 8]


def test_bulk_pull_seldom_probes_beyond_a_constant_broker_cap(plain):
    broker = Broker(lambda offset: offset + 32)
    with FakeServer(answering(broker)) as server:
        assert offsets(BulkPull(plain, server.address, "G", QUEUE, 0, 6_400)) == list(range(6_400))
    assert 200 <= len(broker.asked) < 230


def test_bulk_pull_reconnects_after_a_closed_connection(plain):
    broker = Broker(deaths=2)
    with FakeServer(answering(broker)) as server:
        assert offsets(BulkPull(plain, server.address, "G", QUEUE, 0, 10)) == list(range(10))


def test_bulk_pull_reconnects_after_each_failure(plain):
    broker, rules = Broker(dies=lambda number: number % 2 == 0), PullRules(in_flight=1)
    with FakeServer(answering(broker)) as server:
        assert offsets(BulkPull(plain, server.address, "G", QUEUE, 0, 10, rules)) == list(range(10))
    assert len(broker.asked) == 5


def test_bulk_pull_raises_after_repeated_failures(plain):
    with FakeServer(answering(Broker(deaths=99))) as server, pytest.raises(ConnectionClosed):
        list(BulkPull(plain, server.address, "G", QUEUE, 0, 10))


def test_bulk_pull_without_progress_raises(plain):
    broker = Broker(next_of=lambda offset: offset)
    with (
        FakeServer(answering(broker)) as server,
        pytest.raises(ProtocolError, match="resumes at 0"),
    ):
        list(BulkPull(plain, server.address, "G", QUEUE, 0, 10))


class QueueWithHoles:
    """A RocketMQ queue in which offsets are missing, after compaction or the loss of a file."""

    def __init__(self, there):
        self._there = sorted(there)

    def supports_chunks(self, _):
        return False

    def pull_async(self, _, header, *__, **___):
        found = [n for n in self._there if n >= header.queue_offset][: min(header.max_msg_nums, 32)]
        records = b"".join(encode_record(StoredMessage("T", b"b", queue_offset=n)) for n in found)
        answer = Future()
        end = self._there[-1] + 1
        answer.set_result(PullResult(PullStatus.FOUND, found[-1] + 1, 0, end, 0, records))
        return answer


@pytest.mark.parametrize(
    "there", [range(0, 600, 2), range(200, 500), [*range(40), *range(41, 300), *range(900, 1000)]]
)
def test_bulk_pull_over_holes_returns_each_message_once(there):
    chunks = BulkPull(QueueWithHoles(there), "127.0.0.1:1", "G", QUEUE, 0, max(there) + 1)
    assert offsets(chunks) == list(there)


class QueueThatLosesItsBeginning:
    """A broker whose log loses the middle of a filtered queue during the read."""

    def supports_chunks(self, _):
        return False

    def pull_async(self, _, header, *__, **___):
        answer = Future()
        if header.queue_offset:
            answer.set_result(PullResult(PullStatus.NO_MATCHED_MSG, 16, 16, 20, 0, b""))
        else:
            records = encode_record(StoredMessage("T", b"b", queue_offset=6))
            answer.set_result(PullResult(PullStatus.FOUND, 8, 0, 20, 0, records))
        return answer


def test_bulk_pull_does_not_take_deleted_messages_for_filtered_ones():
    rules = PullRules(subscription="blue")
    chunks = iter(BulkPull(QueueThatLosesItsBeginning(), "127.0.0.1:1", "G", QUEUE, 0, 20, rules))
    assert offsets([next(chunks)]) == [6]
    with pytest.raises(OffsetMoved) as moved:
        next(chunks)
    assert (moved.value.queue_offset, moved.value.min_offset) == (8, 16)


class FilteringBroker:
    """A broker that answers each pull with the records of these offsets, up to offset 8."""

    def __init__(self, records):
        self._records = records

    def supports_chunks(self, _):
        return False

    def pull_async(self, *_, **__):
        answer = Future()
        answer.set_result(PullResult(PullStatus.FOUND, 8, 0, 20, 0, self._records))
        return answer


def records_of(*queue_offsets):
    return b"".join(encode_record(StoredMessage("T", b"b", queue_offset=n)) for n in queue_offsets)


@pytest.mark.parametrize(
    ("records", "kept"),
    [
        (records_of(1, 4, 5, 7), [1, 4]),
        (records_of(5, 7), []),
        (records_of(1, 5) + b"\0\0\0\3", [1]),
        (records_of(5, 1, 7), [5, 1]),
        (records_of(7, 4, 5, 1), [7, 4, 5, 1]),
    ],
    ids=["ordered", "all past the end", "damaged past the end", "swapped", "shuffled"],
)
def test_filtered_bulk_pull_drops_no_record_before_its_end(records, kept):
    """An unordered answer is kept whole, so that it can be refused as a whole."""
    rules = PullRules(subscription="blue")
    chunks = list(BulkPull(FilteringBroker(records), "127.0.0.1:1", "G", QUEUE, 0, 5, rules))
    assert offsets(chunks) == kept
    readable = list(readable_chunks(chunks, QUEUE, 0, is_filtered=True))
    assert [each.fault is None for each in readable] == ([kept == sorted(kept)] if kept else [])


def test_filtered_bulk_pull_yields_a_damaged_record_before_its_end():
    """The reader reports the damaged record; the pull does not end as if there were none."""
    records = records_of(1) + records_of(3)[:-9] + records_of(4, 7)
    rules = PullRules(subscription="blue")
    chunks = BulkPull(FilteringBroker(records), "127.0.0.1:1", "G", QUEUE, 0, 5, rules)
    [found] = readable_chunks(chunks, QUEUE, 0, is_filtered=True)
    assert found.records.head["queue_offset"].tolist() == [1]
    assert (found.next_offset, found.fault is None) == (3, False)
