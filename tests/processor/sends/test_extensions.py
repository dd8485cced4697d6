"""Negotiated extensions, and appends of encoded records."""

from pathlib import Path

import numpy as np
import pytest
from support.brokers.connections import FakeConnection, finished
from support.brokers.processors import SlowAcknowledger, never_parked, nobody_waits, saved_at_once
from support.stores.small_store import bodies, encoded, message, small_config

from rmq_spark.wire.chunk.sized_chunk import encode_sizes
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers.members import AppendChunkRequestHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.message.hosts import parse_host
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.processor.dispatcher import RequestDispatcher
from rocketpoll.broker.processor.extensions.extensions import (
    SUPPORTED_EXTENSIONS,
    ExtensionsProcessor,
)
from rocketpoll.broker.processor.sends.admission import TopicAdmission
from rocketpoll.broker.processor.sends.send_message import SendParts
from rocketpoll.broker.settings.config import BrokerConfig
from rocketpoll.broker.store.results import PutMessageStatus


class Room:
    def __init__(self, parts, *, is_sync=False):
        config = BrokerConfig(store=small_config(parts.root))
        self.disk = SlowAcknowledger(is_sync=is_sync)
        self.busy = None
        self.connection = FakeConnection()
        self.processor = ExtensionsProcessor(
            parts.broker(
                advertised_host=lambda _: parse_host("10.0.0.2:9876"), busy_reason=lambda: self.busy
            ),
            SendParts(
                TopicAdmission(config, parts.topics, saved_at_once, nobody_waits), None, self.disk
            ),
        )
        self._dispatch = RequestDispatcher([self.processor.handlers()], 1_024, never_parked)

    def ask(self, code, ext_fields, body=b""):
        request = RemotingCommand(code, opaque=7, ext_fields=ext_fields, body=body)
        answer = finished(self._dispatch(self.connection, request))
        return answer or (self.connection.sent.pop() if self.connection.sent else None)

    def append(self, *messages, topic="T", queue_id=0, body=None):
        records = [encoded(each) for each in messages]
        sizes = np.array([len(record) for record in records], np.int32)
        header = AppendChunkRequestHeader("P", topic, queue_id, "TBW102")
        return self.ask(
            RequestCode.APPEND_CHUNK,
            HEADERS[RequestCode.APPEND_CHUNK].request.encode(header),
            encode_sizes(sizes) + b"".join(records) if body is None else body,
        )


@pytest.fixture
def room(parts):
    room = Room(parts)
    room.connection.extensions = SUPPORTED_EXTENSIONS
    return room


@pytest.mark.parametrize(
    ("asked", "agreed"),
    [
        ("pull-chunk", "pull-chunk"),
        ("telepathy,append-chunk", "append-chunk"),
        ("", ""),
        ("telepathy", ""),
    ],
)
def test_extensions_are_the_common_ones_of_the_last_request(parts, asked, agreed):
    room = Room(parts)
    room.connection.extensions = SUPPORTED_EXTENSIONS
    answer = room.ask(RequestCode.EXTENSIONS, {"names": asked})
    assert (answer.code, answer.ext_fields["names"]) == (0, agreed)
    assert {each.value for each in room.connection.extensions} == set(
        filter(None, agreed.split(","))
    )


def test_extensions_answer_shows_born_and_store_host(parts):
    room = Room(parts)
    fields = room.ask(RequestCode.EXTENSIONS, {"names": "append-chunk"}).ext_fields
    assert fields["bornHost"] == str(room.connection.remote_host)
    assert fields["storeHost"] == "10.0.0.2:9876"


NONCE = "0123456789abcdef" * 2


def asked_for_files(room, nonce=NONCE, names="proven-files"):
    answer = room.ask(RequestCode.EXTENSIONS, {"names": names, "nonce": nonce})
    return HEADERS[RequestCode.EXTENSIONS].response.decode(answer.ext_fields)


@pytest.mark.parametrize("remote", ["127.0.0.1:5", "127.8.0.1:5", "[::1]:5", "10.0.0.7:1"])
def test_extensions_prove_the_store_to_a_client_on_this_machine(parts, remote):
    """The proof contains the nonce, and the endpoints of the connection."""
    room = Room(parts)
    room.connection.remote_host = parse_host(remote)
    room.connection.local_host = parse_host("10.0.0.7:9876")
    found = asked_for_files(room)
    assert found.extensions == room.connection.extensions == {Extension.READ_FILES}
    directory, log_name, file_bytes, proof_name = found.log_location
    assert Path(directory) == parts.root / "store"
    assert (log_name, file_bytes) == (
        "commitlog",
        small_config(parts.root).mapped_file_size_commit_log,
    )
    said = Path(directory, proof_name).read_text()
    assert said.startswith(f"rocketpoll {NONCE} 10.0.0.7:9876 {remote} ")


def test_extensions_write_no_proof_without_a_nonce(parts):
    room = Room(parts)
    room.connection.remote_host = parse_host("127.0.0.1:5")
    answer = room.ask(RequestCode.EXTENSIONS, {"names": "proven-files"})
    assert answer.ext_fields["names"] == "proven-files"
    assert not {"storeDirectory", "logName", "proofName"} & answer.ext_fields.keys()
    assert proofs_of(parts) == []


@pytest.mark.parametrize(
    "nonce", ["", "0", NONCE + "0", NONCE[:-1] + "G", NONCE.upper(), NONCE[:-1] + "\n"]
)
def test_extensions_write_only_a_valid_nonce(parts, nonce):
    room = Room(parts)
    room.connection.remote_host = parse_host("127.0.0.1:5")
    assert asked_for_files(room, nonce).log_location is None
    assert proofs_of(parts) == []


def test_extensions_do_not_know_the_files_of_the_previous_release(parts):
    """Clients of that release trusted whatever files a broker named, so they must pull."""
    room = Room(parts)
    room.connection.remote_host = parse_host("127.0.0.1:5")
    answer = room.ask(RequestCode.EXTENSIONS, {"names": "read-files,pull-chunk"})
    assert answer.ext_fields["names"] == "pull-chunk"


def test_extensions_name_no_files_to_a_client_elsewhere(parts):
    room = Room(parts)
    found = asked_for_files(room, names="proven-files,pull-chunk")
    assert (found.names, found.log_location) == ("pull-chunk", None)
    assert room.connection.extensions == {Extension.PULL_CHUNK}
    assert proofs_of(parts) == []


def test_extensions_delete_the_proof_when_the_connection_ends(parts):
    room = Room(parts)
    room.connection.remote_host = parse_host("127.0.0.1:5")
    for _ in range(3):
        assert asked_for_files(room).log_location is not None
    assert len(proofs_of(parts)) == 1
    room.processor.connection_closed(room.connection)
    assert proofs_of(parts) == []


def proofs_of(parts):
    return [path.name for path in (parts.root / "store").glob("proof*")]


def test_append_without_agreed_extension_is_refused(parts):
    room = Room(parts)
    assert room.append(message("a")).code == 3
    room.connection.extensions = frozenset([Extension.PULL_CHUNK])
    assert room.append(message("a")).code == 3
    assert bodies(parts.store) == []


def test_records_are_appended_in_their_order(parts, room):
    parts.put("before")
    answer = room.append(message("a"), message("b"), message("c"))
    assert answer.code == 0
    assert (answer.ext_fields["queueOffset"], answer.ext_fields["messageCount"]) == ("1", "3")
    assert bodies(parts.store) == ["before", "a", "b", "c"]


def test_append_chunk_creates_its_topic_like_a_send(parts, room):
    assert room.append(message("a", topic="New"), topic="New").code == 0
    assert bodies(parts.store, "New") == ["a"]


def wrong_chunks():
    good = encoded(message("a"))
    size = len(good)
    flipped = bytearray(good)
    flipped[88] ^= 1
    return {
        "nothing": b"",
        "no records": encode_sizes(np.array([], np.int32)),
        "more sizes than there are": (1 << 30).to_bytes(4, "big") + good,
        "a size too long": encode_sizes(np.array([size + 1])) + good,
        "a size below zero": encode_sizes(np.array([-1])) + good,
        "a record cut short": encode_sizes(np.array([size])) + good[:-1],
        "a body that is not what it was": encode_sizes(np.array([size])) + bytes(flipped),
    }


@pytest.mark.parametrize("body", wrong_chunks().values(), ids=wrong_chunks())
def test_damaged_chunk_append_is_refused_whole(parts, room, body):
    assert room.append(body=body).code in {1, 13}
    assert bodies(parts.store) == []


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([message("a", queue_id=1)], {}),
        ([message("a", topic="U")], {}),
        ([message("a"), message("b", queue_id=1)], {}),
        ([message("a"), message("b", topic="U")], {}),
    ],
)
def test_records_of_another_queue_than_the_requests_are_refused(parts, room, messages, place):
    assert room.append(*messages, **place).code == 13
    assert bodies(parts.store) == []


@pytest.mark.parametrize(
    ("topic", "queue_id", "code"), [("SCHEDULE_TOPIC_XXXX", 0, 16), ("T", 4, 1)]
)
def test_append_is_refused_wherever_a_send_is(parts, room, topic, queue_id, code):
    answer = room.append(
        message("a", topic=topic, queue_id=queue_id), topic=topic, queue_id=queue_id
    )
    assert answer.code == code


def test_busy_broker_refuses_chunks(parts, room):
    room.busy = "the disk is slow"
    assert room.append(message("a")).code == 2


def test_sync_flush_chunk_append_is_acknowledged_once_on_disk(parts):
    room = Room(parts, is_sync=True)
    room.connection.extensions = SUPPORTED_EXTENSIONS
    assert room.append(message("a")) is None
    assert room.append(message("b")) is None
    (first, then), (second, then_second) = room.disk.waiting
    then(first)
    then_second(second._replace(status=PutMessageStatus.SERVICE_NOT_AVAILABLE, remark="gone"))
    assert [(answer.code, answer.opaque) for answer in room.connection.sent] == [(0, 7), (14, 7)]
