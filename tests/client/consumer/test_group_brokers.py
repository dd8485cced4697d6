"""Requests of a group: their broker, their header, and the meaning of responses."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from rmq_spark.client.consumer.brokers.broker_client import DecodedPull, GroupBrokerClient, PullSpec
from rmq_spark.client.errors import BrokerNotFound, ConnectionClosed, ProtocolError, RequestTimeout
from rmq_spark.client.instance.routes import Routes
from rmq_spark.client.results import PullResult, PullStatus
from rmq_spark.client.subscriptions import by_sql, by_tag, subscription_data
from rmq_spark.errors import WireError
from rmq_spark.wire.bodies.clients import BrokerData, QueueData, TopicRouteData
from rmq_spark.wire.message.properties import encode_properties
from rmq_spark.wire.message.record import StoredMessage, encode_record
from rmq_spark.wire.message_queue import MessageQueue

A, B = MessageQueue("T", "a", 0), MessageQueue("T", "b", 1)
RETRY = MessageQueue("%RETRY%G", "a", 0)


class Api:
    """Records requests to brokers; the test sets the answers."""

    def __init__(self):
        self.asked, self.down, self.answers, self.connected = [], set(), {}, {"a:1", "b:1"}
        self.connections = SimpleNamespace(is_ready=lambda address: address in self.connected)
        self.has_listener = True

    def notifies_topic_deletion(self, _):
        return self.has_listener

    def __getattr__(self, name):
        def ask(address, *arguments, **more):
            self.asked.append((name, address, *arguments, *more.values()))
            if address in self.down:
                raise ConnectionClosed(address, "gone")
            answer = self.answers.get(name)
            return answer(*arguments) if callable(answer) else answer

        return ask


class PullAnswer(Future):
    """A pending pull response of a connection."""

    def abandon(self):
        pass


class NameServer:
    def __init__(self):
        self.brokers = {"a": {0: "a:1", 1: "a:2"}, "b": {0: "b:1"}}
        self.asked = 0

    def __call__(self, _):
        self.asked += 1
        return TopicRouteData(
            queue_datas=tuple(
                QueueData(broker_name=name, read_queue_nums=2, write_queue_nums=2, perm=6)
                for name in self.brokers
            ),
            broker_datas=tuple(
                BrokerData(broker_name=name, broker_addrs=addresses)
                for name, addresses in self.brokers.items()
            ),
        )


@pytest.fixture
def api():
    return Api()


@pytest.fixture
def name_server():
    return NameServer()


@pytest.fixture
def subscriptions():
    return {}


@pytest.fixture
def brokers(api, name_server, subscriptions):
    client = SimpleNamespace(client_id="me", api=api, routes=Routes(name_server))
    return GroupBrokerClient(client, "G", subscriptions.get)


def pull_of(queue=A, selector=None, **more):
    data = subscription_data(queue.topic, selector or by_tag(), 77)
    return PullSpec(queue, 5, data, 10, 20_000, 30_000, **more)


def answered(brokers, api, pull, result, room=1 << 20):
    """Pull, and return the result for this answer."""
    future, outcomes = PullAnswer(), []
    api.answers["pull_async"] = future
    brokers._routes.route(pull.queue.topic)
    brokers.pull(pull, outcomes.append, lambda: room)
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    return outcomes[0]


def found(*messages, next_offset=9, suggests=0):
    records = b"".join(map(encode_record, messages))
    return PullResult(PullStatus.FOUND, next_offset, 1, 20, suggests, records)


def stored(queue_offset, tags=None, topic="T", **properties):
    named = {**({"TAGS": tags} if tags else {}), **properties}
    return StoredMessage(topic, b"body", encode_properties(named), queue_offset=queue_offset)


def test_pull_response_for_a_replaced_subscription_is_dropped(brokers, api, subscriptions):
    pull = pull_of(selector=by_tag("red"))
    subscriptions["T"] = pull.subscription
    assert answered(brokers, api, pull, found(stored(5, "red"))).next_begin_offset == 9
    subscriptions["T"] = pull_of(selector=by_tag("red || blue")).subscription
    outcome = answered(brokers, api, pull, found(stored(7, "red")))
    assert outcome == DecodedPull(PullStatus.NO_MATCHED_MSG, 5, 1, 20, ())


@pytest.mark.parametrize("is_replaced", [False, True])
def test_may_be_recreated_is_set_unless_the_broker_notifies_listeners_of_deletions(
    brokers, api, subscriptions, is_replaced
):
    pull = pull_of()
    if is_replaced:
        subscriptions["T"] = pull_of(selector=by_tag("red")).subscription
    for tells in (True, False):
        api.has_listener = tells
        outcome = answered(brokers, api, pull, found(stored(7)))
        assert outcome.may_be_recreated == (not tells)


def test_pull_header_contains_subscription_and_hold_time(brokers, api):
    answered(brokers, api, pull_of(selector=by_tag("red")), found())
    _, address, header, timeout_ms, _ = api.asked[-1]
    assert (address, timeout_ms) == ("a:1", 30_000)
    assert (header.consumer_group, header.topic, header.queue_id, header.queue_offset) == (
        "G",
        "T",
        0,
        5,
    )
    assert (header.sys_flag, header.suspend_timeout_millis, header.max_msg_nums) == (6, 20_000, 10)
    assert (header.subscription, header.expression_type, header.sub_version) == ("red", "TAG", 0)


@pytest.mark.parametrize(
    ("wanted", "offered", "is_chunk"), [(32, True, False), (33, True, True), (1_000, False, False)]
)
def test_large_pull_uses_chunks_if_the_broker_offers_them(brokers, api, wanted, offered, is_chunk):
    api.answers["supports_chunks"] = offered
    answered(brokers, api, pull_of()._replace(max_messages=wanted), found())
    name, address, header, timeout_ms, as_chunk = api.asked[-1]
    assert (name, address, header.max_msg_nums, timeout_ms) == ("pull_async", "a:1", wanted, 30_000)
    assert as_chunk is is_chunk


def test_queue_is_ready_when_its_suggested_broker_is_connected(brokers, api):
    api.connected = set()
    assert not brokers.is_ready(A)
    answered(brokers, api, pull_of(), found(suggests=1))
    api.connected.add("a:1")
    assert not brokers.is_ready(A)
    api.connected.add("a:2")
    assert brokers.is_ready(A)


def test_pull_request_header_carries_commit_lite_flag_and_sql_expression(brokers, api):
    answered(
        brokers, api, pull_of(selector=by_sql("a > 1"), commit_offset=4, is_lite=True), found()
    )
    header = api.asked[-1][2]
    assert (header.sys_flag, header.commit_offset) == (1 | 2 | 4 | 16, 4)
    assert (header.subscription, header.expression_type, header.sub_version) == (
        "a > 1",
        "SQL92",
        77,
    )


def test_pull_decodes_messages_and_compares_tags_by_text(brokers, api):
    outcome = answered(
        brokers,
        api,
        pull_of(selector=by_tag("Aa")),
        found(stored(5, "Aa"), stored(6, "BB"), stored(7)),
    )
    assert [message.queue_offset for message in outcome.messages] == [5]
    assert outcome.messages[0].queue.broker_name == "a"
    assert outcome[:4] == (PullStatus.FOUND, 9, 1, 20)


def test_retried_message_is_returned_under_its_own_topic(brokers, api):
    outcome = answered(
        brokers,
        api,
        pull_of(RETRY),
        found(stored(5, topic="%RETRY%G", RETRY_TOPIC="T", ORIGIN_MESSAGE_ID="x")),
    )
    assert outcome.messages[0].topic == "T"
    assert outcome.messages[0].queue == RETRY


@pytest.mark.parametrize("error", [RequestTimeout("a:1", 11, 3), ConnectionClosed("a:1", "gone")])
def test_failed_pull_is_delivered_as_an_outcome(brokers, api, error):
    assert answered(brokers, api, pull_of(), error) is error


def test_group_pull_of_damaged_records_fails(brokers, api):
    damaged = found(stored(5))._replace(records=b"\0" * 100)
    assert isinstance(answered(brokers, api, pull_of(), damaged), (WireError, ProtocolError))


def test_next_pull_goes_to_the_suggested_broker_without_committing_there(brokers, api):
    answered(brokers, api, pull_of(), found(suggests=1))
    answered(brokers, api, pull_of(commit_offset=4), found())
    assert (api.asked[-1][1], api.asked[-1][2].sys_flag) == ("a:2", 6)
    answered(brokers, api, pull_of(), found())
    assert api.asked[-1][1] == "a:1"


@pytest.mark.parametrize("error", [RequestTimeout("a:2", 11, 3), ConnectionClosed("a:2", "gone")])
def test_pull_returns_to_the_master_after_the_suggested_broker_fails(brokers, api, error):
    answered(brokers, api, pull_of(), found(suggests=1))
    answered(brokers, api, pull_of(), error)
    assert api.asked[-1][1] == "a:2"
    answered(brokers, api, pull_of(commit_offset=4), found())
    assert (api.asked[-1][1], api.asked[-1][2].sys_flag) == ("a:1", 7)


def test_pull_returns_to_the_master_when_the_suggested_broker_is_unreachable(brokers, api):
    answered(brokers, api, pull_of(), found(suggests=1))
    api.down.add("a:2")
    with pytest.raises(ConnectionClosed):
        brokers.pull(pull_of(), lambda _: None, lambda: 0)
    answered(brokers, api, pull_of(), found())
    assert api.asked[-1][1] == "a:1"


@pytest.mark.parametrize(
    ("asked", "next_begin", "least", "most", "legal"),
    [
        (9, 3, 0, 5, 3),
        (9, 9, 0, 5, 5),
        (0, 0, 4, 5, 4),
        (9, 0, 4, 5, 5),
        (7, 0, 0, 0, 0),
        (7, 7, -1, 0, 0),
    ],
)
def test_legal_offset_corrects_an_illegal_pull_offset(asked, next_begin, least, most, legal):
    pulled = DecodedPull(PullStatus.OFFSET_ILLEGAL, next_begin, least, most, ())
    assert pulled.legal_offset(asked) == legal


def test_unknown_broker_triggers_one_route_refresh(brokers, api, name_server):
    api.answers["max_offset"] = 7
    assert brokers.max_offset(A) == 7
    assert name_server.asked == 1
    with pytest.raises(BrokerNotFound):
        brokers.max_offset(MessageQueue("T", "c", 0))
    assert name_server.asked == 2


def test_broker_found_by_its_retry_queue_restores_its_other_queues(brokers, api, name_server):
    """Otherwise the next rebalance would drop them until the route is refreshed."""
    api.answers["lock"] = lambda _, __, queues: frozenset(queues)
    queues = brokers.queues("T")
    brokers.queues("%RETRY%G")
    back = name_server.brokers.pop("b")
    brokers._routes.refresh_all()
    name_server.brokers["b"] = back
    of_b = MessageQueue("%RETRY%G", "b", 0)
    assert brokers.lock([of_b, B]) == {of_b, B}
    assert brokers.queues("T") == queues


def test_member_list_is_asked_of_one_broker_after_another(brokers, api):
    api.answers["consumer_ids"] = ("me", "you")
    api.down = {"a:1"}
    assert brokers.consumer_ids("T") == ("me", "you")
    api.down = {"a:1", "b:1"}
    with pytest.raises(ConnectionClosed):
        brokers.consumer_ids("T")


def test_members_are_asked_first_of_a_broker_that_is_connected(brokers, api):
    """Detecting whether the other broker is reachable may take a while."""
    api.answers["consumer_ids"] = ("me", "you")
    api.connected = {"b:1"}
    brokers.consumer_ids("T")
    assert [address for _, address, _ in api.asked] == ["b:1"]


def test_queue_locks_are_requested_by_broker_and_fail_at_a_dead_one(brokers, api):
    api.answers["lock"] = lambda _, __, queues: frozenset(queues)
    brokers.queues("T")
    assert brokers.lock([A, B]) == {A, B}
    api.down = {"a:1"}
    assert brokers.lock([A, B]) == {B}
    brokers.unlock([B])
    assert api.asked[-1][:5] == ("unlock", "b:1", "G", "me", [B])


def test_sql_conditions_are_checked_by_every_broker_and_tags_by_none(brokers, api):
    brokers.check_subscription(subscription_data("T", by_tag("red"), 0))
    assert api.asked == []
    brokers.check_subscription(subscription_data("T", by_sql("a > 1"), 0))
    assert [address for _, address, _ in api.asked] == ["a:1", "b:1"]


def test_sql_condition_is_checked_by_a_reachable_broker_of_the_topic(brokers, api):
    condition = subscription_data("T", by_sql("a > 1"), 0)
    api.down = {"a:1"}
    brokers.check_subscription(condition)
    api.down = {"a:1", "b:1"}
    with pytest.raises(ConnectionClosed):
        brokers.check_subscription(condition)


def test_group_offsets_are_queried_from_the_master(brokers, api):
    api.answers["query_consumer_offset"] = 4
    assert brokers.consumer_offset(A) == 4
    brokers.update_consumer_offset(A, 6, is_one_way=True)
    assert api.asked[-1] == ("update_consumer_offset", "a:1", "G", A, 6, True)
    brokers.search_offset(B, 1_000)
    assert api.asked[-1] == ("search_offset", "b:1", B, 1_000)
