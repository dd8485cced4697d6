"""Wrong pull responses and routes: a task returns right rows once each, or raises an error that
names the missing ones; whatever a name server answers, a query reads all queues."""

import json
import random
import socket

import pytest
from support.servers.middleboxes import Nat
from support.servers.wrong_answers import LIES, PLACE_LIES, WrongBroker, WrongNames
from support.spark.source_queries import BROKER, options_for, queue_of, schema_of, send
from support.spark.streaming_engine import Engine, assert_read
from support.spark.streaming_engine import send as send_some
from support.suite.selection import count, spread

from rmq_spark.client.message import Message
from rmq_spark.errors import RocketPollError
from rmq_spark.spark.plan.partition_planner import OffsetRange
from rmq_spark.spark.read.partition_reader import read_range
from rmq_spark.spark.schemas.columns import arrow_schema_of
from rmq_spark.wire.chunk import record_locations

SCHEMA = arrow_schema_of(schema_of("body binary, queueOffset bigint"))
ROWS = 70
SEEDS = count("ROCKETPOLL_WRONG_ANSWERS", 6, wide=60)
END = 11
"""End of a filtered range, within one response."""
DETECTABLE = (
    "another topic",
    "another queue",
    "all of another topic",
    "all of another queue",
    "twice",
    "an earlier one once more",
    "in another order",
    "cut short",
    "another body",
)
"""Lies that are detected even in responses with gaps."""

TOLERANT = {"failOnDataLoss": "false", "onBadRecord": "skip"}


def rows_of(options, topic, end=ROWS):
    """Return the rows that a task yields before its error, and the error."""
    rows = []
    try:
        for batch in read_range(options, SCHEMA, OffsetRange(queue_of(topic), 0, end)):
            rows += [tuple(row.values()) for row in batch.to_pylist()]
    except RocketPollError as error:
        return rows, error
    return rows, None


@pytest.mark.parametrize("more", [{}, TOLERANT], ids=["fails", "goes on"])
@pytest.mark.parametrize("is_ours", [False, True], ids=["RocketMQ's", "ours"])
@pytest.mark.parametrize("lie", spread(6, LIES))
def test_wrong_pull_answers_give_right_rows_once_or_an_error(
    rocketpoll_broker, rocketpoll_topic, caplog, lie, is_ours, more
):
    send(rocketpoll_broker, rocketpoll_topic, 0, *(f"body {number}" for number in range(ROWS)))
    right = [(f"body {number}".encode(), number) for number in range(ROWS)]
    with WrongBroker(rocketpoll_broker, LIES[lie], is_ours=is_ours) as wrong:
        options = options_for(
            rocketpoll_broker,
            rocketpoll_topic,
            brokerAddresses=json.dumps({BROKER: wrong.address}),
            retryTimeoutMs="1000",
            localFiles="false",
            **more,
        )
        for seed in range(SEEDS):
            wrong.dice = random.Random(seed)
            wrong.left = wrong.dice.choice([1, 2])
            caplog.clear()
            rows, error = rows_of(options, rocketpoll_topic)
            assert wrong.left < 2
            if error is None and more:
                assert [row for row in right if row in set(rows)] == rows
                assert rows == right or caplog.text
            elif error is None:
                assert rows == right
            else:
                assert rows == right[: len(rows)]
                assert "\n" not in str(error)


@pytest.mark.parametrize("more", [{}, TOLERANT], ids=["fails", "goes on"])
@pytest.mark.parametrize("lie", DETECTABLE)
def test_filtered_rows_up_to_an_offset_are_right_or_reported_for_any_broker_response(
    rocketpoll_broker, rocketpoll_topic, caplog, lie, more
):
    """The broker counts matching messages only, so its responses reach past the range."""
    with rocketpoll_broker.producer() as producer:
        for number in range(ROWS):
            message = Message(rocketpoll_topic, b"body %d" % number, tags="AB"[number % 2])
            producer.send(message, queue_of(rocketpoll_topic))
    right = [(b"body %d" % number, number) for number in range(0, END, 2)]
    with WrongBroker(rocketpoll_broker, LIES[lie]) as wrong:
        options = options_for(
            rocketpoll_broker,
            rocketpoll_topic,
            brokerAddresses=json.dumps({BROKER: wrong.address}),
            retryTimeoutMs="1000",
            tags="A",
            **more,
        )
        for seed in range(SEEDS):
            wrong.dice, wrong.left = random.Random(seed), 1
            caplog.clear()
            rows, error = rows_of(options, rocketpoll_topic, END)
            assert wrong.left == 0
            assert [row for row in right if row in set(rows)] == rows
            assert rows == right or error is not None or (more and caplog.text)


@pytest.mark.parametrize("lie", PLACE_LIES)
def test_rows_are_right_whatever_places_a_broker_names_in_its_own_files(
    rocketpoll_broker, rocketpoll_topic, monkeypatch, lie
):
    """The broker's proof is valid, and its log has records of other topics and queues."""
    monkeypatch.setattr(record_locations, "RUN_BYTES_MIN", 1)
    rocketpoll_broker.create_topic(rocketpoll_topic, 2)
    for number in range(0, ROWS, 10):
        texts = [f"body {each}" for each in range(number, number + 10)]
        send(rocketpoll_broker, rocketpoll_topic, 0, *texts)
        send(rocketpoll_broker, rocketpoll_topic, 1, *texts)
        rocketpoll_broker.send("payroll", *texts)
    right = [(f"body {number}".encode(), number) for number in range(ROWS)]
    with WrongBroker(rocketpoll_broker, is_ours=True, places=PLACE_LIES[lie]) as wrong:
        options = options_for(
            rocketpoll_broker,
            rocketpoll_topic,
            brokerAddresses=json.dumps({BROKER: wrong.address}),
            retryTimeoutMs="1000",
            localFiles="true",
        )
        for seed in range(SEEDS):
            wrong.dice, wrong.left = random.Random(seed), 1
            rows, error = rows_of(options, rocketpoll_topic)
            assert wrong.left == 0
            assert rows == right[: len(rows)]
            assert error is not None or rows == right


def test_query_survives_name_server_answers_with_changing_addresses(
    rocketpoll_broker, rocketpoll_topic
):
    """Two addresses lead to the broker, and one to nothing."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        nowhere = f"127.0.0.1:{nobody.getsockname()[1]}"
    there = rocketpoll_broker.address
    with Nat(there) as way, WrongNames(rocketpoll_broker, [nowhere, there, way.address]) as names:
        rocketpoll_broker.create_topic(rocketpoll_topic, 3)
        query = Engine(names.address, topic=rocketpoll_topic, maxOffsetsPerTrigger=7)
        sent = []
        for _ in range(4):
            sent += send_some(rocketpoll_broker, rocketpoll_topic, 9)
            query.start()
            query.run()
            query.stop()
        assert_read(query, sent)
