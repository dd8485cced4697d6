"""Heartbeats register clients; members are notified of each other, and limits hold."""

from types import SimpleNamespace

import pytest
from support.brokers.connections import FakeConnection, finished
from support.brokers.processors import open_parts, refused
from support.brokers.state_tables import join, room
from support.stores.small_store import small_config

from rmq_spark.errors import BodyError
from rmq_spark.wire.bodies.clients import (
    CheckClientRequestBody,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_spark.wire.codes import LanguageCode, ResponseCode
from rmq_spark.wire.codes import RequestCode as Code
from rmq_spark.wire.headers.members import UnregisterClientRequestHeader
from rocketpoll.broker.processor.clients.client_manage import (
    ClientManageProcessor,
    NotifyConsumerIdsChanged,
)
from rocketpoll.broker.processor.request import RequestRejected
from rocketpoll.broker.settings.config import BrokerConfig
from rocketpoll.broker.state.members.consumers import ConsumerManager
from rocketpoll.broker.state.members.producers import ProducerManager
from rocketpoll.broker.state.tables.table import TooMany

NOTICE = Code.NOTIFY_CONSUMER_IDS_CHANGED


def no_sql(subscription):
    raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"not by {subscription.expression_type}")


class Clients:
    """A processor and the objects that it changes."""

    def __init__(self, parts):
        self.parts = parts
        self.joined = []
        self.producers = ProducerManager(room())
        self.consumers = ConsumerManager(NotifyConsumerIdsChanged(parts.groups, finished), room())
        self.processor = ClientManageProcessor(
            parts.broker(
                config=BrokerConfig(
                    store=small_config(parts.root),
                    client_expired_timeout_ms=120_000,
                    max_groups_per_connection=5,
                ),
                consumers=self.consumers,
                producers=self.producers,
                hold_service=SimpleNamespace(release_pops=lambda *_: iter(())),
                locks=SimpleNamespace(
                    mark_member=lambda connection, group: self.joined.append((connection, group))
                ),
            ),
            no_sql,
        )

    def beat(self, connection, *consumers, producers=(), **more):
        heartbeat = HeartbeatData(
            client_id=connection.client_id,
            consumer_data_set=consumers,
            producer_data_set=tuple(ProducerData(group_name=name) for name in producers),
            **more,
        )
        answer = finished(
            self.processor.heart_beat(connection, connection.ask(Code.HEART_BEAT, body=heartbeat))
        )
        assert answer.code == ResponseCode.SUCCESS
        return answer

    def unregister(self, connection, header):
        request = connection.ask(Code.UNREGISTER_CLIENT, header)
        return finished(self.processor.unregister_client(connection, request))


def large(group, **more):
    return ConsumerData(
        group_name=group, subscription_data_set=(SubscriptionData(topic="T", **more),)
    )


def consumer(group, *topics):
    subscriptions = tuple(SubscriptionData(topic=topic, sub_version=1) for topic in topics)
    return ConsumerData(group_name=group, subscription_data_set=subscriptions)


@pytest.fixture
def clients(parts):
    return Clients(parts)


@pytest.fixture
def one():
    return FakeConnection("one")


@pytest.fixture
def two():
    return FakeConnection("two")


def test_heartbeat_creates_the_group_and_its_retry_topic(clients, parts, one):
    answer = clients.beat(one, consumer("g", "T"))
    assert parts.groups.get("g") == SubscriptionGroupConfig(group_name="g")
    assert parts.topics.get("%RETRY%g") == TopicConfig(
        topic_name="%RETRY%g", read_queue_nums=1, write_queue_nums=1, perm=6
    )
    assert answer.version >= 232  # otherwise Java clients refuse SQL92 subscriptions
    assert "IS_SUPPORT_HEART_BEAT_V2" not in answer.ext_fields


def test_member_that_joins_is_reported_once_until_it_leaves(clients, one, two):
    for connection in (one, two, one):
        clients.beat(connection, consumer("g", "T"))
    assert clients.joined == [(one, "g"), (two, "g")]
    header = UnregisterClientRequestHeader("one", consumer_group="g")
    clients.unregister(one, header)
    clients.beat(one, consumer("g", "T"))
    assert clients.joined[2:] == [(one, "g")]


def test_retry_topic_has_the_groups_configured_number_of_queues(clients, parts, one):
    parts.groups.put(SubscriptionGroupConfig(group_name="g", retry_queue_nums=3))
    clients.beat(one, consumer("g", "T"))
    assert parts.topics.get("%RETRY%g").write_queue_nums == 3


def test_heartbeat_registers_a_client_with_its_attributes(clients, parts):
    client = FakeConnection("c@1", version=477, language=LanguageCode.GO)
    clients.beat(client, consumer("g", "T", "U"), producers=["p", "CLIENT_INNER_PRODUCER"])
    channel = clients.consumers.find("g", "c@1")
    assert (channel.connection, channel.language, channel.version) == (client, "GO", 477)
    assert channel.last_heartbeat_ms == parts.clock.now_ms
    assert set(clients.consumers.group("g").subscriptions) == {"T", "U"}
    assert (
        clients.producers.channels("p")
        == clients.producers.channels("CLIENT_INNER_PRODUCER")
        == (channel,)
    )


def test_all_members_are_notified_of_a_new_member(clients, one, two):
    clients.beat(one, consumer("g", "T"))
    assert one.codes() == [NOTICE]
    notice = one.sent[0]
    assert notice.ext_fields == {"consumerGroup": "g"}
    assert notice.is_one_way
    assert not notice.is_response
    clients.beat(two, consumer("g", "T"))
    assert one.codes() == [NOTICE, NOTICE]
    assert two.codes() == [NOTICE]
    clients.beat(one, consumer("g", "T"))
    assert one.codes() == [NOTICE, NOTICE]


def test_member_change_notice_is_encoded_once_for_all_members(clients, one, two):
    heard = []
    for client in (one, two):
        client.send_frame = heard.append
    clients.beat(one, consumer("g", "T"))
    clients.beat(two, consumer("g", "T"))
    assert len(heard) == 3
    assert heard[1] is heard[2]


def test_number_of_groups_per_client_is_limited(clients, one, two):
    clients.beat(one, consumer("a", "T"), consumer("b", "T"), producers=["a", "p"])
    clients.beat(one, consumer("c", "T"))
    clients.beat(one, consumer("c", "T"), consumer("a", "T"))
    for consumers, producers in ([[consumer("d", "T")], []], [[], ["q"]]):
        with pytest.raises(
            RequestRejected, match=r"in 6 groups; the limit is 5 \(maxGroupsPerConnection\)"
        ):
            clients.beat(one, *consumers, producers=producers)
    assert clients.consumers.group("d") is None
    clients.beat(two, consumer("d", "T"))
    clients.unregister(one, UnregisterClientRequestHeader("one", "p", "b"))
    clients.beat(one, consumer("d", "T"), producers=["q"])


def test_group_over_the_limit_does_not_block_other_groups(clients, parts, one, two):
    parts.groups.max_groups = len(parts.groups.groups) + 1
    with pytest.raises(TooMany, match="maxGroups"):
        clients.beat(one, consumer("a", "T"), consumer("b", "T"))
    clients.beat(two, consumer("a", "T"))
    assert len(clients.consumers.group("a").clients) == 2
    assert clients.consumers.group("b") is None
    assert parts.topics.get("%RETRY%b") is None


def test_group_with_notifications_disabled_gets_no_member_change_notice(clients, parts, one, two):
    parts.groups.put(
        SubscriptionGroupConfig(group_name="g", notify_consumer_ids_changed_enable=False)
    )
    clients.beat(one, consumer("g", "T"))
    clients.beat(two, consumer("g", "T"))
    finished(clients.processor.connection_closed(two))
    assert one.sent == two.sent == []


def test_heartbeat_v2_without_subscriptions_keeps_the_known_ones(clients, one):
    clients.beat(one, consumer("g", "T", "U"), heartbeat_fingerprint=5, without_sub=False)
    clients.beat(one, consumer("g"), heartbeat_fingerprint=5, without_sub=True)
    assert set(clients.consumers.group("g").subscriptions) == {"T", "U"}
    clients.beat(one, consumer("g", "U"), heartbeat_fingerprint=6, without_sub=False)
    assert set(clients.consumers.group("g").subscriptions) == {"U"}


def test_unregistered_client_leaves_its_group_and_others_are_notified(clients, one, two):
    clients.beat(one, consumer("g", "T"), producers=["p"])
    clients.beat(two, consumer("g", "T"))
    one.sent.clear()
    two.sent.clear()
    for header in (
        UnregisterClientRequestHeader("one", consumer_group="g"),
        UnregisterClientRequestHeader("one", producer_group="p"),
        UnregisterClientRequestHeader("one", producer_group="never", consumer_group="there"),
        UnregisterClientRequestHeader("one"),
    ):
        answer = clients.unregister(one, header)
        assert answer.code == ResponseCode.SUCCESS
    assert clients.consumers.group("g").client_ids == ("two",)
    assert clients.producers.groups == {}
    assert (one.codes(), two.codes()) == ([], [NOTICE])


def test_closed_connection_unregisters_its_groups_and_producers(clients, one, two):
    clients.beat(one, consumer("g", "T"), consumer("h", "T"), producers=["p"])
    clients.beat(two, consumer("g", "T"))
    two.sent.clear()
    finished(clients.processor.connection_closed(one))
    assert two.codes() == [NOTICE]
    assert clients.consumers.group("h") is None
    assert clients.producers.groups == {}


@pytest.mark.parametrize(
    ("heartbeat", "why"),
    [
        (HeartbeatData(client_id=" "), "no clientID"),
        (HeartbeatData(client_id="c" * 1_025), "over 1024"),
        (
            HeartbeatData(client_id="c", producer_data_set=(ProducerData(group_name="a/b"),)),
            "group 'a/b'",
        ),
        (HeartbeatData(client_id="c", consumer_data_set=(consumer("../g", "T"),)), "group '../g'"),
        (
            HeartbeatData(
                client_id="c", consumer_data_set=(consumer("g", "T"), consumer("h", "a@b"))
            ),
            "topic 'a@b'",
        ),
        (
            HeartbeatData(client_id="c", consumer_data_set=(large("g", sub_string="a" * 131_073),)),
            "over 65536",
        ),
        (
            HeartbeatData(
                client_id="c",
                consumer_data_set=(large("g", tags_set=frozenset({"a" * 70_000, "b" * 70_000})),),
            ),
            "over 65536",
        ),
        (
            HeartbeatData(
                client_id="c", consumer_data_set=(large("g", sub_string="||".join(["a"] * 4_097)),)
            ),
            "4097 tags, over 4096",
        ),
        (
            HeartbeatData(
                client_id="c", consumer_data_set=(large("g", code_set=frozenset(range(65_537))),)
            ),
            "over 65536",
        ),
    ],
)
def test_heartbeat_with_an_invalid_name_registers_nothing(clients, parts, one, heartbeat, why):
    code, remark = refused(
        clients.processor.heart_beat, one, one.ask(Code.HEART_BEAT, body=heartbeat)
    )
    assert code == ResponseCode.SYSTEM_ERROR
    assert why in remark
    assert clients.consumers.group("g") is None
    assert clients.producers.groups == {}
    assert parts.topics.get("%RETRY%g") is None


def test_heartbeat_without_group_auto_creation_names_unknown_groups(tmp_path, one):
    parts = open_parts(tmp_path, auto_create=False)
    clients = Clients(parts)
    parts.groups.put(SubscriptionGroupConfig(group_name="known"))
    heartbeat = HeartbeatData(
        client_id="c", consumer_data_set=(consumer("new", "T"), consumer("known", "T"))
    )
    code, remark = refused(
        clients.processor.heart_beat, one, one.ask(Code.HEART_BEAT, body=heartbeat)
    )
    assert code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "[new]" in remark
    assert clients.consumers.group("new") is None
    assert clients.consumers.group("known").client_ids == ("c",)
    assert parts.topics.get("%RETRY%new") is None
    parts.store.shutdown()


def test_java_heartbeat_with_fastjson_references_is_decoded(clients, one):
    """A set is written as a fastjson reference to an earlier one, and null members are omitted."""
    body = (
        b'{"clientID":"10.0.0.9@42","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        b'"consumeType":"CONSUME_ACTIVELY","groupName":"g","messageModel":"CLUSTERING","subscriptionDataSet":'
        b'[{"classFilterMode":false,"codeSet":[65],"expressionType":"TAG","subString":"A","subVersion":1,'
        b'"tagsSet":["A"],"topic":"T"}],"unitMode":false},{"groupName":"h","subscriptionDataSet":'
        b'[{"$ref":"$.consumerDataSet[0].subscriptionDataSet[0]"}]}],"producerDataSet":[{"groupName":"p"}]}'
    )
    answer = finished(clients.processor.heart_beat(one, one.ask(Code.HEART_BEAT, body=body)))
    assert answer.code == ResponseCode.SUCCESS
    assert clients.consumers.group("g").consume_type is ConsumeType.CONSUME_ACTIVELY
    assert clients.consumers.subscription("h", "T").tags_set == {"A"}


def test_malformed_heartbeat_is_refused(clients, one):
    code, remark = refused(clients.processor.heart_beat, one, one.ask(Code.HEART_BEAT))
    assert (code, remark) == (ResponseCode.SYSTEM_ERROR, "request 34 needs a body")
    with pytest.raises(BodyError, match="clientID"):
        finished(clients.processor.heart_beat(one, one.ask(Code.HEART_BEAT, body=b"{}")))


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
def test_check_client_config_refuses_unsupported_sql_filters(clients, one, kind):
    subscription = SubscriptionData(topic="T", sub_string="a > 1", expression_type=kind)
    body = CheckClientRequestBody(client_id="one", group="g", subscription_data=subscription)
    request = one.ask(Code.CHECK_CLIENT_CONFIG, body=body)
    handler = clients.processor.handlers()[Code.CHECK_CLIENT_CONFIG]
    if kind == "TAG":
        assert finished(handler(one, request)).code == ResponseCode.SUCCESS
    else:
        assert refused(handler, one, request) == (ResponseCode.SYSTEM_ERROR, "not by SQL92")


def test_repeated_member_changes_are_notified_once(parts):
    work = []
    consumers = ConsumerManager(NotifyConsumerIdsChanged(parts.groups, work.append), room())
    members = [join(consumers, "g", f"client {number}", "T") for number in range(20)]
    other = join(consumers, "h", "client", "T")
    assert all(member.sent == [] for member in (*members, other))
    (steps,) = work
    for _ in range(5):
        next(steps)
    assert [len(member.sent) for member in members] == [1] * 5 + [0] * 15
    finished(consumers.connection_closed(members[19]))  # while the others are being notified
    finished(steps)
    assert [len(member.sent) for member in members] == [2] * 19 + [1]
    assert other.codes() == [NOTICE]
    finished(consumers.connection_closed(members[18]))
    assert len(work) == 2
