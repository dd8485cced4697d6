"""Requests to name servers reach all of them."""

import pytest

from rmq_spark.client.api.name_servers import NameServers
from rmq_spark.client.errors import ConnectionFailed, NoNameServer
from rmq_spark.wire.command import RemotingCommand


def test_delete_topic_is_sent_to_all_name_servers():
    told = []

    def ask(address, command, _):
        told.append((address, command.code))
        if address == "dead":
            raise ConnectionFailed(address, "refused")
        return RemotingCommand(0)

    NameServers("a;b", ask, 1_000).admin.delete_topic("T")
    assert told == [("a", 216), ("b", 216)]
    told.clear()
    with pytest.raises(ConnectionFailed):
        NameServers("dead;b", ask, 1_000).admin.delete_topic("T")
    assert told == [("dead", 216), ("b", 216)]


def test_delete_topic_without_name_server_address_is_refused():
    with pytest.raises(NoNameServer, match="NAMESRV_ADDR"):
        NameServers(None, None, 1_000).admin.delete_topic("T")


def test_our_broker_answers_what_operators_ask_name_servers(running_broker, connections):
    def ask(address, command, timeout_ms):
        return connections.request(address, command, timeout_ms, is_broker=False)

    calls = NameServers(running_broker.address, ask, 3_000).admin
    assert calls.cluster_info().broker_addr_table["broker-a"].broker_addrs == {
        0: running_broker.address
    }
    assert "TBW102" in calls.topics()
    assert "TBW102" in calls.topics("DefaultCluster")
    assert calls.wipe_write_permission("broker-a") > 0
    calls.delete_topic("Nothing")
