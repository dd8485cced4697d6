"""Records out of the files of a broker's log: the same as it gives, or none at all."""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq_spark.client.errors import ClientError
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.reading.bulk_pull import BulkPull, PullRules
from rmq_spark.client.reading.log_files import SystemFiles, on_this_machine
from rmq_spark.wire.extensions import Extension, LogPlace
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.record import StoredMessage, encode_record
from rocketpoll.broker.store.consume_queue import ENTRY_BYTES, ENTRY_STRUCT

QUEUE = MessageQueue("T", "broker-a", 0)
OTHER = MessageQueue("T", "broker-a", 1)


class CountedFiles(SystemFiles):
    """The system's, which count what is read, and may be changed before that."""

    def __init__(self, before=lambda _: None):
        self.bytes_read = 0
        self._before = before

    def read(self, path, position, into):
        self._before(path)
        super().read(path, position, into)
        self.bytes_read += len(into)


def filled(broker, steps):
    """Send as many messages as each step says, alone or together, to one of two queues."""
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
    """All of a queue: its records, by the offset behind those that came together."""
    end = api.max_offset(address, queue)
    if files is not None:
        more["log_files"] = partial(on_this_machine, files=files)
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
def test_files_give_what_the_broker_gives(running_broker, api, steps, subscription, chunk_bytes):
    filled(running_broker, steps)
    for queue in (QUEUE, OTHER):
        way = {"queue": queue, "subscription": subscription, "chunk_bytes": chunk_bytes}
        by_broker = pulled(api, running_broker.address, **way)
        files = CountedFiles()
        assert pulled(api, running_broker.address, files=files, **way) == by_broker
        assert files.bytes_read <= len(by_broker)


LARGE = [(QUEUE, 60, 3_000, True), (OTHER, 60, 3_000, True), (QUEUE, 60, 3_000, True)]


def test_large_chunks_are_read_from_files(running_broker, api):
    filled(running_broker, LARGE)
    files = CountedFiles()
    found = pulled(api, running_broker.address, files=files)
    assert files.bytes_read > len(found) * 9 // 10


def test_files_of_one_queue_lie_in_several_files_of_the_log(running_broker, api):
    size = running_broker.controller.store.log_place.file_bytes
    filled(running_broker, [(QUEUE, 100, 20_000, True)] * (size // 1_000_000 + 1))
    directory = Path(running_broker.controller.store.log_place.directory)
    assert len(list(directory.iterdir())) > 1
    files = CountedFiles()
    assert pulled(api, running_broker.address, files=files) == pulled(api, running_broker.address)
    assert files.bytes_read > size


def deleted(path):
    Path(path).unlink()


def cut_short(path):
    os.truncate(path, 100)


def of_another_queue(path):
    """Another place is written in each record: the log was another one there."""
    with Path(path).open("r+b") as file:
        data = file.read()
        for at in range(len(data) - 36):
            if data[at + 4 : at + 8] == b"\xda\xa3\x20\xa7":
                file.seek(at + 28)
                file.write(b"\0\0\0\1")


def test_records_of_another_store_that_was_put_there_meanwhile_are_not_used(tmp_path):
    """It is the same in all but what the messages say."""
    store, other = tmp_path / "store", tmp_path / "other"
    for root, body in ((store, b"right"), (other, b"wrong")):
        root.mkdir()
        _, places, sizes, _ = log_of(root, (0, body), (1, body))
    files = log_of(store, (0, b"right"), (1, b"right"))[0]
    assert files.records(places, sizes, range(2)) is not None
    (other / "abort").write_text("rocketpoll of another start")
    store.rename(tmp_path / "aside")
    other.rename(store)
    assert files.records(places, sizes, range(2)) is None
    store.rename(other)
    (tmp_path / "aside").rename(store)
    assert b"right" in bytes(files.records(places, sizes, range(2)))


@pytest.mark.parametrize("happens", [deleted, cut_short, of_another_queue])
def test_what_is_not_there_any_more_is_no_record(running_broker, api, tmp_path, happens):
    filled(running_broker, LARGE)
    place = running_broker.controller.store.log_place
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in Path(place.directory).iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    by_broker = pulled(api, running_broker.address)
    moved = place._replace(directory=str(copy))
    files = CountedFiles(happens)

    def moved_files(_):
        return on_this_machine(moved, files)

    assert pulled(api, running_broker.address, log_files=moved_files) == by_broker


def test_a_file_that_deletion_has_taken_is_pulled_for_and_not_tried_again(running_broker, api):
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
def test_an_entry_that_leads_elsewhere_gives_what_the_broker_gives(running_broker, api, wrong):
    filled(running_broker, LARGE)
    directory = Path(running_broker.controller.store.log_place.directory)
    queue = directory.parent / "consumequeue" / "T" / "0" / f"{0:020}"
    with queue.open("r+b") as file:
        data = file.read(ENTRY_BYTES * 52)
        entries = [ENTRY_STRUCT.unpack_from(data, ENTRY_BYTES * row) for row in (50, 51)]
        file.seek(ENTRY_BYTES * 50)
        file.write(ENTRY_STRUCT.pack(*wrong(*entries)))
    way = {"chunk_bytes": 100_000}  # some lie before it, and some behind
    by_broker = outcome(api, running_broker.address, **way)
    files = CountedFiles()
    assert outcome(api, running_broker.address, files=files, **way) == by_broker
    assert files.bytes_read > 50_000


def outcome(api, address, **way):
    try:
        return pulled(api, address, **way)
    except ClientError as error:
        return str(error)


# ---- is it this machine?


def test_a_broker_of_this_machine_proves_that_it_is(running_broker, api):
    agreement = api.agreement(running_broker.address)
    assert Extension.READ_FILES in agreement.extensions
    assert agreement.log_place == running_broker.controller.store.log_place
    assert on_this_machine(agreement.log_place) is not None


def placed(tmp_path, proof="rocketpoll 1"):
    return LogPlace(str(tmp_path), 1 << 20, str(tmp_path / "abort"), proof)


def test_other_files_at_the_same_path_prove_nothing(tmp_path):
    assert on_this_machine(placed(tmp_path)) is None
    (tmp_path / "abort").write_text("rocketpoll 2")
    assert on_this_machine(placed(tmp_path, "rocketpoll 3")) is None
    assert on_this_machine(placed(tmp_path, "rocketpoll 2")) is not None


def test_what_is_no_file_is_neither_waited_for_nor_followed(tmp_path):
    os.mkfifo(tmp_path / "abort")
    assert on_this_machine(placed(tmp_path)) is None
    (tmp_path / "abort").unlink()
    (tmp_path / "real").write_text("rocketpoll 4")
    (tmp_path / "abort").symlink_to(tmp_path / "real")
    assert on_this_machine(placed(tmp_path, "rocketpoll 4")) is None


def test_a_path_that_no_system_knows_proves_nothing():
    assert on_this_machine(LogPlace("/", 1, "/a\0b", "proof")) is None


# ---- records at places


def log_of(tmp_path, *messages, file_bytes=1 << 20):
    """One file of a log with these messages, and where each is."""
    data, places, sizes = b"", [], []
    for queue_offset, body in messages:
        record = encode_record(
            StoredMessage("T", body, queue_offset=queue_offset, physical_offset=len(data))
        )
        places.append(len(data))
        sizes.append(len(record))
        data += record
    (tmp_path / f"{0:020d}").write_bytes(data)
    (tmp_path / "abort").write_text("proof")
    files = on_this_machine(placed(tmp_path, "proof")._replace(file_bytes=file_bytes))
    return files, np.array(places), np.array(sizes, np.int32), data


def test_records_lie_back_to_back_whatever_lies_between_them(tmp_path):
    files, places, sizes, data = log_of(tmp_path, (3, b"a"), (0, b"other"), (4, b"b" * 50))
    found = files.records(places[::2], sizes[::2], range(3, 5))
    assert bytes(found) == data[: sizes[0]] + data[places[2] :]


@pytest.mark.parametrize(
    ("of", "changed"),
    [
        ("places", [0, 1]),
        ("sizes", [1, 1]),
        ("sizes", [1, -1]),
        ("offsets", range(4, 9)),
        ("offsets", range(3, 4)),
        ("places", [1 << 40, 0]),
    ],
)
def test_records_that_are_not_as_the_broker_says_are_none(tmp_path, of, changed):
    files, places, sizes, _ = log_of(tmp_path, (3, b"a" * 9), (4, b"b" * 50))
    offsets = range(3, 5)
    if of == "places":
        places = places + np.array(changed)
    elif of == "sizes":
        sizes = sizes + np.array(changed, np.int32)
    else:
        offsets = changed
    assert files.records(places, sizes, offsets) is None


def test_offsets_must_ascend(tmp_path):
    files, places, sizes, _ = log_of(tmp_path, (4, b"a"), (3, b"b"))
    assert files.records(places, sizes, range(9)) is None
