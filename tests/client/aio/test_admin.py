from __future__ import annotations

import asyncio
import inspect

import pytest
from support.clients.asyncio_tests import told_in_a_loop

from rmq_spark.client.admin.admin import Admin as ThreadedAdmin
from rocketpoll import MessageQueue, aio
from rocketpoll.errors import RouteNotFound


@told_in_a_loop
async def test_topics_groups_and_messages_are_administered(broker, topic, group):
    broker.send(topic, "one", "two")
    async with aio.Admin(broker.address) as admin:
        await admin.create_topic(f"{topic}-more", queue_nums=3)
        assert {topic, f"{topic}-more"} <= await admin.topics()
        assert len(await admin.topic_offsets(f"{topic}-more")) == 3
        await admin.create_group(group)
        assert group in await admin.groups()
        queue = MessageQueue(topic, "broker-a", 0)
        (found,) = [await admin.message_at(queue, 0)]
        assert found.body in {b"one", b"two"}
        await admin.set_offset(group, queue, 1)
        assert {each.queue: each.consumer_offset for each in await admin.lag(group, topic)}[
            queue
        ] == 1
        assert (await admin.read_table(topic)).num_rows == 2
        await admin.delete_topic(f"{topic}-more")
        with pytest.raises(RouteNotFound):
            await admin.topic_offsets(f"{topic}-more")


@told_in_a_loop
async def test_questions_are_asked_beside_each_other(broker):
    async with aio.Admin(broker.address) as admin:
        answers = await asyncio.gather(*[admin.masters() for _ in range(50)])
    assert answers == [{"broker-a": broker.address}] * 50


def test_aio_admin_has_every_method_of_the_threaded_admin():
    def methods(of):
        return {
            name
            for name, each in inspect.getmembers(of, inspect.isfunction)
            if not name.startswith("_")
        }

    assert methods(ThreadedAdmin) <= methods(aio.Admin)
