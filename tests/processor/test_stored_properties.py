"""What a broker changes in the properties of a message, and that it changes nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.processor.stored_properties import PropertyRewriter, StoredProperties
from rmq_spark.wire.properties import decode_properties, encode_properties

REWRITER = PropertyRewriter("C1")
CLUSTER = "CLUSTER\x01C1\x02"


@pytest.mark.parametrize(
    ("text", "stored", "waits"),
    [
        (None, CLUSTER, True),
        ("", CLUSTER, True),
        ("KEYS\x01k\x02", "KEYS\x01k\x02" + CLUSTER, True),
        ("KEYS\x01k", "KEYS\x01k\x02" + CLUSTER, True),
        ("WAIT\x01true\x02", CLUSTER, True),
        ("WAIT\x01false", CLUSTER, False),
        ("KEYS\x01k\x02WAIT\x01true\x02TAGS\x01a\x02", "KEYS\x01k\x02TAGS\x01a\x02" + CLUSTER, True),
        ("KEYS\x01k\x02WAIT\x01false\x02TAGS\x01a", "KEYS\x01k\x02TAGS\x01a\x02" + CLUSTER, False),
        ("AWAIT\x01true\x02", "AWAIT\x01true\x02" + CLUSTER, True),
        ("AWAIT\x01false\x02WAIT\x01true\x02", "AWAIT\x01false\x02" + CLUSTER, True),
        ("WAIT\x01true\x02WAIT\x01false\x02", CLUSTER, False),
    ],
)
def test_wait_goes_and_the_cluster_comes(text, stored, waits):
    assert REWRITER.stored(text) == StoredProperties(stored, waits)


@pytest.mark.parametrize(
    ("level", "delay_level"),
    [("3", 3), ("0", 0), ("-1", 0), ("x", 0), ("", 0), ("99999999999", 0), ("1.5", 0)],
)
def test_the_delay_level_is_a_number_or_none(level, delay_level):
    assert REWRITER.stored(f"DELAY\x01{level}\x02").delay_level == delay_level


@pytest.mark.parametrize(("text", "is_half"), [("true", True), ("false", False), ("TRUE", False)])
def test_a_half_message_says_so(text, is_half):
    assert REWRITER.stored(f"TRAN_MSG\x01{text}\x02").is_half_message is is_half


def test_a_cluster_that_the_sender_has_named_is_replaced():
    assert decode_properties(REWRITER.stored("CLUSTER\x01theirs\x02KEYS\x01k\x02").text) == {
        "CLUSTER": "C1",
        "KEYS": "k",
    }


NAMES = st.sampled_from(["WAIT", "DELAY", "CLUSTER", "TRAN_MSG", "AWAIT", "KEYS", "W", "CLUSTERS"]) | st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=8
)
VALUES = st.sampled_from(["true", "false", "3", "WAIT"]) | st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=8
)


@given(properties=st.dictionaries(NAMES, VALUES, max_size=6), is_cut=st.booleans())
def test_all_other_properties_are_as_they_were(properties, is_cut):
    text = encode_properties(properties)
    stored = REWRITER.stored(text[:-1] if is_cut and text else text)
    expected = {name: value for name, value in properties.items() if name != "WAIT"}
    assert decode_properties(stored.text) == {**expected, "CLUSTER": "C1"}
    assert stored.waits is (properties.get("WAIT", "true") == "true")
    assert stored.text.endswith("\x02")
    assert stored.is_half_message is (properties.get("TRAN_MSG") == "true")
