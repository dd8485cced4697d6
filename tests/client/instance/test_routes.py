"""Routes of topics: their queues and addresses, and when they are refreshed."""

import threading

import pytest

from rmq_spark.client.errors import BrokerNotFound, NoNameServer, RouteNotFound, TopicNotUsable
from rmq_spark.client.instance.routes import QUEUES_MAX, ROUTE_THREADS_MAX, Routes
from rmq_spark.wire.bodies.clients import BrokerData, QueueData, TopicRouteData
from rmq_spark.wire.message_queue import MessageQueue


def broker(name, **addresses):
    return BrokerData(broker_name=name, broker_addrs={int(i[1:]): a for i, a in addresses.items()})


def queue_data(name, read=2, write=2, perm=6):
    return QueueData(broker_name=name, read_queue_nums=read, write_queue_nums=write, perm=perm)


def route(*queues, brokers, order=None):
    return TopicRouteData(queue_datas=queues, broker_datas=brokers, order_topic_conf=order)


A = broker("a", i0="a:1", i1="a:2")
B = broker("b", i0="b:1")
SLAVES = broker("s", i2="s:2", i1="s:1")


class NameServer:
    def __init__(self, **table):
        self.table = table
        self.asked = []

    def __call__(self, topic):
        self.asked.append(topic)
        found = self.table.get(topic)
        if found is None:
            raise RouteNotFound(topic)
        if isinstance(found, Exception):
            raise found
        return found


def names_of(queues):
    return [f"{queue.broker_name}{queue.queue_id}" for queue in queues]


def test_queues_are_in_order_of_brokers_and_numbers_and_asked_for_once():
    server = NameServer(T=route(queue_data("b", read=1), queue_data("a", write=3), brokers=(A, B)))
    routes = Routes(server)
    assert routes.known_publish_queues("T") == ()
    assert names_of(routes.publish_queues("T")) == ["a0", "a1", "a2", "b0", "b1"]
    assert routes.known_publish_queues("T") == routes.publish_queues("T")
    assert names_of(routes.subscribe_queues("T")) == ["a0", "a1", "b0"]
    assert routes.publish_queues("T")[0] == MessageQueue("T", "a", 0)
    assert server.asked == ["T"]
    assert routes.topics == {"T"}
    assert set(routes.brokers) == {"a", "b"}


def test_writing_takes_permission_and_a_master_reading_only_permission():
    server = NameServer(
        T=route(
            queue_data("a", perm=4),
            queue_data("b", perm=2),
            queue_data("s"),
            brokers=(A, B, SLAVES),
        )
    )
    routes = Routes(server)
    assert names_of(routes.publish_queues("T")) == ["b0", "b1"]
    assert names_of(routes.subscribe_queues("T")) == ["a0", "a1", "s0", "s1"]


def test_ordered_topic_has_the_queues_of_its_configuration():
    server = NameServer(
        T=route(queue_data("a", write=8), brokers=(A, B), order="b:2;a:1;nonsense;:4")
    )
    assert names_of(Routes(server).publish_queues("T")) == ["b0", "b1", "a0"]


@pytest.mark.parametrize("which", ["publish_queues", "subscribe_queues"])
def test_route_without_usable_queues_is_refreshed_before_the_error(which):
    server = NameServer(T=route(queue_data("a", perm=0), brokers=(A,)))
    with pytest.raises(TopicNotUsable, match="allows"):
        getattr(Routes(server), which)("T")
    assert server.asked == ["T", "T"]


def test_route_with_too_many_queues_is_refused():
    server = NameServer(T=route(queue_data("a", write=QUEUES_MAX + 1), brokers=(A,)))
    with pytest.raises(RouteNotFound, match="claims"):
        Routes(server).publish_queues("T")


def test_missing_topic_uses_the_route_of_the_default_topic():
    server = NameServer(
        TBW102=route(queue_data("a", write=8), queue_data("b", write=2), brokers=(A, B))
    )
    assert names_of(Routes(server).sendable_queues("N", "TBW102", 4)) == [
        "a0",
        "a1",
        "a2",
        "a3",
        "b0",
        "b1",
    ]


@pytest.mark.parametrize("table", [{}, {"TBW102": route(queue_data("a", perm=4), brokers=(A,))}])
def test_unknown_topic_without_auto_creation_raises_route_not_found(table):
    with pytest.raises(RouteNotFound, match="no broker creates topics"):
        Routes(NameServer(**table)).sendable_queues("N", "TBW102", 4)


def test_unwritable_topic_does_not_use_the_default_topic():
    server = NameServer(
        T=route(queue_data("a", perm=4), brokers=(A,)), TBW102=route(queue_data("a"), brokers=(A,))
    )
    with pytest.raises(TopicNotUsable):
        Routes(server).sendable_queues("T", "TBW102", 4)


def test_route_gives_master_addresses_and_addresses_for_reading():
    routes = Routes(NameServer(T=route(queue_data("a"), queue_data("s"), brokers=(A, SLAVES))))
    routes.route("T")
    assert routes.master_address("a") == "a:1"
    assert routes.address_for_read("a") == "a:1"
    assert routes.address_for_read("a", 1) == "a:2"
    assert routes.address_for_read("a", 7) == "a:1"
    assert routes.address_for_read("s") == "s:1"
    assert routes.addresses() == ("a:1", "a:2", "s:1", "s:2")
    assert routes.addresses(masters_only=True) == ("a:1",)
    with pytest.raises(BrokerNotFound, match="no master"):
        routes.master_address("s")
    with pytest.raises(BrokerNotFound, match="no route"):
        routes.address_for_read("nobody")


def test_newest_route_gives_the_broker_address():
    server = NameServer(
        T=route(queue_data("a"), brokers=(A,)), U=route(queue_data("a"), brokers=(A,))
    )
    routes = Routes(server)
    routes.route("T")
    routes.route("U")
    server.table["T"] = route(queue_data("a"), brokers=(broker("a", i0="moved:1"),))
    routes.refresh("T")
    assert routes.master_address("a") == "moved:1"


def test_deleted_topic_does_not_restore_an_old_broker_address():
    """The result does not depend on the order in which topics became known or were queried."""
    both = route(queue_data("a"), queue_data("b"), brokers=(A, B))
    server = NameServer(T=both, U=both, V=route(queue_data("b"), brokers=(B,)))
    routes = Routes(server)
    for topic in ("U", "T", "V"):
        routes.route(topic)
    server.table["T"] = None
    server.table["U"] = route(queue_data("a"), brokers=(broker("a", i0="moved:1"),))
    routes.refresh_all()
    assert routes.master_address("a") == "moved:1"
    assert routes.topics == {"T", "U", "V"}


def test_broker_back_in_one_route_refreshes_routes_that_lost_it():
    both, left = (
        route(queue_data("a"), queue_data("b"), brokers=(A, B)),
        route(queue_data("a"), brokers=(A,)),
    )
    server = NameServer(T=both, U=both, V=left, GONE=both)
    routes = Routes(server)
    routes.require(["T", "U", "V", "GONE"])
    server.table.update(T=left, U=left, GONE=left)
    routes.refresh_all()
    assert set(routes.brokers) == {"a"}
    routes.discard("GONE")
    server.table.update(T=both, U=both)
    server.asked.clear()
    routes.refresh("U")
    assert names_of(routes.subscribe_queues("T")) == ["a0", "a1", "b0", "b1"]
    assert server.asked == ["U", "T"]


def test_topic_that_left_a_broker_is_refreshed_once_more_only():
    both, left = (
        route(queue_data("a"), queue_data("b"), brokers=(A, B)),
        route(queue_data("a"), brokers=(A,)),
    )
    server = NameServer(T=both, U=both)
    routes = Routes(server)
    routes.require(["T", "U"])
    server.table["T"] = left
    routes.refresh("T")
    server.asked.clear()
    for _ in range(3):
        routes.refresh("U")
    assert server.asked == ["U", "T", "U", "U"]
    assert names_of(routes.subscribe_queues("T")) == ["a0", "a1"]


@pytest.mark.parametrize("error", [RouteNotFound("T"), NoNameServer()])
def test_failing_route_refresh_does_not_block_others(error):
    both, left = (
        route(queue_data("a"), queue_data("b"), brokers=(A, B)),
        route(queue_data("a"), brokers=(A,)),
    )
    server = NameServer(T=both, U=both)
    routes = Routes(server)
    routes.require(["T", "U"])
    server.table.update(T=left, U=left)
    routes.refresh_all()
    server.table.update(T=error, U=both)
    assert names_of(routes.refresh("U").subscribe_queues) == ["a0", "a1", "b0", "b1"]
    assert names_of(routes.subscribe_queues("T")) == ["a0", "a1"]


@pytest.mark.parametrize("error", [RouteNotFound("T"), NoNameServer()])
def test_route_is_kept_if_name_servers_fail(error):
    server = NameServer(T=route(queue_data("a"), brokers=(A,)))
    routes = Routes(server)
    before = routes.publish_queues("T")
    server.table["T"] = error
    routes.refresh_all()
    assert routes.publish_queues("T") == before
    with pytest.raises(type(error)):
        routes.refresh("T")


def test_deleted_topic_is_not_refreshed_until_needed():
    server = NameServer(
        T=route(queue_data("a"), brokers=(A,)), U=route(queue_data("a"), brokers=(A,))
    )
    routes = Routes(server)
    routes.publish_queues("T")
    routes.publish_queues("U")
    routes.discard("T")
    routes.discard("never there")
    server.asked.clear()
    routes.refresh_all()
    assert server.asked == ["U"]
    assert routes.master_address("a") == "a:1"
    assert len(routes.publish_queues("T")) == 2


def test_refresh_within_times_out_and_the_late_answer_counts():
    come = threading.Event()
    asked = []

    def slow(topic):
        asked.append(topic)
        come.wait(20)
        return route(queue_data("a", write=len(asked)), brokers=[A])

    routes = Routes(slow)
    routes.refresh_within("T", 0.01)
    routes.refresh_within("T", 0)
    assert (asked, routes.topics) == (["T"], frozenset())
    come.set()
    routes.refresh_within("T", 20)
    assert len(routes.route("T").publish_queues) == len(asked)
    before = len(asked)
    routes.refresh_within("T", 20)
    assert len(asked) > before


def test_refresh_within_hides_errors_and_keeps_the_known_route():
    server = NameServer(T=route(queue_data("a"), brokers=[A]))
    routes = Routes(server)
    known = routes.route("T")
    server.table["T"] = NoNameServer([])
    routes.refresh_within("T", 20)
    assert len(server.asked) == 2
    assert routes.route("T") is known


class Together:
    """A name server that answers only when this number of requests is pending."""

    def __init__(self, count):
        self.together = threading.Barrier(count)
        self.changing = threading.Lock()
        self.under_way = self.highest = 0

    def __call__(self, _):
        with self.changing:
            self.under_way += 1
            self.highest = max(self.highest, self.under_way)
        self.together.wait(20)
        with self.changing:
            self.under_way -= 1
        return route(queue_data("a"), brokers=[A])


@pytest.mark.parametrize("way", ["find", "refresh_all"])
def test_many_routes_are_fetched_in_parallel_up_to_a_limit(way):
    topics = [f"T{number}" for number in range(3 * ROUTE_THREADS_MAX)]
    server = Together(ROUTE_THREADS_MAX)
    routes = Routes(server)
    if way == "refresh_all":
        routes._fetch = NameServer(**dict.fromkeys(topics, route(queue_data("b"), brokers=[B])))
        routes.require(topics)
        routes._fetch = server
        routes.refresh_all()
    else:
        routes.require(topics)
    assert routes.topics == set(topics)
    assert set(routes.brokers) == {"a"}
    assert server.highest == ROUTE_THREADS_MAX


def test_require_fetches_unknown_routes_and_raises_for_missing_ones():
    server = NameServer(
        **{name: route(queue_data("a"), brokers=[A]) for name in ("T", "U", "V", "W")}
    )
    routes = Routes(server)
    routes.route("U")
    server.table["V"] = None
    with pytest.raises(RouteNotFound, match="V"):
        routes.require("TUVW")
    assert sorted(server.asked) == ["T", "U", "V", "W"]
    assert routes.topics == {"T", "U", "W"}
    routes.require("TU")
    assert len(server.asked) == 4


def test_route_refresh_stops_asking_when_no_name_server_answers():
    asked = []

    def nobody(topic):
        asked.append(topic)
        raise NoNameServer

    outcomes = Routes(nobody).refresh_each(f"T{number}" for number in range(100))
    assert [type(outcome) for outcome in outcomes.values()] == [NoNameServer] * 100
    assert len(asked) <= ROUTE_THREADS_MAX
