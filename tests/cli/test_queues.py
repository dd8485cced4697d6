"""Queue names on the command line."""

import click
import pytest

from rmq_spark.cli.shell.parameter_types import (
    QueueName,
    parse_position,
    parse_queue,
    resolve_ranges,
)
from rmq_spark.wire.message_queue import MessageQueue


def test_queue_argument_accepts_an_optional_broker_name():
    assert parse_queue("3") == QueueName(None, 3)
    named = parse_queue("broker-a:3")
    assert named.matches(MessageQueue("T", "broker-a", 3))
    assert not named.matches(MessageQueue("T", "broker-b", 3))
    assert [str(each) for each in (QueueName(None, 3), named)] == ["3", "broker-a:3"]
    with pytest.raises(click.UsageError, match=r"'a:b' is not a queue\. Write 3"):
        parse_queue("a:b")


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("start", [0, 0]),
        ("end", [5, 2]),
        ("-3", [2, 0]),
        ("+3", [3, 2]),
        ("4", [4, 2]),
        ("@2020-01-01", [0, 0]),
    ],
)
def test_position_is_resolved_within_each_queue(cluster, text, starts):
    topic = cluster.topic(queues=2)
    for queue_id, count in enumerate((5, 2)):
        cluster.send(topic, *range(count), queue_id=queue_id)
    spans = resolve_ranges(cluster.sender, topic, parse_position(text), None)
    assert [span.start for span in spans] == starts
    assert [span.end for span in spans] == [5, 2]
    [second] = resolve_ranges(cluster.sender, topic, parse_position("1"), QueueName(None, 1))
    assert second.start == 1
