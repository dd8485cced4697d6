"""A record damaged on disk under a running broker: only requests about this record are refused.

A damaged record may look like another one, or its entry may be damaged instead: requests that list
or search the queue across it get an error that says so, and how to continue.

ROCKETPOLL_DAMAGED_BYTES tries more of its bytes.
"""

import os
import random

import pytest
from support.brokers.in_process import tell
from support.brokers.metrics_endpoint import scrape
from support.suite.selection import count

from rmq_spark.wire.codes import RequestCode as Code
from rmq_spark.wire.codes import ResponseCode as Answer
from rmq_spark.wire.remoting.command import RemotingCommand

COUNT = 5
BYTES_TRIED = count("ROCKETPOLL_DAMAGED_BYTES", 24, wide=400)
SEARCHES = {
    Code.GET_EARLIEST_MSG_STORETIME,
    Code.QUERY_CONSUME_QUEUE,
    Code.SEARCH_OFFSET_BY_TIMESTAMP,
}
WHERE = {"the first": 0, "one between": 2, "the last": COUNT - 1}


def questions(stored_ms):
    """Return all requests about a topic, its groups and its broker, except those about
    one record."""
    queue = {"topic": "T", "queueId": 0}
    ranges = {"maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 62}
    asked = [
        (Code.QUERY_CONSUMER_OFFSET, queue | {"consumerGroup": "new"}),
        (Code.GET_CONSUME_STATS, {"consumerGroup": "G", "topic": "T"}),
        (Code.QUERY_CONSUME_TIME_SPAN, {"group": "G", "topic": "T"}),
        (Code.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
        (Code.GET_TOPIC_STATS_INFO, {"topic": "T"}),
        (Code.GET_BROKER_RUNTIME_INFO, {}),
        (Code.GET_MAX_OFFSET, queue),
        (Code.GET_MIN_OFFSET, queue),
        (Code.GET_EARLIEST_MSG_STORETIME, queue),
        (Code.QUERY_CONSUME_QUEUE, queue | {"index": 0, "count": COUNT}),
        *(
            (Code.SEARCH_OFFSET_BY_TIMESTAMP, queue | {"timestamp": stored_ms + at})
            for at in (0, 1)
        ),
        *((Code.QUERY_MESSAGE, {"topic": "T", "key": f"k{at}", **ranges}) for at in range(COUNT)),
    ]
    return [
        RemotingCommand(code, ext_fields={name: str(value) for name, value in fields.items()})
        for code, fields in asked
    ]


@pytest.mark.parametrize("damaged", WHERE.values(), ids=WHERE)
def test_damaged_record_fails_only_requests_about_it(tmp_path, damaged):
    async def story(broker):
        client = await broker.connect()
        for number in range(COUNT):
            await client.put(f"body {number}", properties={"KEYS": f"k{number}"})
        records = (await client.pull()).messages
        place = records[damaged].physical_offset
        size = records[1].physical_offset - records[0].physical_offset
        [log] = (tmp_path / "commitlog").iterdir()
        with log.open("r+b") as file:
            for at in random.Random(damaged).sample(range(size), min(size, BYTES_TRIED)):
                [sound] = os.pread(file.fileno(), 1, place + at)
                os.pwrite(file.fileno(), bytes([sound ^ 0xFF]), place + at)
                await check(broker, client, records[0].store_timestamp, f"byte {at}")
                os.pwrite(file.fileno(), bytes([sound]), place + at)

    async def check(broker, client, stored_ms, what):
        for offset in range(COUNT + 1):
            broker.controller.tables.offsets.commit("G", "T", 0, offset)
            for request in questions(stored_ms):
                answer = await client.call(request)
                is_of_it = request.ext_fields.get("key") == f"k{damaged}"
                is_told = (
                    request.code in SEARCHES
                    and "where its message is not: the entry or the record" in str(answer.remark)
                )
                assert answer.code == Answer.SUCCESS or is_of_it or is_told, (what, request, answer)
            if offset == damaged + 1:
                samples = await scrape(broker.controller.metrics_port)
                assert samples("rocketmq_consumer_lag_messages", topic="T") == COUNT - offset

    tell(story, tmp_path, metricsPort=0)


def test_gap_left_by_a_damaged_record_hides_no_message_before_it(tmp_path):
    """Otherwise a client would see the queue begin after the gap, and count all earlier messages as
    lost."""

    async def fill(broker):
        client = await broker.connect()
        for number in range(COUNT):
            await client.put(f"body {number}")
        places.extend(each.physical_offset for each in (await client.pull()).messages)

    async def look(broker):
        client = await broker.connect()
        for offset, bodies in enumerate((["0", "1", "3", "4"], ["1", "3", "4"], [], ["3", "4"])):
            pulled = await client.pull(offset)
            assert (pulled.min_offset, pulled.max_offset) == (0, COUNT)
            assert pulled.bodies == [f"body {number}" for number in bodies]
            assert pulled.next_offset == (COUNT if bodies else 3)

    places = []
    tell(fill, tmp_path)
    [log] = (tmp_path / "commitlog").iterdir()
    with log.open("r+b") as file:
        os.pwrite(file.fileno(), bytes(4), places[2])
    tell(look, tmp_path)
