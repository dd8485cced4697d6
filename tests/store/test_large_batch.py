"""Very large batches are built in steps: the records are the same, and the log has all or none."""

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.brokers.connections import finished
from support.disks.faulty_disk import Fault, FaultyDisk, ManualClock
from support.messages.stored_messages import int32s, int64s, plain_messages, properties
from support.stores.small_store import (
    LOG_FILE_BYTES,
    bodies,
    components_of,
    message,
    open_store,
    read_all,
)

from rocketpoll.broker.store.append.record_encoding import (
    RecordRun,
    RecordTemplate,
    UniformParts,
    draft_of,
)
from rocketpoll.broker.store.bulk import bulk_tools
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.results import PutMessageStatus as Status


@pytest.fixture(autouse=True)
def _tools():
    """Load the modules that a broker loads in the background."""
    bulk_tools.start_loading().result()


def allow():
    """Admit every batch."""


@pytest.fixture
def store(tmp_path):
    store = open_store(tmp_path)
    yield store
    store.shutdown()


def template_of(text="", **more):
    return RecordTemplate(draft_of(message(text, **more)))


def put(store, texts, template=None, step=4):
    """Put a batch of these texts; return the result."""
    encoded = [str(text).encode() for text in texts]
    some = [encoded[start : start + step] for start in range(0, len(encoded), step)]
    parts = [UniformParts([0] * len(each), each, [b""] * len(each)) for each in some]
    return finished(store.put_large(template or template_of(), parts, 6, allow))[0]


def parts_of(each):
    flags, all_bodies, texts = zip(*each, strict=True)
    return UniformParts(flags, all_bodies, [text.encode() for text in texts])


@settings(max_examples=50)
@given(
    plain_messages,
    st.lists(
        st.tuples(int32s, st.binary(min_size=1, max_size=50), properties), min_size=1, max_size=9
    ),
    st.integers(1, 4),
    int64s,
)
def test_stepwise_large_batch_equals_one_put_at_once(
    tmp_path_factory, common, each, step, born_timestamp
):
    template = RecordTemplate(draft_of(common))
    in_steps, at_once = (
        open_store(tmp_path_factory.mktemp("store"), mapped_file_size_commit_log=1 << 20)
        for _ in range(2)
    )
    for store in (in_steps, at_once):
        store.put_message(message("before"))
    batch = RecordRun.uniform(template, parts_of(each), born_timestamp)
    expected, sizes = at_once.put_batch(batch), batch.sizes
    parts = [parts_of(each[start : start + step]) for start in range(0, len(each), step)]
    result, sizes_in_steps = finished(in_steps.put_large(template, parts, born_timestamp, allow))
    assert result._replace(remark=None) == expected._replace(remark=None)
    if expected.status is Status.PUT_OK:
        assert sizes_in_steps == sizes
    end = at_once.state().written_offset
    assert in_steps.state().written_offset == end
    assert bytes(components_of(in_steps).log.read(0, end)) == bytes(
        components_of(at_once).log.read(0, end)
    )
    for store in (in_steps, at_once):
        store.shutdown()


def test_large_batch_has_successive_offsets_and_is_read_like_others(store):
    store.put_message(message("before"))
    result = put(store, range(20))
    store.put_message(message("after"))
    assert (result.status, result.queue_offset, result.message_count) == (Status.PUT_OK, 1, 20)
    assert bodies(store) == ["before", *map(str, range(20)), "after"]
    assert [each.queue_offset for each in read_all(store, "T", 0)] == list(range(22))


def test_batch_that_does_not_fit_the_log_file_goes_into_the_next_one_whole(store):
    store.put_message(message("x" * 3_000))
    result = put(store, ["x" * 100] * 10)
    assert result.physical_offset == LOG_FILE_BYTES
    assert {each.physical_offset // LOG_FILE_BYTES for each in read_all(store, "T", 0, 1)} == {1}


def test_large_batch_that_cannot_be_stored_is_refused_without_a_trace(tmp_path):
    store = open_store(tmp_path, max_message_size=600)
    refused = {
        "does not fit into one file": (["x" * 100] * 40, None),
        "is over 600": (["x" * 601], None),
        "topic": ("x", template_of(topic="a b")),
    }
    for remark, given_batch in refused.items():
        result = put(store, *given_batch)
        assert remark in result.remark
        assert result.end_offset == -1
    for remark, part in {
        "32 bits": (1 << 31, b"x", b""),
        "32767 bytes": (0, b"x", b"x" * 32_768),
    }.items():
        parts = [UniformParts([0], [b"good"], [b""]), UniformParts(*([each] for each in part))]
        result, _ = finished(store.put_large(template_of(), parts, 6, allow))
        assert (result.status, remark in result.remark) == (Status.MESSAGE_ILLEGAL, True)
    assert store.state().written_offset == 0
    assert store.put_message(message("x")).queue_offset == 0


def test_large_batch_without_disk_space_takes_no_offsets(tmp_path):
    disk = FaultyDisk(LocalDisk())
    store = open_store(tmp_path, disk, ManualClock())
    store.put_message(message("before"))
    disk.plan = [Fault(persistent=True, error=errno.ENOSPC)]
    result = put(store, range(20))
    assert result.status is Status.SERVICE_NOT_AVAILABLE
    assert result.remark == (
        f"the disk is full: [Errno {errno.ENOSPC}] No space left on device: "
        f"'{tmp_path}/commitlog/00000000000000000000'"
    )
    disk.plan = []
    assert store.put_message(message("after")).queue_offset == 1
    assert bodies(store) == ["before", "after"]
    store.shutdown()
