"""Stored message properties match those that a plain dict would produce."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.wire.message.properties import TIMER_PROPERTIES, decode_properties
from rocketpoll.broker.processor.sends import stored_properties
from rocketpoll.broker.processor.sends.stored_properties import PropertyRewriter, StoredProperties

MARKS = {"MSG_REGION": "R", "TRACE_ON": "true"}
REWRITER = PropertyRewriter("C", MARKS)
ADDED = "MSG_REGION\x01R\x02TRACE_ON\x01true\x02CLUSTER\x01C\x02"

names = st.sampled_from(
    [
        "WAIT",
        "MYWAIT",
        "DELAY",
        "CLUSTER",
        "MSG_REGION",
        "TRACE_ON",
        "TRAN_MSG",
        "TAGS",
        "KEYS",
        "a",
    ]
)
values = st.sampled_from(["true", "false", "trueness", "3", "b", "WAIT", "x y"])
texts = st.tuples(
    st.lists(st.tuples(names, values), max_size=6),
    st.sampled_from(["", "\x02"]),
).map(lambda drawn: "\x02".join(f"{name}\x01{value}" for name, value in drawn[0]) + drawn[1])


def expected(text):
    properties = decode_properties(text)
    properties.pop("WAIT", None)
    properties.update(CLUSTER="C", **MARKS)
    return properties


@given(texts)
def test_wait_is_dropped_and_cluster_region_and_trace_switch_added(text):
    stored = REWRITER.rewrite(text)
    given_properties = decode_properties(text)
    assert decode_properties(stored.text) == expected(text)
    assert stored.text.endswith("\x02")
    assert stored.waits == (given_properties.get("WAIT", "true") == "true")
    level = given_properties.get("DELAY", "0")
    assert stored.delay_level == (int(level) if level.isdecimal() else 0)
    assert stored.is_half_message == (given_properties.get("TRAN_MSG") == "true")


@pytest.mark.parametrize("text", [None, ""])
def test_message_without_properties_gets_cluster_region_and_trace_switch(text):
    assert REWRITER.rewrite(text) == (ADDED, True, 0, False, None)


@given(texts, texts)
def test_batch_message_has_its_own_properties_and_then_the_batchs(own, of_batch):
    suffix = REWRITER.batch_properties(REWRITER.rewrite(of_batch).text)
    stored = REWRITER.join_in_batch(own.encode(), suffix).decode()
    assert decode_properties(stored) == {
        **decode_properties(own),
        **decode_properties(suffix.decode()),
    }
    assert all(stored.count(f"{name}\x01") == 1 for name in ("CLUSTER", *MARKS))


@given(
    st.lists(texts | st.text("WAIT=true\0\x01\x02é", max_size=20), max_size=5),
    texts | st.sampled_from(["", "A\x01\0\x02B\x01b"]),
)
def test_batch_properties_equal_those_of_single_messages(own, of_batch):
    suffix = REWRITER.batch_properties(REWRITER.rewrite(of_batch).text)
    given_bytes = [each.encode() for each in own]
    expected_bytes = [REWRITER.join_in_batch(each, suffix) for each in given_bytes]
    assert REWRITER.join_all_in_batch(given_bytes, suffix) == expected_bytes


@given(
    st.lists(
        st.sampled_from(["A\x01b\x02", "WAIT\x01true\x02A\x01b", "A\x01b\x02WAIT\x01false\x02"])
    )
)
def test_batch_properties_written_by_java_take_the_fast_path(own):
    rewriter = PropertyRewriter("C", MARKS)
    rewriter.join_in_batch = None
    assert rewriter.join_all_in_batch([each.encode() for each in own], b"X\x01y\x02") == [
        each.removesuffix("\x02").encode() + b"\x02X\x01y\x02" for each in own
    ]


def test_batch_message_keeps_its_own_unique_id():
    batch = REWRITER.rewrite("UNIQ_KEY\x01of the batch\x02WAIT\x01true\x02A\x01b").text
    stored = REWRITER.join_in_batch(
        b"UNIQ_KEY\x01its own\x02", REWRITER.batch_properties(batch)
    ).decode()
    assert decode_properties(stored) == {
        **decode_properties(ADDED),
        "UNIQ_KEY": "its own",
        "A": "b",
    }


@pytest.mark.parametrize(
    ("text", "stored", "waits"),
    [
        (None, ADDED, True),
        ("", ADDED, True),
        ("KEYS\x01k\x02", "KEYS\x01k\x02" + ADDED, True),
        ("KEYS\x01k", "KEYS\x01k\x02" + ADDED, True),
        ("WAIT\x01true\x02", ADDED, True),
        ("KEYS\x01k\x02WAIT\x01true", "KEYS\x01k\x02" + ADDED, True),
        ("KEYS\x01k\x02WAIT\x01true\x02WAIT\x01true", "KEYS\x01k\x02" + ADDED, True),
        ("KEYS\x01k\x02AWAIT\x01true", "KEYS\x01k\x02AWAIT\x01true\x02" + ADDED, True),
        ("KEYS\x01k\x02WAIT\x01true\x02WAIT\x01false", "KEYS\x01k\x02" + ADDED, False),
        ("WAIT\x01false", ADDED, False),
        (
            "KEYS\x01k\x02WAIT\x01true\x02TAGS\x01a\x02",
            "KEYS\x01k\x02TAGS\x01a\x02" + ADDED,
            True,
        ),
        ("KEYS\x01k\x02WAIT\x01false\x02TAGS\x01a", "KEYS\x01k\x02TAGS\x01a\x02" + ADDED, False),
        ("AWAIT\x01true\x02", "AWAIT\x01true\x02" + ADDED, True),
        ("AWAIT\x01false\x02WAIT\x01true\x02", "AWAIT\x01false\x02" + ADDED, True),
        ("WAIT\x01true\x02WAIT\x01false\x02", ADDED, False),
    ],
)
def test_wait_property_is_dropped_and_others_kept(text, stored, waits):
    assert REWRITER.rewrite(text) == StoredProperties(stored, waits)


@pytest.mark.parametrize(
    ("level", "delay_level"),
    [("3", 3), ("0", 0), ("-1", 0), ("x", 0), ("", 0), ("99999999999", 0), ("1.5", 0)],
)
def test_delay_level_property_is_parsed_as_a_number_or_none(level, delay_level):
    assert REWRITER.rewrite(f"DELAY\x01{level}\x02").delay_level == delay_level


@pytest.mark.parametrize(
    ("text", "timer"),
    [
        ("TIMER_DELAY_SEC\x013\x02", "TIMER_DELAY_SEC"),
        ("KEYS\x01k\x02TIMER_DELAY_MS\x013000", "TIMER_DELAY_MS"),
        ("TIMER_DELIVER_MS\x01soon", "TIMER_DELIVER_MS"),
        ("TIMER_DELAY_MS\x013000\x02DELAY\x012\x02", None),  # the level counts
        ("TIMER_DELAY_MS\x013000\x02DELAY\x010\x02", "TIMER_DELAY_MS"),
        ("TIMER_DELAY_MS\x013000\x02TIMER_OUT_MS\x0117\x02", None),  # its timer was set earlier
        ("TIMER_DEL_UNIQKEY\x01k\x02MY_TIMER_DELAY_MS\x013\x02KEYS\x01TIMER_DELAY_SEC\x02", None),
    ],
)
def test_timer_properties_are_recognized_like_in_rocketmq(text, timer):
    stored = REWRITER.rewrite(text)
    assert stored.timer == timer
    wanted = expected(text)
    if stored.delay_level:  # a delay level drops all timer properties in RocketMQ
        wanted = {name: wanted[name] for name in wanted if name not in TIMER_PROPERTIES}
    assert decode_properties(stored.text) == wanted


def test_timer_properties_share_a_prefix():
    assert all(name.startswith(stored_properties._TIMER) for name in TIMER_PROPERTIES)


@pytest.mark.parametrize(
    ("own", "later"),
    [
        ([], None),
        (["KEYS\x01k", "", "MY_DELAY\x013\x02"], None),
        (["KEYS\x01k", "DELAY\x010\x02"], None),
        (["KEYS\x01k", "DELAY\x012\x02"], "DELAY"),
        (["TIMER_DELAY_SEC\x012", "DELAY\x012\x02"], "TIMER_DELAY_SEC"),
    ],
)
def test_delayed_message_in_a_batch_is_found(own, later):
    assert REWRITER.find_delay_in_batch([each.encode() for each in own]) == later


@pytest.mark.parametrize(("text", "is_half"), [("true", True), ("false", False), ("TRUE", False)])
def test_transaction_property_marks_a_half_message(text, is_half):
    assert REWRITER.rewrite(f"TRAN_MSG\x01{text}\x02").is_half_message is is_half


def test_sender_given_cluster_and_region_properties_are_replaced():
    stored = REWRITER.rewrite("CLUSTER\x01theirs\x02MSG_REGION\x01theirs\x02KEYS\x01k\x02").text
    assert decode_properties(stored) == {**MARKS, "CLUSTER": "C", "KEYS": "k"}
    assert stored.count("MSG_REGION\x01") == 1


@pytest.mark.parametrize(
    ("own", "stored"),
    [
        ("", ADDED),
        ("TAGS\x01a", "TAGS\x01a\x02" + ADDED),
        ("KEYS\x01k\x02WAIT\x01false", "KEYS\x01k\x02WAIT\x01false\x02" + ADDED),
        ("WAIT\x01true\x02TAGS\x01a\x02", "WAIT\x01true\x02TAGS\x01a\x02" + ADDED),
        ("CLUSTER\x01other\x02TAGS\x01a", "TAGS\x01a\x02" + ADDED),
        ("CLUSTER\x01other", ADDED),
    ],
)
def test_batched_message_keeps_its_properties_except_cluster(own, stored):
    assert REWRITER.join_in_batch(own.encode(), ADDED.encode()) == stored.encode()


@given(st.lists(texts, min_size=1, max_size=4))
def test_bulk_property_rewrite_equals_single_rewrites(many):
    together = REWRITER.rewrite_all('"'.join(many), '"')
    each = [REWRITER.rewrite(text) for text in many]
    if together is None:
        names_of_all = {name for text in many for name in decode_properties(text)}
        assert names_of_all & {"WAIT", "MYWAIT", "DELAY", "CLUSTER", "TRAN_MSG", *MARKS}
    else:
        assert together == [stored.text.encode() for stored in each]
        assert {stored[1:] for stored in each} == {(True, 0, False, None)}


@given(
    st.integers(0, 12).flatmap(
        lambda width: st.lists(
            st.text("ab\x01\x02", min_size=width, max_size=width).map(str.encode), min_size=1
        )
    )
    | st.lists(st.sampled_from([b"CLUSTER\x01x\x02", b"KEYS\x01abcde\x02"]), min_size=1)
    | st.lists(st.sampled_from([b"DELAY\x013\x02", b"KEYS\x01k\x02x"[:8]]), min_size=1),
    st.sampled_from([b"", b"X\x01y\x02"]),
)
def test_batch_suffix_equals_the_suffix_of_each_message(own, of_batch):
    width = len(own[0])
    ending = REWRITER.batch_suffix(b"".join(own), width, of_batch)
    if ending is not None:
        assert [each + ending for each in own] == REWRITER.join_all_in_batch(own, of_batch)
        assert REWRITER.find_delay_in_batch(own) is None
    else:
        ends = {each.endswith(b"\x02") for each in own}
        assert len(ends) == 2 or any(each.startswith((b"CLUSTER", b"DELAY")) for each in own)
