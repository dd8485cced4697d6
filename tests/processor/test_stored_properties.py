"""What is stored of a message's properties is what a plain dict would make of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.processor.stored_properties import PropertyRewriter
from rmq_spark.wire.properties import decode_properties

REWRITER = PropertyRewriter("C")

names = st.sampled_from(["WAIT", "MYWAIT", "DELAY", "CLUSTER", "TRAN_MSG", "TAGS", "KEYS", "a"])
values = st.sampled_from(["true", "false", "trueness", "3", "b", "WAIT", "x y"])
texts = st.tuples(
    st.lists(st.tuples(names, values), max_size=6),
    st.sampled_from(["", "\x02"]),
).map(lambda drawn: "\x02".join(f"{name}\x01{value}" for name, value in drawn[0]) + drawn[1])


def expected(text):
    properties = decode_properties(text)
    properties.pop("WAIT", None)
    properties["CLUSTER"] = "C"
    return properties


@given(texts)
def test_wait_is_dropped_and_the_cluster_added_whatever_else_there_is(text):
    stored = REWRITER.stored(text)
    given_properties = decode_properties(text)
    assert decode_properties(stored.text) == expected(text)
    assert stored.text.endswith("\x02")
    assert stored.waits == (given_properties.get("WAIT", "true") == "true")
    level = given_properties.get("DELAY", "0")
    assert stored.delay_level == (int(level) if level.isdecimal() else 0)
    assert stored.is_half_message == (given_properties.get("TRAN_MSG") == "true")


@pytest.mark.parametrize("text", [None, ""])
def test_a_message_without_properties_has_its_cluster(text):
    assert REWRITER.stored(text) == ("CLUSTER\x01C\x02", True, 0, False)


@given(texts, texts)
def test_a_message_of_a_batch_has_its_own_and_then_the_batchs(own, of_batch):
    suffix = REWRITER.stored(of_batch).text
    stored = REWRITER.stored_in_batch(own.encode(), suffix.encode()).decode()
    assert decode_properties(stored) == {**expected(own), **decode_properties(suffix)}
    assert stored.count("CLUSTER\x01") == 1
