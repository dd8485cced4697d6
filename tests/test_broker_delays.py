"""Delayed messages of a whole broker."""

from __future__ import annotations

import pytest
from broker_clients import pull_request, pulled, send_request
from broker_stories import tell

pytestmark = pytest.mark.usefixtures("on_each_loop")


def test_delays_of_several_levels_in_one_write_keep_nobody_from_being_told(tmp_path, caplog):
    async def story(broker):
        broker.make_topic("T")
        consumer, producer = await broker.connect(), await broker.connect()
        consumer.send(pull_request(0, suspend_ms=60_000))
        await broker.held(1)
        delayed = [
            send_request("late", opaque=level, properties={"DELAY": str(level)}) for level in (1, 2, 3)
        ]
        together = [*delayed, send_request("prompt", opaque=4)]
        producer.send(b"".join(each.encode() for each in together))
        assert pulled(await consumer.receive()).bodies == ["prompt"]
        assert {(await producer.receive()).code for _ in together} == {0}
        assert broker.holds.rescued == 0

    tell(story, tmp_path)
    assert not caplog.records


def test_pulls_whose_deadlines_are_nearly_now_are_each_answered_once(tmp_path, caplog):
    async def story(broker):
        broker.make_topic("T", queues=8)
        client = await broker.connect()
        for _ in range(30):
            pulls = [
                pull_request(0, queue_id=queue_id, suspend_ms=1, opaque=queue_id) for queue_id in range(8)
            ]
            client.send(b"".join(each.encode() for each in pulls))
            answers = [pulled(await client.receive()) for _ in pulls]
            assert sorted((each.opaque, each.code) for each in answers) == [(n, 19) for n in range(8)]
        assert broker.holds.rescued == 0

    tell(story, tmp_path, suspendTimeoutMillsMin=1)
    assert not caplog.records
