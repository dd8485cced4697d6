"""Changes of topics and groups that the disk refuses leave the previous state for clients."""

import pytest
from support.brokers.in_process import tell
from support.clients.remoting_clients import pull_request
from support.disks.faulty_disk import FaultyDisk

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.remoting.command import RemotingCommand


@pytest.fixture
def disk():
    disk = FaultyDisk()
    yield disk
    disk.let_go()


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
