"""Message traces are written and read as by RocketMQ's TraceDataEncoder."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.wire.trace import (
    ConsumeReturnType,
    MessageTrace,
    TraceMessageType,
    TraceType,
    decode_traces,
    encode_traces,
)

SENT = MessageTrace(
    trace_type=TraceType.PUB,
    message_id="ID1",
    group="shop",
    timestamp_ms=1_700_000_000_123,
    topic="orders",
    tags="blue",
    keys="k1 k2",
    store_host="10.0.0.2:10911",
    body_length=345,
    cost_ms=12,
    message_type=TraceMessageType.DELAY,
    offset_message_id="0A0000020000",
)
BEFORE = MessageTrace(
    trace_type=TraceType.SUB_BEFORE,
    message_id="ID1",
    group="shop",
    timestamp_ms=1_700_000_000_123,
    keys="k1 k2",
    request_id="7F00REQ",
    retry_times=2,
)
AFTER = MessageTrace(
    trace_type=TraceType.SUB_AFTER,
    message_id="ID1",
    group="shop",
    timestamp_ms=1_700_000_000_123,
    keys="k1 k2",
    cost_ms=12,
    is_success=False,
    request_id="7F00REQ",
    return_type=ConsumeReturnType.FAILED,
)
ENDED = MessageTrace(
    trace_type=TraceType.END_TRANSACTION,
    message_id="ID1",
    group="shop",
    timestamp_ms=1_700_000_000_123,
    topic="orders",
    tags="blue",
    keys="k1",
    store_host="10.0.0.2:10911",
    message_type=TraceMessageType.DELAY,
    transaction_id="TX",
    transaction_state="COMMIT_MESSAGE",
    is_from_check=True,
)
RECALLED = MessageTrace(
    trace_type=TraceType.RECALL,
    message_id="ID1",
    group="shop",
    timestamp_ms=1_700_000_000_123,
    topic="orders",
)

OF_JAVA = {
    "pub": (
        (
            "Pub\x011700000000123\x01DefaultRegion\x01shop\x01orders\x01ID1\x01blue\x01k1 k2"
            "\x0110.0.0.2:10911\x01345\x0112\x013\x010A0000020000\x01true\x02"
        ),
        [SENT],
    ),
    "pub of a failure, without tags and keys": (
        (
            "Pub\x011700000000123\x01DefaultRegion\x01shop\x01orders\x01ID1\x01null\x01null"
            "\x0110.0.0.2:10911\x01345\x0112\x013\x010A0000020000\x01false\x02"
        ),
        [replace(SENT, tags=None, keys=None, is_success=False)],
    ),
    "before": (
        (
            "SubBefore\x011700000000123\x01DefaultRegion\x01shop\x017F00REQ\x01ID1\x012"
            "\x01k1 k2\x02"
            "SubBefore\x011700000000123\x01DefaultRegion\x01shop\x017F00REQ\x01ID2\x012\x01null\x02"
        ),
        [BEFORE, replace(BEFORE, message_id="ID2", keys=None)],
    ),
    "after": (
        (
            "SubAfter\x017F00REQ\x01ID1\x0112\x01false\x01k1 k2\x014\x011700000000123\x01shop\x02"
            "SubAfter\x017F00REQ\x01ID2\x0112\x01false\x01null\x014\x011700000000123\x01shop\x02"
        ),
        [AFTER, replace(AFTER, message_id="ID2", keys=None)],
    ),
    "end of a transaction": (
        (
            "EndTransaction\x011700000000123\x01DefaultRegion\x01shop\x01orders\x01ID1\x01blue\x01k1"
            "\x0110.0.0.2:10911\x013\x01TX\x01COMMIT_MESSAGE\x01true\x02"
        ),
        [ENDED],
    ),
    "recall": (
        "Recall\x011700000000123\x01DefaultRegion\x01shop\x01orders\x01ID1\x01true\x02",
        [RECALLED],
    ),
}
"""Traces written by TraceDataEncoder of 5.5.0; 4.9.7 writes the same, without Recall."""


@pytest.mark.parametrize(("text", "traces"), OF_JAVA.values(), ids=OF_JAVA)
def test_trace_is_encoded_and_decoded_as_by_java(text, traces):
    assert encode_traces(traces) == text.encode()
    assert decode_traces(text.encode()) == traces


OTHERS = {
    "sent by a client without offset ids": (
        "Pub\x015\x01R\x01g\x01t\x01ID\x01a\x01k\x01h\x011\x012\x010\x01true\x02",
        {"timestamp_ms": 5, "offset_message_id": "", "is_success": True},
    ),
    "sent by a client that adds its address": (
        "Pub\x015\x01R\x01g\x01t\x01ID\x01a\x01k\x01h\x011\x012\x010\x01OFF\x01false\x0110.0.0.1\x02",
        {"offset_message_id": "OFF", "is_success": False},
    ),
    "consumed by an older client": (
        "SubAfter\x01req\x01ID\x013\x01true\x01k\x02",
        {"request_id": "req", "cost_ms": 3, "timestamp_ms": 0, "group": ""},
    ),
    "consumed by a client of the cloud": (
        "SubAfter\x01req\x01ID\x013\x01false\x01k\x012\x01\x02",
        {"return_type": ConsumeReturnType.EXCEPTION, "group": ""},
    ),
}


@pytest.mark.parametrize(("text", "fields"), OTHERS.values(), ids=OTHERS)
def test_trace_of_another_version_is_decoded(text, fields):
    (trace,) = decode_traces(text.encode())
    assert {name: getattr(trace, name) for name in fields} == fields


def test_trace_that_cannot_be_read_leaves_the_others_readable():
    text = (
        f"{OF_JAVA['pub'][0]}Pub\x01x\x02Nothing\x01\x02SubAfter\x01\x02\xff{OF_JAVA['recall'][0]}"
    )
    assert decode_traces(text.encode("latin-1"))[0] == SENT


texts = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1)
known = texts.filter(lambda text: text != "null")
numbers = st.integers(0, 1 << 62)


@given(
    traces=st.lists(
        st.builds(
            MessageTrace,
            trace_type=st.just(TraceType.PUB),
            message_id=known,
            group=known,
            timestamp_ms=numbers,
            region_id=known,
            topic=known,
            tags=st.none() | known,
            keys=st.none() | known,
            store_host=known,
            body_length=numbers,
            cost_ms=numbers,
            message_type=st.sampled_from(TraceMessageType),
            offset_message_id=known,
            is_success=st.booleans(),
        )
    )
)
def test_traces_of_sends_are_read_as_they_were_written(traces):
    assert decode_traces(encode_traces(traces)) == traces


@given(fields=st.lists(st.text(max_size=5), max_size=16), kind=st.sampled_from(TraceType))
def test_trace_with_any_fields_is_decoded_or_skipped(fields, kind):
    decode_traces("\x01".join([kind.value, *fields]).encode(errors="replace"))
