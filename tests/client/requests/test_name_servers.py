"""Name servers are tried one after another; errors list all attempts."""

import pytest

from rmq_spark.client.api.name_servers import NameServers, parse_addresses
from rmq_spark.client.errors import (
    ConnectionClosed,
    ConnectionFailed,
    MessageRejected,
    NoNameServer,
    NoPermission,
    RequestTimeout,
    RouteNotFound,
)
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.operators import TopicList
from rmq_spark.wire.remoting.command import RemotingCommand


class Cluster:
    """Name servers by address: one or several answers in order, or an error."""

    def __init__(self, **servers):
        self.servers = servers
        self.asked = []

    def __call__(self, address, command, _):
        self.asked.append((address, command.code))
        answer = self.servers[address]
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def name_servers(self):
        return NameServers(list(self.servers), self, 1_000)


def topics(*names):
    return RemotingCommand(0, body=encode_body(TopicList(topic_list=frozenset(names))))


DEAD = ConnectionFailed("a", "refused")


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        (None, ()),
        ("", ()),
        ("a:1", ("a:1",)),
        ("a:1;b:2", ("a:1", "b:2")),
        (" a:1 , b:2;;a:1 ", ("a:1", "b:2")),
        (["a:1;b:2", "c:3"], ("a:1", "b:2", "c:3")),
    ],
)
def test_name_server_addresses_are_parsed_from_one_text_or_several(text, addresses):
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("http://h:1", r"without a scheme \(http://\).*Write h:1, .*found 'http://h:1'"),
        (["a:1;rocketmq://mq:2/"], r"\(rocketmq://\).*Write mq:2, .*'rocketmq://mq:2/'"),
    ],
)
def test_name_server_address_with_a_scheme_is_refused(text, why):
    with pytest.raises(MessageRejected, match=rf"^namesrv: needed host:port .*{why}"):
        parse_addresses(text)


def test_name_server_that_does_not_answer_is_skipped_from_then_on():
    cluster = Cluster(a=DEAD, b=RequestTimeout("b", 206, 1_000), c=topics("T"))
    servers = cluster.name_servers()
    assert servers.admin.topics() == {"T"}
    assert servers.admin.topics() == {"T"}
    assert [address for address, _ in cluster.asked] == ["a", "b", "c", "c"]


def test_kept_name_server_connection_that_closed_is_retried():
    """The name server may have restarted since the last request."""
    cluster = Cluster(a=[topics("T"), ConnectionClosed("a", "the broker closed it"), topics("U")])
    servers = cluster.name_servers()
    assert servers.admin.topics() == {"T"}
    assert servers.admin.topics() == {"U"}


def test_name_server_that_closes_connections_is_tried_twice_then_the_next():
    closed = ConnectionClosed("a", "the broker closed it")
    cluster = Cluster(a=closed, b=topics("T"))
    servers = cluster.name_servers()
    assert servers.admin.topics() == {"T"}
    assert servers.admin.topics() == {"T"}
    assert [address for address, _ in cluster.asked] == ["a", "a", "b", "b"]


def test_no_name_server_error_lists_all_tries():
    cluster = Cluster(a=DEAD, b=RequestTimeout("b", 206, 1_000))
    with pytest.raises(NoNameServer, match=r"refused.*b did not answer") as raised:
        cluster.name_servers().admin.topics()
    assert len(raised.value.tries) == 2


def test_missing_name_server_address_error_gives_advice():
    with pytest.raises(NoNameServer, match="NAMESRV_ADDR"):
        NameServers(None, Cluster(), 1_000).admin.topics()


def test_name_server_refusal_is_raised_without_asking_another():
    cluster = Cluster(a=RemotingCommand(16, remark="no"), b=topics("T"))
    with pytest.raises(NoPermission):
        cluster.name_servers().admin.topics()


def test_missing_topic_raises_route_not_found():
    with pytest.raises(RouteNotFound, match="topic T"):
        Cluster(a=RemotingCommand(17)).name_servers().route("T")


def test_our_broker_is_a_name_server_too(running_broker, connections):
    def ask(address, command, timeout_ms):
        return connections.request(address, command, timeout_ms, is_broker=False)

    servers = NameServers(running_broker.address, ask, 3_000)
    (broker,) = servers.route("TBW102").broker_datas
    assert broker.broker_addrs == {0: running_broker.address}


# ---- requests that go to all name servers


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
