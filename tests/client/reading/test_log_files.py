"""Records read from a broker's log files equal those that the broker returns, or are not read at
all."""

import os
import socket
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.brokers.in_process import BrokerThread, small_broker
from support.servers.fake_servers import FakeServer, Peer

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.errors import ClientError, ConnectionClosed
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.reading.bulk_pull import BulkPull, PullRules
from rmq_spark.client.reading.log_files import (
    LocalLogFinder,
    LogDirectory,
    LogFiles,
    machine_identity,
)
from rmq_spark.client.transport.connection import RemotingConnection
from rmq_spark.client.transport.remoting_client import RemotingClient
from rmq_spark.wire.codes import MessageSysFlag, RequestCode
from rmq_spark.wire.extensions import LogLocation, proof_content
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.hosts import host_of, parse_host
from rmq_spark.wire.message.record import StoredMessage, encode_record
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll.broker.store.queues.consume_queue import ENTRY_BYTES, ENTRY_STRUCT

QUEUE = MessageQueue("T", "broker-a", 0)
OTHER = MessageQueue("T", "broker-a", 1)


class CountedFiles:
    """System file functions that count reads, and can change the data."""

    def __init__(self, before=lambda _: None):
        self.bytes_read = 0
        self.opened = []
        self.before = before

    def __call__(self, path):
        self.opened.append(path)
        return CountedDirectory(self, LogDirectory(path), Path(path))


class CountedDirectory:
    def __init__(self, files, directory, path):
        self._files, self._directory, self._path = files, directory, path

    def read_proof(self, name):
        return self._directory.read_proof(name)

    def open_subdirectory(self, name, owner):
        return CountedDirectory(
            self._files, self._directory.open_subdirectory(name, owner), self._path / name
        )

    def read(self, name, position, into):
        self._files.before(self._path / name)
        self._directory.read(name, position, into)
        self._files.bytes_read += len(into)


def filled(broker, steps):
    """Send messages to two queues at random: in each step the given number, singly or
    as a batch."""
    with Producer("P", broker.address) as producer:
        producer.send(Message("T", b"first"), lambda queues: queues[0])
        producer.instance.routes.refresh("T")
        for number, (queue, count, size, together) in enumerate(steps):
            bodies = [b"%d-%d" % (number, row) + b"b" * size for row in range(count)]
            if together:
                tags = [f"tag{row % 3}" for row in range(count)]
                producer.send_table(pa.table({"body": bodies, "tags": tags}), "T", queue=queue)
            else:
                for body in bodies:
                    producer.send(Message("T", body, "tag1"), queue)


def pulled(api, address, queue=QUEUE, subscription="*", files=None, **more):
    """Return the records of a queue by the next offset of each response."""
    end = api.max_offset(address, queue)
    if files is not None:
        more["local_files"] = LocalLogFinder(files)
    rules = PullRules(subscription=subscription, **more)
    chunks = BulkPull(api, address, "G", queue, 0, end, rules)
    return b"".join(bytes(chunk.records) for chunk in chunks)


steps = st.lists(
    st.tuples(
        st.sampled_from([QUEUE, QUEUE, OTHER]),
        st.integers(1, 40),
        st.sampled_from([0, 10, 300, 3_000, 20_000]),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps, st.sampled_from(["*", "tag1", "tag0 || tag2", "none"]), st.integers(20_000, 1 << 20))
def test_log_files_give_the_same_records_as_the_broker(
    running_broker, api, steps, subscription, chunk_bytes
):
    filled(running_broker, steps)
    for queue in (QUEUE, OTHER):
        way = {"queue": queue, "subscription": subscription, "chunk_bytes": chunk_bytes}
        by_broker = pulled(api, running_broker.address, **way)
        files = CountedFiles()
        assert pulled(api, running_broker.address, files=files, **way) == by_broker
        assert files.bytes_read <= len(by_broker)


def log_of_broker(broker):
    return broker.config.store.store_path_root_dir / "commitlog"


LARGE = [(QUEUE, 60, 3_000, True), (OTHER, 60, 3_000, True), (QUEUE, 60, 3_000, True)]


def test_large_chunks_are_read_from_files(running_broker, api):
    filled(running_broker, LARGE)
    files = CountedFiles()
    found = pulled(api, running_broker.address, files=files)
    assert files.bytes_read > len(found) * 9 // 10


def test_log_file_read_spans_several_files_of_the_log(running_broker, api):
    size = running_broker.config.store.mapped_file_size_commit_log
    filled(running_broker, [(QUEUE, 100, 20_000, True)] * (size // 1_000_000 + 1))
    assert len(list(log_of_broker(running_broker).iterdir())) > 1
    files = CountedFiles()
    assert pulled(api, running_broker.address, files=files) == pulled(api, running_broker.address)
    assert files.bytes_read > size


def deleted(path):
    path.unlink()


def cut_short(path):
    os.truncate(path, 100)


def changed(path, at, number):
    """Overwrite a number at a position of each record."""
    with path.open("r+b") as file:
        data = file.read()
        for start in range(len(data) - 36):
            if data[start + 4 : start + 8] == b"\xda\xa3\x20\xa7":
                file.seek(start + at)
                file.write(number)


def of_another_place(path):
    changed(path, layout.PHYSICAL_OFFSET_AT, b"\0\0\0\1")


def of_another_queue(path):
    changed(path, layout.QUEUE_ID_AT, b"\0\0\0\1")


def of_another_topic(path):
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\1T", b"\1U"))


@pytest.mark.parametrize(
    "happens", [deleted, cut_short, of_another_place, of_another_queue, of_another_topic]
)
def test_records_missing_in_log_files_are_pulled(
    running_broker, api, tmp_path, monkeypatch, happens
):
    """The reader has a copy of the store whose log is changed."""
    filled(running_broker, LARGE)
    by_broker = pulled(api, running_broker.address)
    store, copy = log_of_broker(running_broker).parent, tmp_path / "copy"
    (copy / "commitlog").mkdir(parents=True)
    for file in (store / "commitlog").iterdir():
        (copy / "commitlog" / file.name).write_bytes(file.read_bytes())

    class CopiedFiles(CountedFiles):
        def __call__(self, path):
            for file in Path(path).glob("proof.*"):
                (copy / file.name).write_bytes(file.read_bytes())
            return super().__call__(copy)

    files = CopiedFiles()
    assert pulled(api, running_broker.address, files=files) == by_broker
    assert files.bytes_read > 0
    api.connections.close(running_broker.address)
    before, files.bytes_read = by_broker, 0
    files.before = happens
    assert pulled(api, running_broker.address, files=files) == before
    assert files.bytes_read <= 1 << 20


def test_deleted_log_file_is_pulled_instead_and_not_opened_again(running_broker, api):
    filled(running_broker, LARGE)
    tried = []

    def gone(path):
        tried.append(path)
        raise FileNotFoundError(path)

    found = pulled(api, running_broker.address, files=CountedFiles(gone), chunk_bytes=50_000)
    assert found == pulled(api, running_broker.address)
    assert len(tried) == 1


WRONG_ENTRIES = {
    "the place of the next one": lambda entry, behind: (behind[0], *entry[1:]),
    "all of the next one": lambda _, behind: behind,
    "a larger size": lambda entry, _: (entry[0], entry[1] + 1, entry[2]),
    "a little further": lambda entry, _: (entry[0] + 1, *entry[1:]),
}


@pytest.mark.parametrize("wrong", WRONG_ENTRIES.values(), ids=WRONG_ENTRIES)
def test_local_log_read_with_a_wrong_queue_entry_equals_the_brokers_answer(
    running_broker, api, wrong
):
    filled(running_broker, LARGE)
    queue = log_of_broker(running_broker).parent / "consumequeue" / "T" / "0" / f"{0:020}"
    with queue.open("r+b") as file:
        data = file.read(ENTRY_BYTES * 52)
        entries = [ENTRY_STRUCT.unpack_from(data, ENTRY_BYTES * row) for row in (50, 51)]
        file.seek(ENTRY_BYTES * 50)
        file.write(ENTRY_STRUCT.pack(*wrong(*entries)))
    way = {"chunk_bytes": 100_000}  # splits the messages into several chunks
    by_broker = outcome(api, running_broker.address, **way)
    files = CountedFiles()
    assert outcome(api, running_broker.address, files=files, **way) == by_broker
    assert files.bytes_read > 50_000


def outcome(api, address, **way):
    try:
        return pulled(api, address, **way)
    except ClientError as error:
        return str(error)


# ---- records by position


def log_of(tmp_path, *messages, queue=QUEUE, host="10.0.0.1:9"):
    """Return a log file with these messages, and their positions."""
    data, physical_offsets, sizes = b"", [], []
    for queue_offset, body in messages:
        where = parse_host(host)
        message = StoredMessage(
            queue.topic,
            body,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            physical_offset=len(data),
            born_host=where,
            sys_flag=MessageSysFlag.BORN_HOST_V6.value * where.is_v6,
            magic=layout.MAGIC_V2 if len(queue.topic) > 127 else layout.MAGIC_V1,
        )
        record = encode_record(message)
        physical_offsets.append(len(data))
        sizes.append(len(record))
        data += record
    (tmp_path / "log").mkdir(exist_ok=True)
    (tmp_path / "log" / f"{0:020d}").write_bytes(data)
    (tmp_path / "proof.0").write_bytes(b"proof")
    place = LogLocation(str(tmp_path), "log", 1 << 20, "proof.0")
    files = LogFiles(LogDirectory(place.directory), place, b"proof")
    return files, np.array(physical_offsets), np.array(sizes, np.int32), data


def test_log_file_records_are_returned_without_the_gaps_between_them(tmp_path):
    files, physical_offsets, sizes, data = log_of(
        tmp_path, (3, b"a"), (0, b"other"), (4, b"b" * 50)
    )
    found = files.read_records(QUEUE, physical_offsets[::2], sizes[::2], range(3, 5))
    assert bytes(found.data) == data[: sizes[0]] + data[physical_offsets[2] :]


@pytest.mark.parametrize(
    ("of", "changed"),
    [
        ("places", [0, 1]),
        ("sizes", [1, 1]),
        ("sizes", [1, -1]),
        ("sizes", [0, 1 << 30]),
        ("offsets", range(4, 9)),
        ("offsets", range(3, 4)),
        ("places", [1 << 40, 0]),
        ("places", [-(1 << 40), 0]),
        ("queue", MessageQueue("T", "broker-a", 1)),
        ("queue", MessageQueue("U", "broker-a", 0)),
        ("queue", MessageQueue("T2", "broker-a", 0)),
        ("queue", MessageQueue("T" * 300, "broker-a", 0)),
    ],
)
def test_mismatching_records_in_log_files_are_not_used(tmp_path, of, changed):
    files, physical_offsets, sizes, _ = log_of(tmp_path, (3, b"a" * 9), (4, b"b" * 50))
    queue, offsets = QUEUE, range(3, 5)
    if of == "places":
        physical_offsets = physical_offsets + np.array(changed)
    elif of == "sizes":
        sizes = sizes + np.array(changed, np.int32)
    elif of == "queue":
        queue = changed
    else:
        offsets = changed
    assert files.read_records(queue, physical_offsets, sizes, offsets) is None


@pytest.mark.parametrize("host", ["10.0.0.1:9", "[::1]:9"])
@pytest.mark.parametrize("topic", ["T", "T" * 127, "T" * 200, "Tümpel"])
def test_records_of_all_topics_and_hosts_are_found(tmp_path, topic, host):
    """A long topic uses the second magic, and hosts may be IPv6 addresses."""
    queue = MessageQueue(topic, "broker-a", 3)
    files, physical_offsets, sizes, data = log_of(
        tmp_path, (0, b"a"), (1, b"b" * 9), queue=queue, host=host
    )
    assert bytes(files.read_records(queue, physical_offsets, sizes, range(2)).data) == data
    other = MessageQueue(topic[:-1] + "U", "broker-a", 3)
    assert files.read_records(other, physical_offsets, sizes, range(2)) is None


def test_log_file_read_refuses_offsets_out_of_order(tmp_path):
    files, physical_offsets, sizes, _ = log_of(tmp_path, (4, b"a"), (3, b"b"))
    assert files.read_records(QUEUE, physical_offsets, sizes, range(9)) is None


def test_log_files_are_not_read_after_their_proof_changed(tmp_path):
    """For example when another broker has replaced the one that wrote the proof."""
    files, physical_offsets, sizes, data = log_of(tmp_path, (0, b"a"), (1, b"b"))
    assert bytes(files.read_records(QUEUE, physical_offsets, sizes, range(2)).data) == data
    (tmp_path / "proof.0").write_bytes(b"proof of another connection")
    assert files.read_records(QUEUE, physical_offsets, sizes, range(2)) is None
    (tmp_path / "proof.0").unlink()
    assert files.read_records(QUEUE, physical_offsets, sizes, range(2)) is None


def test_proven_log_directory_is_read_even_after_it_was_moved(tmp_path):
    """Another store, with other bodies, takes its place."""
    store, other = tmp_path / "store", tmp_path / "other"
    for root, body in ((other, b"wrong"), (store, b"right")):
        root.mkdir()
        files, physical_offsets, sizes, _ = log_of(root, (0, body), (1, body))
    store.rename(tmp_path / "aside")
    other.rename(store)
    assert b"right" in bytes(files.read_records(QUEUE, physical_offsets, sizes, range(2)).data)


# ---- which brokers may name files


def test_local_broker_proves_its_log_files_once_per_connection(running_broker, api, caplog):
    filled(running_broker, LARGE)
    files = CountedFiles()
    for _ in range(3):
        pulled(api, running_broker.address, files=files)
    assert files.opened == [str(log_of_broker(running_broker).parent)]
    api.connections.close(running_broker.address)
    pulled(api, running_broker.address, files=files)
    assert len(files.opened) == 2
    assert not caplog.text


class Elsewhere(FakeServer):
    """A proxy of a broker that changes responses to proof requests."""

    def __init__(self, broker, change):
        self._broker, self._apply = broker, change
        super().__init__(self._between)

    def _between(self, peer):
        host, port = self._broker.address.rsplit(":", 1)
        with closing(socket.create_connection((host, int(port)))) as connection:
            behind = Peer(connection)
            while (request := peer.receive()) is not None:
                behind.send(request)
                answer = behind.receive()
                if request.code == RequestCode.EXTENSIONS and "nonce" in request.ext_fields:
                    nonce = request.ext_fields["nonce"]
                    fields = self._apply(nonce, peer.socket, dict(answer.ext_fields))
                    answer = answer._replace(ext_fields=fields)
                peer.send(answer)


def own_proof(root, nonce, sock):
    """Write an honest broker's proof into a directory, so that the client accepts it."""
    ends = host_of(sock.getsockname()), host_of(sock.getpeername())
    root.mkdir(exist_ok=True)
    (root / "proof.0").write_bytes(proof_content(nonce, *ends, machine_identity()))
    return {"storeDirectory": str(root), "proofName": "proof.0"}


def relayed(_victim, _root):
    """Return the proof of another connection, written by the broker behind the proxy."""
    return lambda _nonce, _sock, fields: fields


def without_a_proof(victim, root):
    root.mkdir()
    return lambda _nonce, _sock, fields: {**fields, "storeDirectory": str(root)}


def with_a_proof_of_another(part):
    """Return an honest broker's proof with one changed part."""

    def lie(victim, _root):
        def change(nonce, sock, fields):
            said = [nonce, host_of(sock.getsockname()), host_of(sock.getpeername())]
            said.append(machine_identity())
            said[part] = ["0" * 32, said[2], said[1], "another/4026531840"][part]
            (victim / fields["proofName"]).write_bytes(proof_content(*said))
            return fields

        return change

    return lie


def own_directory_with(put):
    """Return a store with a valid proof whose log files lead to the victim's."""

    def lie(victim, root):
        def change(nonce, sock, fields):
            fields |= own_proof(root, nonce, sock)
            put(victim, root)
            return fields

        return change

    return lie


def a_link_to_the_log(victim, root):
    (root / "commitlog").symlink_to(victim / "commitlog")


def links_to_files(victim, root):
    (root / "commitlog").mkdir()
    for file in (victim / "commitlog").iterdir():
        (root / "commitlog" / file.name).symlink_to(file)


def files_of_another_user(victim, root):
    """Use hard links, where the system allows them for files of other users."""
    links_of_another_user(victim, root)
    os.chown(root / "commitlog", os.getuid(), -1)


def links_of_another_user(victim, root):
    (root / "commitlog").mkdir()
    for file in (victim / "commitlog").iterdir():
        os.link(file, root / "commitlog" / file.name)
    os.chown(root / "proof.0", 65_534, -1)
    os.chown(root / "commitlog", 65_534, -1)


def a_pipe_as_the_proof(victim, root):
    (root / "proof.0").unlink()
    os.mkfifo(root / "proof.0")
    (victim / "commitlog").rename(root / "commitlog")
    (root / "commitlog").rename(victim / "commitlog")


def a_link_as_the_proof(_victim, root):
    (root / "proof.0").rename(root / "real")
    (root / "proof.0").symlink_to(root / "real")


def naming(**more):
    """Return a valid proof with file names that point outside the directory."""

    def lie(victim, root):
        def change(nonce, sock, fields):
            fields |= own_proof(root, nonce, sock)
            return fields | {name: text.format(victim=victim) for name, text in more.items()}

        return change

    return lie


def old_format(_victim, _root):
    def change(_nonce, _sock, fields):
        directory = fields.pop("storeDirectory")
        return {
            "names": "pull-chunk,read-files",
            "logDirectory": f"{directory}/commitlog",
            "logFileBytes": fields["logFileBytes"],
            "proofPath": "/proc/sys/kernel/ostype",
            "proof": "Linux\n",
        }

    return change


HOSTILE = {
    "a relayed nonce": relayed,
    "no proof": without_a_proof,
    "a proof of another nonce": with_a_proof_of_another(0),
    "a proof of another listener": with_a_proof_of_another(1),
    "a proof of another client": with_a_proof_of_another(2),
    "a proof of another machine": with_a_proof_of_another(3),
    "a link to the log": own_directory_with(a_link_to_the_log),
    "links to files": own_directory_with(links_to_files),
    "hard links to another user's files": own_directory_with(links_of_another_user),
    "hard links in a directory of the reader's": own_directory_with(files_of_another_user),
    "a pipe as the proof": own_directory_with(a_pipe_as_the_proof),
    "a link as the proof": own_directory_with(a_link_as_the_proof),
    "a log outside": naming(logName="../store/commitlog"),
    "a log at an absolute path": naming(logName="{victim}/commitlog"),
    "a log that is the parent": naming(logName=".."),
    "a proof outside": naming(proofName="../store/proof.0"),
    "a proof that is another file": naming(proofName="abort"),
    "a path that no system knows": naming(storeDirectory="/a\0b"),
    "a directory that is a file": naming(storeDirectory="{victim}/abort"),
    "no size of files": naming(logFileBytes="0"),
    "the format of the previous release": old_format,
}


@pytest.mark.parametrize("lie", HOSTILE.values(), ids=HOSTILE)
def test_hostile_brokers_proof_opens_no_file_of_another_store(
    running_broker, api, tmp_path, caplog, lie
):
    """The victim's records have the positions, sizes and offsets that the hostile
    broker reports."""
    if "another user" in str(lie) and os.getuid():
        pytest.skip("only root can give files away")
    filled(running_broker, LARGE)
    by_broker = pulled(api, running_broker.address)
    change = lie(log_of_broker(running_broker).parent, tmp_path / "own")
    files = CountedFiles()
    with Elsewhere(running_broker, change) as hostile:
        way = {"local_files": LocalLogFinder(files, is_requested=True, logged=set())}
        assert pulled(api, hostile.address, **way) == by_broker
        assert pulled(api, hostile.address, **way) == by_broker
        told = [each for each in caplog.messages if hostile.address in each]
        api.connections.close(hostile.address)
    assert files.bytes_read == 0
    assert len(told) == 1
    assert told[0].endswith("; its records are pulled")


def test_honest_stand_in_broker_has_its_log_files_read(running_broker, api, tmp_path):
    """Without a lie the files are read: the tests above fail because of their lies alone."""
    filled(running_broker, LARGE)
    victim = log_of_broker(running_broker).parent

    def change(nonce, sock, fields):
        return fields | own_proof(victim, nonce, sock)

    files = CountedFiles()
    with Elsewhere(running_broker, change) as server:
        assert pulled(api, server.address, files=files) == pulled(api, running_broker.address)
        api.connections.close(server.address)
    assert files.bytes_read > 0


def test_broker_without_the_log_file_proof_is_pulled_from(running_broker, tmp_path):
    filled(running_broker, LARGE)
    connections = RemotingClient(negotiation_timeout_ms=300)
    api = BrokerApi(connections)

    def story(peer):
        host, port = running_broker.address.rsplit(":", 1)
        with closing(socket.create_connection((host, int(port)))) as connection:
            behind = Peer(connection)
            while (request := peer.receive()) is not None:
                if "nonce" not in request.ext_fields:
                    behind.send(request)
                    peer.send(behind.receive())

    files = CountedFiles()
    with FakeServer(story) as server:
        assert pulled(api, server.address, files=files) == pulled(api, running_broker.address)
        connections.shutdown()
    assert files.opened == []


@pytest.mark.parametrize(
    ("client", "broker", "asks"),
    [
        ("127.0.0.1:5", "127.0.0.1:9876", True),
        ("10.0.0.7:5", "10.0.0.7:9876", True),
        ("[::1]:5", "[::1]:9876", True),
        ("10.0.0.7:5", "127.0.0.1:9876", True),
        ("10.0.0.7:5", "10.0.0.8:9876", False),
        ("[fe80::1]:5", "[fe80::2]:9876", False),
    ],
)
def test_log_files_are_asked_only_of_a_broker_on_the_same_machine(
    running_broker, api, monkeypatch, caplog, client, broker, asks
):
    filled(running_broker, LARGE)
    monkeypatch.setattr(RemotingConnection, "endpoints", (parse_host(client), parse_host(broker)))
    asked = []
    monkeypatch.setattr(RemotingClient, "query_log_location", lambda *_: asked.append(1))
    way = {"local_files": LocalLogFinder(is_requested=True)}
    pulled(api, running_broker.address, **way)
    assert bool(asked) is asks
    assert ("it runs on another machine" in caplog.text) is not asks


def test_closed_connection_proves_no_log_files(running_broker, api, monkeypatch):
    """Another broker's connection may have the same endpoints by then."""
    filled(running_broker, LARGE)
    line = api.connections.get_or_connect(running_broker.address)
    ends = iter([line.connection.endpoints, None])
    monkeypatch.setattr(RemotingConnection, "endpoints", property(lambda _: next(ends)))
    with pytest.raises(ConnectionClosed, match="ended before its proof was read"):
        LocalLogFinder().find_log(api.connections, running_broker.address)


def test_pull_for_log_places_fails_when_its_connection_was_replaced(running_broker, api):
    filled(running_broker, LARGE)
    log = LocalLogFinder().find_log(api.connections, running_broker.address)
    header = BulkPull(api, running_broker.address, "G", QUEUE, 0, 1)._header
    way = {"is_chunk": True, "proven_connection": log.connection}
    answer = api.pull_async(running_broker.address, header._replace(max_msg_nums=60), **way)
    assert answer.result(10).physical_offsets is not None
    api.connections.close(running_broker.address)
    with pytest.raises(ConnectionClosed):
        api.pull_async(running_broker.address, header, **way)


@pytest.mark.parametrize(
    ("listens_at", "reached_at"),
    [("0.0.0.0", "127.0.0.1"), ("0.0.0.0", "127.0.0.2"), ("::", "[::1]")],  # noqa: S104  # listens on any address
)
def test_log_files_are_read_with_any_listen_address(tmp_path, api, listens_at, reached_at):
    """The proof has the endpoints of the connection, whatever address the listener is bound to."""
    more = {"bindAddress": listens_at, "allowRemoteWithoutAuthentication": True}
    with BrokerThread(small_broker(tmp_path / "store", **more)) as broker:
        broker.address = f"{reached_at}:{broker.port}"
        filled(broker, LARGE)
        files = CountedFiles()
        pulled(api, broker.address, files=files)
        assert files.bytes_read > 0
        api.connections.close(broker.address)
