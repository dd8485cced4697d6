"""Batches encoded by columns give the same records, entries, notifications and index keys as their
messages one by one.
"""

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from support.messages.stored_messages import int32s, int64s, plain_messages
from support.stores.small_store import message, open_store

from rmq_spark.wire.message.message_batch import (
    BatchedMessage,
    encode_batch,
    fixed_size_entries,
    split_batch,
)
from rmq_spark.wire.names import SCHEDULE_TOPIC
from rocketpoll.broker.store.append.column_batches import (
    FixedSizeBatch,
    VariableSizeBatch,
    properties_of_batch,
)
from rocketpoll.broker.store.append.record_encoding import (
    RecordRun,
    RecordTemplate,
    UniformParts,
    draft_of,
)
from rocketpoll.broker.store.results import PutMessageStatus as Status

ENDINGS = (b"", b"CLUSTER\x01C\x02", b"\x02CLUSTER\x01C\x02", b"TAGS\x01late\x02", b"\x02x\x01y")


@st.composite
def even_batches(draw):
    """Draw the messages of a batch, with bodies and properties of equal lengths."""
    count = draw(st.integers(1, 20))
    body_bytes, shape = (
        draw(st.integers(1, 40)),
        draw(st.sampled_from(["", "k", "id", "tag", "raw"])),
    )
    body = st.binary(min_size=body_bytes, max_size=body_bytes)
    letters = st.text("ab", min_size=3, max_size=3)
    texts = {
        "": st.just(""),
        "k": letters.map("KEYS\x01{}\x02WAIT\x01true\x02".format),
        "id": letters.map("UNIQ_KEY\x01{}\x02WAIT\x01true".format),
        "tag": letters.map("UNIQ_KEY\x01{}\x02TAGS\x01same\x02".format)
        | letters.map("TAGS\x01{}\x02KEYS\x01aaa\x02k\x01zz\x02".format),
        "raw": st.text("\x01\x02aT", min_size=7, max_size=7),
    }[shape]
    return [BatchedMessage(draw(body), draw(texts), draw(int32s)) for _ in range(count)]


def as_parts(each, ending):
    return UniformParts(
        [one.flag for one in each],
        [one.body for one in each],
        [one.properties_text.encode() + ending for one in each],
    )


def have_one_end(each, ending):
    """Return whether the same ending adds the last separator to all properties."""
    return ending or len({one.properties_text.endswith("\x02") for one in each}) == 1


def even_of(template, each, ending, born_timestamp):
    entries = fixed_size_entries(encode_batch(each))
    assert entries.rows == len(each)
    return FixedSizeBatch(template, entries, ending, born_timestamp)


def columns_of(template, each, ending, born_timestamp):
    """Return the batch by columns if its messages have one size, else as a run."""
    if fixed_size_entries(encode_batch(each)) is not None and have_one_end(each, ending):
        return even_of(template, each, ending, born_timestamp)
    return VariableSizeBatch(template, as_parts(each, ending), born_timestamp)


@given(plain_messages, even_batches(), st.sampled_from(ENDINGS), int64s, st.tuples(*[int64s] * 3))
def test_even_batch_encoding_equals_single_records(common, each, ending, born_timestamp, place):
    assume(have_one_end(each, ending))
    place = tuple(abs(number) >> 1 for number in place)
    template = RecordTemplate(draft_of(common))
    even = even_of(template, each, ending, born_timestamp)
    uniform = RecordRun.uniform(template, as_parts(each, ending), born_timestamp)
    for batch in (even, uniform):
        batch.next_offsets = {template.queue: place[0]}
    assert (even.size, even.sizes) == (uniform.size, uniform.sizes)
    assert even.encode(*place) == uniform.encode(*place)


@st.composite
def uneven_batches(draw):
    """Draw the messages of a batch, with different sizes."""
    pieces = st.sampled_from(
        ["KEYS\x01a b\x02", "UNIQ_KEY\x01id\x02", "TAGS\x01one\x02", "TAGS\x01\x02", "x\x01y"]
    )
    texts = st.lists(pieces, max_size=4).map("".join) | st.text("\x01\x02aT", max_size=7)
    messages = st.builds(BatchedMessage, st.binary(min_size=1, max_size=300), texts, int32s)
    return draw(st.lists(messages, min_size=1, max_size=20))


@given(plain_messages, uneven_batches(), st.sampled_from(ENDINGS), int64s, st.tuples(*[int64s] * 3))
def test_uneven_batch_encoding_equals_single_records(common, each, ending, born_timestamp, place):
    place = tuple(abs(number) >> 1 for number in place)
    template = RecordTemplate(draft_of(common))
    made = []
    for batch in (
        VariableSizeBatch(template, as_parts(each, ending), born_timestamp),
        RecordRun.uniform(template, as_parts(each, ending), born_timestamp),
    ):
        batch.next_offsets = {template.queue: place[0]}
        sizes = batch.size, batch.sizes, batch.body_bytes_max, batch.properties_bytes_max
        made.append((sizes, batch.encode(*place), batch.next_offsets))
    assert made[0] == made[1]


class Listener:
    def __init__(self):
        self.told = []

    def arriving(self, *given):
        self.told.append(given)


def kept(root):
    """Return the files of commit log, consume queues and index."""
    return {
        path.relative_to(root): path.read_bytes().rstrip(b"\0")
        for directory in ("commitlog", "consumequeue", "index")
        for path in sorted((root / directory).rglob("*"))
        if path.is_file()
    }


@settings(max_examples=40)
@given(
    st.sampled_from(["T", "U", SCHEDULE_TOPIC]),
    st.lists(
        st.tuples(even_batches() | uneven_batches(), st.sampled_from(ENDINGS), st.booleans()),
        min_size=1,
        max_size=8,
    ),
)
@example(
    "T", [([BatchedMessage(b"x" * 200, "KEYS\x01k\x02", 1)] * 400, b"", True)]
)  # too many for the memory
@example("T", [([BatchedMessage(b"x", "UNIQ_KEY\x01k\x02", 1)] * 200, b"", True)] * 2)
def test_store_with_column_batches_equals_one_with_single_messages(
    tmp_path_factory, topic, batches
):
    roots, stores, listeners = [], [], []
    for _ in range(2):
        roots.append(tmp_path_factory.mktemp("store"))
        listeners.append(Listener())
        stores.append(
            open_store(
                roots[-1],
                listener=listeners[-1],
                mapped_file_size_commit_log=1 << 20,
                mapped_file_size_consume_queue=20 * 1_000,
            )
        )
    template = RecordTemplate(draft_of(message("", topic=topic, queue_id=1)))
    for each, ending, is_followed in batches:
        results = (
            stores[0].put_batch(columns_of(template, each, ending, 5)),
            stores[1].put_batch(RecordRun.uniform(template, as_parts(each, ending), 5)),
        )
        assert results[0] == results[1]
        assert results[0].status is Status.PUT_OK
        for store in stores if is_followed else ():
            store.put_message(message("between", topic="T", queue_id=1, keys="z"))
    for store in stores:
        store.save_checkpoint()
    assert listeners[0].told == listeners[1].told
    assert kept(roots[0]) == kept(roots[1])
    for store in stores:
        store.shutdown()


def test_invalid_even_batch_is_refused_like_single_messages(tmp_path):
    store = open_store(tmp_path, max_message_size=1_000)
    template = RecordTemplate(draft_of(message("")))
    long_body = [BatchedMessage(b"x" * 1_001, "", 0)] * 2
    long_properties = [BatchedMessage(b"x", "k\x01" + "v" * 32_750 + "\x02", 0)] * 2
    whole_file = [BatchedMessage(b"x" * 900, "", 0)] * 20
    for each in (long_body, long_properties, whole_file):
        result = store.put_batch(even_of(template, each, b"", 5))
        assert result == store.put_batch(RecordRun.uniform(template, as_parts(each, b""), 5))
        assert result.status is not Status.PUT_OK
    assert store.state().written_offset == 0
    store.stop_accepting("it is told to")
    refused = store.put_batch(even_of(template, [BatchedMessage(b"x", "", 0)], b"", 5))
    assert (refused.status, refused.remark) == (Status.SERVICE_NOT_AVAILABLE, "it is told to")
    store.shutdown()


@given(even_batches(), st.randoms())
def test_even_batch_table_equals_the_split_batch(each, dice):
    data = encode_batch(each)
    entries = fixed_size_entries(memoryview(data))
    apart = split_batch(data)
    assert (entries.rows, entries.first) == (len(apart), apart[0])
    assert properties_of_batch(entries) == b"".join(one.properties for one in apart)
    assert {len(one.body) for one in apart} == {len(entries.first.body)}
    damaged = bytearray(data)
    damaged[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    entries = fixed_size_entries(damaged)
    if entries is not None:  # otherwise the bit was in a body, a flag or an unused field
        assert [(len(one.body), len(one.properties)) for one in split_batch(damaged)] == [
            (len(apart[0].body), len(apart[0].properties))
        ] * len(apart)


@pytest.mark.parametrize(
    "each",
    [
        [BatchedMessage(b"a"), BatchedMessage(b"bb")],
        [BatchedMessage(b"a", "k"), BatchedMessage(b"b", "")],
        [BatchedMessage(b"aa", "k"), BatchedMessage(b"a", "kk")],
        [BatchedMessage(b"")],
        [],
    ],
)
def test_uneven_messages_and_those_without_body_are_no_table(each):
    assert fixed_size_entries(encode_batch(each)) is None
