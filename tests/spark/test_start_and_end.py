"""Positions become offsets at the start of a read."""

import time

import pytest
from support.brokers.broker_kinds import wait_until
from support.spark.source_queries import options_for, queue_of, queues_of, send

from rmq_spark.spark.brokers.queue_client import QueueClient
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options.start_positions import EARLIEST, LATEST
from rmq_spark.spark.plan.position_resolver import PositionResolver


@pytest.fixture
def topic(rocketpoll_broker, rocketpoll_topic):
    """Create a topic with queues of 0, 1, 2 and 3 messages."""
    for number in range(4):
        send(rocketpoll_broker, rocketpoll_topic, number, *("x" * (n + 1) for n in range(number)))
    return rocketpoll_topic


def resolved(broker, topic, *, ending=False, default=EARLIEST, **more):
    options = options_for(broker, topic, **more)
    with queues_of(broker, topic, **more) as queues:
        span = PositionResolver(options, queues, queues.discover())
        found = span.ending_offsets() if ending else span.starting_offsets(default)
    return [found[queue_of(topic, number)] for number in range(4)]


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("earliest", [0, 0, 0, 0]),
        ("latest", [0, 1, 2, 3]),
        ("-2 messages", [0, 0, 0, 1]),
        ("-1h", [0, 0, 0, 0]),
        ('{"*": -2}', [0, 0, 0, 0]),
        ('{"TOPIC": {"broker-a": {"2": 1, "*": "latest"}}}', [0, 1, 1, 3]),
        ('{"TOPIC": {"3": 2, "2": -1, "*": "-1 messages"}}', [0, 0, 2, 2]),
    ],
)
def test_starting_positions_become_offsets(rocketpoll_broker, topic, text, offsets):
    assert (
        resolved(rocketpoll_broker, topic, startingOffsets=text.replace("TOPIC", topic)) == offsets
    )


def test_missing_positions_use_the_default(rocketpoll_broker, topic):
    assert resolved(rocketpoll_broker, topic, default=EARLIEST) == [0, 0, 0, 0]
    assert resolved(rocketpoll_broker, topic, default=LATEST) == [0, 1, 2, 3]
    assert resolved(rocketpoll_broker, topic, ending=True) == [0, 1, 2, 3]


def test_ending_positions_become_offsets(rocketpoll_broker, topic):
    text = f'{{"{topic}": {{"broker-a": {{"3": 1, "*": -1}}}}}}'
    assert resolved(rocketpoll_broker, topic, ending=True, endingOffsets=text) == [0, 1, 2, 1]


def test_time_positions_use_store_times(rocketpoll_broker, topic):
    early = max(message.store_timestamp for message in rocketpoll_broker.messages(topic))
    wait_until("the next millisecond", lambda: time.time_ns() // 1_000_000 > early)
    send(rocketpoll_broker, topic, 0, "late")
    late = max(message.store_timestamp for message in rocketpoll_broker.messages(topic))
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert resolved(rocketpoll_broker, topic, startingTimestamp=str(late), **strategy) == [
        0,
        1,
        2,
        3,
    ]
    for start in ({"startingTimestamp": "0"}, {"startingTimestamp": "2020-01-31"},
                  {"startingOffsets": "2020-01-31"}):  # fmt: skip
        assert resolved(rocketpoll_broker, topic, **start, **strategy) == [0, 0, 0, 0]
    assert resolved(rocketpoll_broker, topic, ending=True, endingTimestamp=str(late)) == [
        0,
        1,
        2,
        3,
    ]
    with pytest.raises(
        OptionError, match=r"no message of queue 1 of .* was stored at \d+ ms or later"
    ):
        resolved(rocketpoll_broker, topic, startingTimestamp=str(late))


def test_group_position_resumes_at_committed_offsets(rocketpoll_broker, topic):
    group = f"group-{topic}"
    with queues_of(rocketpoll_broker, topic) as queues:
        queues.discover()
        queues.commit(group, {queue_of(topic, 3): 2})
        wait_until(
            "an offset",
            lambda: None not in queues.committed_offsets([queue_of(topic, 3)], group).values(),
        )
    more = {"consumerGroup": group}
    assert resolved(rocketpoll_broker, topic, startingOffsets="group", **more) == [0, 0, 0, 2]
    assert resolved(rocketpoll_broker, topic, startingOffsets="group:latest", **more) == [
        0,
        1,
        2,
        2,
    ]


def test_group_position_expired_by_retention_is_data_loss(rocketpoll_broker, topic, monkeypatch):
    starts = QueueClient.starts

    def first_is_gone(queues, which):
        return {queue: min(queue.queue_id, 1) for queue in starts(queues, which)}

    monkeypatch.setattr(QueueClient, "starts", first_is_gone)
    monkeypatch.setattr(
        QueueClient, "committed_offsets", lambda _, which, __: dict.fromkeys(which, 0)
    )
    of_group = {"startingOffsets": "group", "consumerGroup": "G"}
    with pytest.raises(
        OptionError, match=r"queue 1 of .* has the offsets from 1 to 1, not 0. Corr"
    ):
        resolved(rocketpoll_broker, topic, **of_group)
    lenient = {**of_group, "failOnDataLoss": "false"}
    assert resolved(rocketpoll_broker, topic, **lenient) == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '{"TOPIC": {"broker-a": {"0": 0}}}',
            "it has no position for TOPIC > broker-a > 1, TOPIC > broker-a > 2",
        ),
        ('{"other": {"0": 1}, "*": -2}', "it names other, but the topics read are TOPIC"),
        (
            '{"TOPIC": {"broker-a": {"3": 9, "*": -2}}}',
            "queue 3 of TOPIC on broker-a has the offsets from 0 to 3, not 9",
        ),
    ],
)
def test_invalid_starting_offsets_are_refused(rocketpoll_broker, topic, text, said):
    with pytest.raises(OptionError) as raised:
        resolved(rocketpoll_broker, topic, startingOffsets=text.replace("TOPIC", topic))
    assert said.replace("TOPIC", topic) in str(raised.value)


def test_starting_offset_is_clamped_without_fail_on_data_loss(rocketpoll_broker, topic):
    text = f'{{"{topic}": {{"3": 9, "*": -2}}}}'
    found = resolved(rocketpoll_broker, topic, startingOffsets=text, failOnDataLoss="false")
    assert found == [0, 0, 0, 3]


def starts_of_a_topic_to_come(broker, text, **more):
    more = {"waitForTopic": "true", "startingOffsets": text, **more}
    with queues_of(broker, "never-made", **more) as queues:
        return PositionResolver(
            options_for(broker, "never-made", **more), queues, queues.discover()
        ).starting_offsets(-1)


@pytest.mark.parametrize("position", ["0", "-2", "-1", '"group:latest"', '"-1h"'])
def test_waited_for_topic_may_have_a_relative_position(rocketpoll_broker, position):
    text = f'{{"never-made": {{"broker-a": {{"0": {position}}}}}}}'
    assert starts_of_a_topic_to_come(rocketpoll_broker, text, consumerGroup="g") == {}


def test_offset_of_a_waited_for_topic_is_refused(rocketpoll_broker):
    said = "topic never-made does not exist yet, .* needed 0, earliest or latest for it, found 7"
    for text in (
        '{"never-made": {"broker-a": {"*": -1, "0": 7}}}',
        '{"*": 7, "never-made": {"0": 7}}',
    ):
        with pytest.raises(OptionError, match=said):
            starts_of_a_topic_to_come(rocketpoll_broker, text)
