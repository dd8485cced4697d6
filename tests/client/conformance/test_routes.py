"""Routes and cluster data have all fields of RocketMQ 5, because some clients need them all."""

import asyncio
import json
import re

import pytest
from support.clients.remoting_clients import BrokerClients
from support.rocketmq.real_broker import CLUSTER

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.remoting.command import RemotingCommand


@pytest.fixture
def ask(cluster):
    """Return the JSON of an answer, with quotes around numeric keys, which RocketMQ omits."""

    def ask(code, **ext_fields):
        async def answer():
            async with BrokerClients(int(cluster.name_server.rpartition(":")[2])) as clients:
                client = await clients.connect()
                return await client.call(RemotingCommand(code, ext_fields=ext_fields))

        found = asyncio.run(answer())
        assert found.code == 0, found.remark
        return json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', bytes(found.body).decode()))

    return ask


@pytest.fixture
def broker_data(cluster, brokers, is_ours):
    of_5 = {} if brokers[0] == "4.9.7" else {"enableActingMaster": False}
    return {
        "brokerAddrs": {"0": cluster.address},
        "brokerName": cluster.broker_name,
        "cluster": "DefaultCluster" if is_ours else CLUSTER,
        **of_5,
    }


def test_topic_route_has_rocketmqs_fields(ask, cluster, broker_data):
    topic = cluster.topic(3)
    assert ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic) == {
        "brokerDatas": [broker_data],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": cluster.broker_name,
                "perm": 6,
                "readQueueNums": 3,
                "topicSysFlag": 0,
                "writeQueueNums": 3,
            }
        ],
    }


def test_cluster_info_has_rocketmqs_fields(ask, broker_data):
    name, cluster_name = broker_data["brokerName"], broker_data["cluster"]
    assert ask(RequestCode.GET_BROKER_CLUSTER_INFO) == {
        "brokerAddrTable": {name: broker_data},
        "clusterAddrTable": {cluster_name: [name]},
    }
