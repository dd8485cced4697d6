"""Bodies written and read in steps equal those processed at once, and no step is long."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.messages.wire_strategies import CLASSES, EXAMPLES, values_of

from rmq_spark.errors import BodyError
from rmq_spark.wire.bodies import (
    decode_body,
    decode_body_in_steps,
    encode_body,
    encode_body_in_steps,
    incremental_codec,
)
from rmq_spark.wire.bodies.clients import HeartbeatData, SubscriptionData
from rmq_spark.wire.bodies.configs import ConsumerOffsetSerializeWrapper
from rmq_spark.wire.bodies.operators import ConsumeStats, ConsumeStatsList, OffsetWrapper, TopicList
from rmq_spark.wire.message_queue import MessageQueue


def taken(work):
    """Run steps; return their number and the result."""
    count = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            return count, end.value
        count += 1


@pytest.mark.parametrize("body_class", CLASSES.values(), ids=CLASSES)
def test_stepwise_body_encoding_equals_encoding_at_once(body_class, monkeypatch):
    monkeypatch.setattr(incremental_codec, "VALUES_PER_STEP", 1)

    @settings(max_examples=EXAMPLES)
    @given(values_of(body_class))
    def in_steps(body):
        assert taken(encode_body_in_steps(body))[1] == encode_body(body)

    in_steps()


@pytest.mark.parametrize("body_class", CLASSES.values(), ids=CLASSES)
def test_stepwise_body_decoding_equals_decoding_at_once(body_class, monkeypatch):
    @settings(max_examples=EXAMPLES)
    @given(values_of(body_class), st.sampled_from([1, 2, 5]))
    def in_steps(body, values_per_step):
        monkeypatch.setattr(incremental_codec, "VALUES_PER_STEP", values_per_step)
        text = encode_body(body)
        assert taken(decode_body_in_steps(body_class, text))[1] == decode_body(body_class, text)

    in_steps()


@pytest.mark.parametrize(
    "text",
    [
        b'{"clientID":1,"consumerDataSet":[[%s]]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[%s,{"topic":{}}]}]}',
        b'{"clientID":"c","consumerDataSet":{"a":[%s]}}',
        b'{"consumerDataSet":[{"groupName":"G","subscriptionDataSet":[%s]}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[{"topic":[%s]}]}]}',
    ],
)
def test_stepwise_body_errors_equal_those_of_short_bodies(text):
    def fault(items):
        with pytest.raises(BodyError) as short:
            decode_body(HeartbeatData, text % items)
        with pytest.raises(BodyError) as long:
            taken(decode_body_in_steps(HeartbeatData, text % items))
        assert str(long.value) == str(short.value)

    fault(b",".join([b'{"topic":"T"}'] * 3))
    fault(b",".join([b'{"topic":"T"}'] * 3_000))


def test_body_reading_steps_are_bounded(monkeypatch):
    read, most = [], []
    reader_of = incremental_codec.reader_of

    def counting_reader_of(hint):
        return lambda *each: read.append(each) or reader_of(hint)(*each)

    monkeypatch.setattr(incremental_codec, "reader_of", counting_reader_of)
    items = b",".join(b'{"topic":"T%d"}' % number for number in range(10_000))
    work = decode_body_in_steps(
        HeartbeatData,
        b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[%s]}]}'
        % items,
    )
    for _ in work:
        most.append(len(read))
        read.clear()
    assert max(most) <= incremental_codec.VALUES_PER_STEP
    assert len(most) > 50


def test_small_body_is_encoded_without_steps():
    assert taken(encode_body_in_steps(SubscriptionData(topic="T")))[0] == 0


LARGE = {
    "a set": TopicList(topic_list=frozenset(map(str, range(10_000)))),
    "maps in a map": ConsumerOffsetSerializeWrapper(
        offset_table={f"T{n}@G": dict.fromkeys(range(8), n) for n in range(1_250)}
    ),
    "one large map deep within": ConsumeStatsList(
        consume_stats_list=(
            {
                "G": (
                    ConsumeStats(
                        offset_table={
                            MessageQueue("T", "b", n): OffsetWrapper() for n in range(10_000)
                        }
                    ),
                )
            },
        )
    ),
}


@pytest.mark.parametrize("body", LARGE.values(), ids=LARGE)
def test_large_body_is_encoded_in_many_steps(body):
    count, text = taken(encode_body_in_steps(body))
    assert 10_000 / incremental_codec.VALUES_PER_STEP - 1 <= count <= 100
    assert text == encode_body(body)


@given(st.lists(st.integers(0, 600), max_size=8))
def test_encoding_step_size_is_limited(sizes):
    written = []

    class Diary(dict):
        def items(self):
            written.append(len(self))
            return super().items()

    table = {f"T{number}@G": Diary.fromkeys(range(size), 1) for number, size in enumerate(sizes)}
    work = encode_body_in_steps(ConsumerOffsetSerializeWrapper(offset_table=table))
    while True:
        written.clear()
        try:
            next(work)
        except StopIteration:
            break
        assert (
            sum(size for size in written if size <= incremental_codec.VALUES_PER_STEP)
            <= incremental_codec.VALUES_PER_STEP
        )
