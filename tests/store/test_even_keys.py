"""Keys of recent writes hashed by columns equal those hashed message by message."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.stores.small_store import components_of, message, open_store

from rmq_spark.wire.message.message_batch import BatchedMessage, encode_batch, fixed_size_entries
from rmq_spark.wire.message.properties import KEYS, TAGS, UNIQ_KEY
from rmq_spark.wire.message.record import StoredMessage, encode_record
from rocketpoll.broker.store.append.column_batches import FixedSizeBatch
from rocketpoll.broker.store.append.record_encoding import RecordTemplate, draft_of
from rocketpoll.broker.store.bulk import bulk_tools
from rocketpoll.broker.store.bulk.index_hash import hash_keys
from rocketpoll.broker.store.index.index_keys import hash_fixed_size, hash_records, hash_runs
from rocketpoll.broker.store.records.fields import (
    PropertySearch,
    pattern_of,
    property_of,
    values_in_each,
)
from rocketpoll.broker.store.records.recent_writes import ColumnRun, RecentRecord, RecentRun

PIECES = (
    *("UNIQ_KEY\x01", "KEYS\x01", "TAGS\x01", "XUNIQ_KEY\x01", "UNIQ_KE", "\x01", "\x02"),
    *("a", "b", "\u00e9", " "),
)


def terminated(text):
    return text + b"\x02" if text and not text.endswith(b"\x02") else text


def rows_at(start, own, topic="T", sizes=100, time=None):
    """Return a batch of messages with these properties."""
    sizes = np.full(len(own), sizes) if isinstance(sizes, int) else np.array(sizes)
    places, lengths = start + sizes.cumsum() - sizes, np.array([*map(len, own)])
    if (lengths == lengths[0]).all():
        lengths = int(lengths[0])
    time = start if time is None else time
    return ColumnRun((topic, 0), 0, places, sizes, b"".join(own), lengths, time)


def test_column_keys_of_several_producers_are_in_log_order():
    batches = [
        rows_at(0, [b"UNIQ_KEY\x01a\x02", b"UNIQ_KEY\x01b\x02"]),
        rows_at(200, [b"UNIQ_KEY\x01c\x02"]),
        rows_at(300, [b"k\x01v\x02"]),
        rows_at(400, [b"UNIQ_KEY\x01d\x02"], topic="U"),
    ]
    hashes, places, times = hash_runs(batches)
    keys = [("T", "a"), ("T", "b"), ("T", "c"), ("U", "d")]
    assert hashes.tolist() == [hash_keys(topic, key, None)[0] for topic, key in keys]
    assert places.tolist() == [0, 100, 200, 400]
    assert times.tolist() == [0, 0, 200, 400]
    assert [part.dtype for part in hash_runs(batches[2:3])] == [np.int32, np.int64, np.int64]


def text_of(value):
    return None if value is None else value.decode("utf-8", "replace")


def looked_for(topic, rows):
    """Return the key hashes that find each message."""
    found = ([property_of(row, pattern_of(name)) for name in (UNIQ_KEY, KEYS)] for row in rows)
    return [
        key_hash
        for unique, words in found
        for key_hash in hash_keys(topic, text_of(unique), text_of(words))
    ]


@st.composite
def rows_of_one_width(draw):
    """Draw rows of one producer, some of which may differ from the first."""
    first = "".join(draw(st.lists(st.sampled_from(PIECES), max_size=6))).encode()
    rows = [first]
    for _ in range(draw(st.integers(0, 4))):
        row = bytearray(first)
        for at in draw(st.lists(st.integers(0, len(first) - 1), max_size=3)) if first else ():
            row[at] = draw(st.sampled_from(b"ab\x01\x02\xe9"))
        rows.append(bytes(row))
    return rows


@given(st.sampled_from(["T", "%RETRY%g", "\u00fc"]), rows_of_one_width())
@example("T", [b"UNIQ_KEY\x01a\x02UNIQ_KEY\x01b\x02", b"UNIQ_KEY\x01a\x02unIQ_KEY\x01b\x02"])
@example("T", [b"UNIQ_KEY\x01\x02a", b"UNIQ_KEY\x01\x02a"])
@example("T", [b"aUNIQ_KEY\x01ab", b"aUNIQ_KEY\x01ab"])
@example("T", [b"UNIQ_KEY\x01ab", b"a\x02UNIQ_KEYb"])
@example("T", [b"UNIQ_KEY\x01abc\x02zzzzzzzzzzzz", b"kkkkkkkkkkkk\x01v\x02UNIQ_KEY\x01a"])
def test_column_keys_of_one_width_equal_those_of_each_message(topic, rows):
    hashes = hash_fixed_size(topic, b"".join(rows), len(rows))
    if hashes is not None:
        assert hashes.tolist() == looked_for(topic, rows)


ids = st.text("0123456789ABCDEF", min_size=32, max_size=32)


@pytest.mark.parametrize(
    "form",
    [
        "UNIQ_KEY\x01{}\x02WAIT\x01true\x02",
        "UNIQ_KEY\x01{}\x02",
        "TAGS\x01t\x02UNIQ_KEY\x01{}\x02",
        "a\x01b\x02",
    ],
)
@given(st.lists(ids, min_size=1, max_size=5))
def test_unique_keys_of_producers_need_no_search(form, keys):
    rows = [form.format(key).encode() for key in keys]
    hashes = hash_fixed_size("orders", b"".join(rows), len(rows))
    assert hashes.tolist() == looked_for("orders", rows)


names = [UNIQ_KEY, KEYS, TAGS]
rows_of_pieces = st.lists(
    st.lists(st.sampled_from(PIECES), max_size=6).map("".join).map(str.encode).map(terminated),
    max_size=5,
)


@given(rows_of_pieces, st.sampled_from(names))
@example([b"UNIQ_KEY\x01a\x02UNIQ_KEY\x01b\x02", b"UNIQ_KEY\x01a\x02UNIQ_KEY\x01\x02"], UNIQ_KEY)
@example([b"", b"aKEYS\x01ab\x02", b"\x02\x02KEYS\x01b\x02", b""], KEYS)
@example([b"UNIQ_KEY\x02UNIQ_KEYS\x01a\x02UNIQ_KE\x02"], UNIQ_KEY)
@example([b"KEYS\x01\x01\x02", b"KEYS\x02"], KEYS)
def test_property_columns_find_what_a_search_of_each_message_finds(rows, name):
    columns = PropertySearch(rows, np.array([*map(len, rows)], np.int64))
    found = zip(*(part.tolist() for part in columns.find(pattern_of(name))), strict=True)
    searched = ((row, property_of(text, pattern_of(name))) for row, text in enumerate(rows))
    assert [(row, columns.text[start:stop]) for row, start, stop in found] == [
        (row, value) for row, value in searched if value
    ]


def once_in_each(rows, name):
    return values_in_each(b"".join(rows), np.cumsum([*map(len, rows)]), pattern_of(name))


@given(rows_of_pieces.filter(bool), st.sampled_from(names))
@example([b"TAGS\x01a\x02TAGS\x01b\x02", b"k\x01v\x02"], TAGS)
@example([b"k\x01v\x02", b"TAGS\x01a\x02TAGS\x01b\x02"], TAGS)
@example([b"", b"TAGS\x01a\x02"], TAGS)
@example([b"TAGS\x01\x02", b"XTAGS\x01a\x02TAGS\x01b\x02"], TAGS)
def test_property_that_each_message_has_once_is_what_a_search_of_each_message_finds(rows, name):
    times = [(b"\x02" + row).count(pattern_of(name)) for row in rows]
    values = once_in_each(rows, name)
    if times != [1] * len(rows):
        assert values is None
    else:
        found = [property_of(row, pattern_of(name)) for row in rows]
        assert [value or None for value in values] == found


@given(st.lists(st.sampled_from(["paid", "", "\u00e9", "TAGS\x01"]), min_size=1, max_size=40))
def test_tags_of_a_producers_batch_are_found_at_any_position(tags):
    for form in ("TAGS\x01{}\x02UNIQ_KEY\x01a\x02", "KEYS\x01TAGS\x01\x02TAGS\x01{}\x02"):
        rows = [form.format(tag).encode() for tag in tags]
        assert once_in_each(rows, TAGS) == [tag.encode() for tag in tags]


pieces = st.sampled_from(
    [
        *("UNIQ_KEY\x01u1\x02", "UNIQ_KEY\x01é😀\x02", "UNIQ_KEY\x01\x02", "KEYS\x01a\x02"),
        *("KEYS\x01a  b é \x02", "KEYS\x01 \x02", "x\x01KEYS\x02", "KEYSS\x01no\x02", "\x02"),
    ]
)
texts = st.lists(pieces, max_size=4).map(lambda some: "".join(some).encode())


@given(
    runs=st.lists(
        st.tuples(st.booleans(), st.sampled_from("TÜ"), st.lists(texts, min_size=1, max_size=6)),
        max_size=6,
    ),
    copies=st.sampled_from([1, 20]),
)
def test_keys_of_recent_writes_equal_those_of_their_log_records(runs, copies):
    bulk_tools.start_loading().result()
    made, records, place = [], [], 0
    for time, (is_batch, topic, given_texts) in enumerate(runs * copies):
        fields = [
            StoredMessage(
                topic=topic,
                body=b"b",
                properties_text=text.decode(),
                store_timestamp=time,
                physical_offset=place,
            )
            for text in given_texts
        ]
        encoded = [encode_record(each) for each in fields]
        start = place
        recent = []
        for text, record in zip(given_texts, encoded, strict=True):
            recent.append(RecentRecord((topic, 0), 0, place, len(record), text))
            place += len(record)
        if is_batch:
            made.append(rows_at(start, given_texts, topic, [*map(len, encoded)], time))
        else:
            made.append(RecentRun(recent, time, place))
        records += encoded
    if made:
        found = hash_runs(made)
        read = hash_records(b"".join(records), [*map(len, records)], 0)
        assert [part.tolist() for part in found] == [part.tolist() for part in read]
        assert [part.dtype for part in found] == [part.dtype for part in read]


def test_writes_with_too_many_keys_for_a_step_are_read_from_the_log():
    keys = b"KEYS\x01" + b"a " * 5_000 + b"\x02"
    records = [RecentRecord(("T", 0), n, n * 100, 100, keys) for n in range(2)]
    assert hash_runs([RecentRun(records[:1], 5, 100)]) is not None
    assert hash_runs([RecentRun(records, 5, 200)]) is None


def test_batch_keys_are_indexed_without_reading_the_log(tmp_path):
    store = open_store(tmp_path, mapped_file_size_commit_log=1 << 20)
    template = RecordTemplate(draft_of(message("")))
    places = {}
    for batch in range(3):
        keys = [f"{batch}-{number:02d}" for number in range(20)]
        each = [BatchedMessage(b"x" * 9, f"UNIQ_KEY\x01{key}\x02WAIT\x01true") for key in keys]
        entries = fixed_size_entries(encode_batch(each))
        even = FixedSizeBatch(template, entries, b"\x02C\x01c\x02", 5)
        start = store.put_batch(even).physical_offset
        places |= {key: start + number * even.record_bytes for number, key in enumerate(keys)}
    end = store.state().written_offset
    components_of(store).log.files.write(0, bytes(end))
    assert components_of(store).reput.catch_up_index()
    index = components_of(store).index
    assert {key: index.query("T", key, 0, 1 << 60, 9).physical_offsets for key in places} == {
        key: [place] for key, place in places.items()
    }
    assert store.state().holes == ()
    store.shutdown()
