"""Changes of topics and groups on a disk that refuses them leave the previous state for clients."""

from __future__ import annotations

import pytest
from support.brokers.in_process import tell
from support.clients.remoting_clients import pull_request
from support.disks.faulty_disk import FaultyDisk

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.command import RemotingCommand


@pytest.fixture
def disk():
    disk = FaultyDisk()
    yield disk
    disk.let_go()


def queues(topic, count, opaque):
    fields = {"topic": topic, "readQueueNums": str(count), "writeQueueNums": str(count)}
    usual = {
        "defaultTopic": "TBW102",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }
    return RemotingCommand(
        RequestCode.UPDATE_AND_CREATE_TOPIC, opaque=opaque, ext_fields={**usual, **fields}
    )


def test_concurrent_refused_topic_changes_are_both_rolled_back(tmp_path, disk):
    def check(broker):
        topics = broker.controller.tables.topics
        assert (topics.get("T").read_queue_nums, topics.get("New")) == (2, None)

    async def first(broker):
        broker.make_topic("T", queues=2)
        broker.controller.tables.topics.save()
        operators = [await broker.connect(), await broker.connect()]
        disk.refuse("topics.json")
        disk.keep_waiting()
        for opaque, operator in enumerate(operators, 501):
            operator.send(queues("T", 4 + opaque - 500, opaque))
            operator.send(queues("New", 4 + opaque - 500, opaque))
        topics = broker.controller.tables.topics
        await broker.until(
            lambda: (disk.is_waiting.is_set(), topics.get("T").read_queue_nums) == (True, 6)
        )
        disk.let_go()
        for operator in operators * 2:
            answer = await operator.receive()
            assert (answer.code, "No space" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)
        check(broker)
        disk.refuse()

    async def second(broker):
        check(broker)

    tell(first, tmp_path, disk)
    tell(second, tmp_path, disk)


def test_refused_group_deletion_leaves_the_group_unchanged_despite_pulls(tmp_path, disk):
    async def story(broker):
        broker.make_topic("T")
        operator, member = await broker.connect(), await broker.connect()
        config = SubscriptionGroupConfig(group_name="G", consume_enable=False, retry_max_times=3)
        update = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert (await operator.ask(update, body=encode_body(config))).code == 0
        disk.refuse("subscriptionGroup.json")
        disk.keep_waiting()
        operator.send(
            RemotingCommand(
                RequestCode.DELETE_SUBSCRIPTIONGROUP, opaque=501, ext_fields={"groupName": "G"}
            )
        )
        await broker.until(disk.is_waiting.is_set)
        member.send(pull_request(0, "T", 0, group="G"))
        assert "may not consume" in (await member.receive()).remark
        disk.let_go()
        assert (await operator.receive()).code == ResponseCode.SYSTEM_ERROR
        assert broker.controller.tables.groups.get("G") == config

    tell(story, tmp_path, disk)
