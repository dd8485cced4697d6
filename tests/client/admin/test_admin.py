"""Operations of `Admin` that combine requests: several brokers, online members,
concurrent changes."""

import inspect
import re
import threading
from contextlib import ExitStack
from dataclasses import replace

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.fake_members import Consumer

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.api.admin_api import AdminApi
from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_spark.client.consumer.push_consumer import PushConsumer
from rmq_spark.client.errors import (
    BrokerNotFound,
    BrokerRefused,
    GroupNotFound,
    MessageRejected,
    NotResendable,
    NotSupported,
    RouteNotFound,
)
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.transport.remoting_client import TypedRequests
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.message_queue import MessageQueue

CLOCKS_APART_MS = 5
"""Maximum difference between two clock reads, which follow each other."""
QUEUES = [MessageQueue("T", "broker-a", n) for n in range(2)]


def test_admin_help_names_each_method_once_under_its_heading():
    headings = re.findall(r"^[A-Z][a-z ]+: (?:`[^:]*`)\.$", inspect.getdoc(Admin), re.MULTILINE)
    listed = re.findall(r"`(\w+)`", " ".join(headings))
    assert sorted(listed) == [name for name in dir(Admin) if not name.startswith("_")]


def fill(producer, *bodies, queue=QUEUES[0], **more):
    return [producer.send(Message("T", body, **more), queue) for body in bodies]


def test_admin_lists_masters_and_refuses_an_unknown_cluster(admin, running_broker):
    assert admin.masters() == {"broker-a": running_broker.address}
    assert admin.masters("DefaultCluster") == admin.masters()
    assert admin.cluster_info().cluster_addr_table["DefaultCluster"] == {"broker-a"}
    assert admin.runtime_info()["broker-a"]["brokerVersionDesc"].startswith("V4_9")
    with pytest.raises(BrokerNotFound, match="nowhere"):
        admin.masters("nowhere")


def test_lag_of_an_unknown_group_is_an_error_that_names_the_nearest_group(admin, producer):
    fill(producer, b"a")
    admin.create_group("billing")
    with pytest.raises(GroupNotFound, match=r"no consumer group biling; did you mean billing\?"):
        admin.lag("biling", "T")
    with pytest.raises(GroupNotFound, match="no consumer group other; check its name"):
        admin.lag("other", "T")


@pytest.mark.parametrize(
    "asks",
    [
        lambda admin, group: admin.members(group),
        lambda admin, group: admin.queue_owners(group),
        lambda admin, group: admin.queue_reports(group),
        lambda admin, group: admin.reset_to_time(group, "T", 0),
        lambda admin, group: admin.describe_group(group),
        lambda admin, group: admin.set_offset(group, QUEUES[0], 1),
    ],
)
def test_call_for_an_unknown_group_is_an_error_that_names_the_nearest_group(admin, producer, asks):
    fill(producer, b"a")
    admin.create_group("billing")
    with pytest.raises(GroupNotFound, match=r"no consumer group biling; did you mean billing\?"):
        asks(admin, "biling")
    with pytest.raises(GroupNotFound, match=r"or create it with Admin\.create_group"):
        asks(admin, "other")
    assert "other" not in admin.groups()
    asks(admin, "billing")
    admin.set_offset("offsets-only", QUEUES[0], 0, missing_ok=True)
    asks(admin, "offsets-only")


@pytest.mark.parametrize(
    "asks",
    [
        lambda admin, topic: admin.lag("G", topic),
        lambda admin, topic: admin.set_offset("G", MessageQueue(topic, "broker-a", 0), 0),
        lambda admin, topic: admin.reset_to_time("G", topic, 0),
        lambda admin, topic: admin.topic_offsets(topic),
        lambda admin, topic: admin.topic_configs(topic),
        lambda admin, topic: admin.delete_topic(topic),
    ],
)
def test_call_for_an_unknown_topic_is_an_error_that_names_the_nearest_topic(admin, asks):
    admin.create_group("G")
    admin.create_topic("orders", 1)
    with pytest.raises(RouteNotFound, match=r"no route to topic ordres: .* mean orders\?"):
        asks(admin, "ordres")


def test_deletion_of_a_missing_topic_is_no_error_with_missing_ok(admin):
    admin.delete_topic("T")
    admin.delete_topic("T", missing_ok=True)
    assert "T" not in admin.topics()


def test_find_topic_names_the_masters_that_have_it_without_reading_all_topics(admin, monkeypatch):
    def refuse(*_):
        raise AssertionError("all topics were read")

    monkeypatch.setattr(AdminApi, "topic_configs", refuse)
    assert admin.find_topic("T") == {"broker-a"}
    assert admin.find_topic("U") == frozenset()


def test_find_topic_reads_all_topics_where_the_broker_cannot_be_asked_for_one(admin, monkeypatch):
    body = TypedRequests.body

    def as_of_4_9(requests, kind, address, code, *more):
        if code == RequestCode.GET_TOPIC_CONFIG:
            raise NotSupported(3, "request type 351 not supported", address, code)
        return body(requests, kind, address, code, *more)

    monkeypatch.setattr(TypedRequests, "body", as_of_4_9)
    assert admin.find_topic("T") == {"broker-a"}
    assert admin.find_topic("U") == frozenset()


def test_set_offset_outside_the_queue_is_refused(admin, producer):
    fill(producer, b"a")
    admin.create_group("G")
    with pytest.raises(MessageRejected, match="from 0 to 1"):
        admin.set_offset("G", QUEUES[0], 2)
    with pytest.raises(BrokerNotFound):
        admin.set_offset("G", MessageQueue("T", "nobody", 0), 0)


def test_set_offset_wins_over_a_members_last_offset_that_arrives_during_it(
    admin, producer, running_broker, monkeypatch
):
    fill(producer, b"a", b"b")
    real, left = BrokerApi.update_consumer_offset, []

    with ClientInstance(running_broker.address) as instance:

        def leaves_behind(api, address, group, queue, offset, **more):
            real(api, address, group, queue, offset, **more)
            if not left:
                left.append(group)
                real(api, address, group, queue, 2, **more)
                instance.unregister_consumer(group)

        instance.routes.route("T")
        instance.register_consumer("G", Consumer())
        instance.heartbeat()
        monkeypatch.setattr(BrokerApi, "update_consumer_offset", leaves_behind)
        admin.set_offset("G", QUEUES[0], 1)
    assert left == ["G"]
    assert admin.lag("G", "T")[0].consumer_offset == 1


def test_set_offset_on_rocketmq_4_9_does_not_reset_all_queues(admin, producer, running_broker):
    fill(producer, b"a", b"b")
    with ClientInstance(running_broker.address) as instance:
        consumer = Consumer()
        instance.routes.route("T")
        instance.register_consumer("G", consumer)
        instance.heartbeat()
        plain = ClientInstance(running_broker.address, extensions=frozenset())
        with (
            Admin(instance=plain) as as_of_4_9,
            pytest.raises(NotSupported, match="stop the group's consumers"),
        ):
            as_of_4_9.set_offset("G", QUEUES[0], 1)
        assert consumer.told == []


def test_progress_covers_all_topics_of_a_group_in_one_request(admin, producer):
    fill(producer, b"a", b"b", b"c")
    assert list(admin.progress("G")) == []
    admin.set_offset("G", QUEUES[0], 1, missing_ok=True)
    assert [(lag.queue, lag.consumer_offset, lag.messages) for lag in admin.progress("G")] == [
        (QUEUES[0], 1, 2),
        (QUEUES[1], 0, 0),
    ]


def test_clone_offsets_copies_all_or_one_topic(admin, producer):
    fill(producer, b"a", b"b", b"c")
    admin.set_offset("G", QUEUES[0], 2, missing_ok=True)
    admin.clone_offsets("G", "Copy")
    admin.clone_offsets("G", "OfTopic", topic="T")
    for group in ("Copy", "OfTopic"):
        assert [lag.consumer_offset for lag in admin.lag(group, "T")] == [2, None]
    for topic in (None, "T"):
        with pytest.raises(BrokerRefused, match="<Nobody> has no offsets"):
            admin.clone_offsets("Nobody", "Copy", topic=topic)


def test_topic_configs_are_listed_by_broker(admin):
    (config,) = admin.topic_configs("T").values()
    assert (config.topic_name, config.read_queue_nums, config.perm) == ("T", 2, 6)
    assert admin.all_topic_configs()["broker-a"]["T"] == config
    admin.create_topic("T", 3, broker_name="broker-a")
    assert admin.topic_configs("T")["broker-a"].read_queue_nums == 3
    with pytest.raises(BrokerNotFound, match="broker-b"):
        admin.create_topic("T", 3, broker_name="broker-b")
    with pytest.raises(RouteNotFound):
        admin.topic_configs("nothing")


def test_admin_shows_the_queues_of_each_member(admin, running_broker):
    consumer = LitePullConsumer("G", running_broker.address)
    consumer.subscribe("T")
    with consumer:
        wait_until("both queues", lambda: len(consumer.assignment()) == len(QUEUES))
        (member,) = admin.members("G")
        owners = admin.queue_owners("G")
        assert {queue: owners[queue] for queue in QUEUES} == dict.fromkeys(QUEUES, member.client_id)
    assert admin.queue_owners("G") == admin.queue_reports("G") == {}


def test_admin_shows_whether_a_members_listener_fails_or_hangs(admin, running_broker, producer):
    """The consume time of a failing member advances with each try; that of a hanging one
    does not."""
    ends = threading.Event()

    def fail(_, __):
        raise ValueError

    def hang(_, __):
        ends.wait(60)

    with ExitStack() as members:
        members.callback(ends.set)
        for group, listener in (("Failing", fail), ("Hanging", hang)):
            member = PushConsumer(group, running_broker.address, orderly_listener=listener)
            member.subscribe("T")
            members.enter_context(member)
            wait_until("its queues", lambda: len(member.assignment()) >= len(QUEUES))  # noqa: B023  # called by the next line
        fill(producer, b"poison")

        def reports_of(group):
            every = admin.queue_reports(group).items()
            return [each for queue, each in every if queue.topic == "T" and each.messages]

        for group in ("Failing", "Hanging"):
            wait_until("its message", lambda: reports_of(group))  # noqa: B023  # called by the next line
        [failing], [hanging] = reports_of("Failing"), reports_of("Hanging")
        assert (failing.messages, hanging.messages) == (1, 1)
        for _ in range(2):  # retried each second
            before = reports_of("Failing")[0].tried_ms
            wait_until("another try", lambda: reports_of("Failing")[0].tried_ms > before)  # noqa: B023  # called by the next line
        assert reports_of("Hanging")[0].tried_ms <= hanging.tried_ms + CLOCKS_APART_MS


def test_broker_info_asks_one_broker(admin, running_broker):
    alone, among_all = admin.broker_info(running_broker.address), admin.runtime_info()["broker-a"]
    assert alone["bootTimestamp"] == among_all["bootTimestamp"]


def test_message_at_reads_one_offset(admin, producer):
    fill(producer, b"a", b"b")
    assert admin.message_at(QUEUES[0], 1).body == b"b"
    assert admin.message_at(QUEUES[0], 2) is None
    assert admin.message_at(QUEUES[1], 0) is None
    with pytest.raises(BrokerNotFound):
        admin.message_at(MessageQueue("T", "nobody", 0), 0)


def test_queue_added_during_a_reset_is_reset_too(admin, producer, running_broker):
    class WhileItGrows(Admin):
        def _store_offsets(self, *arguments):
            stored = super()._store_offsets(*arguments)
            self.create_topic("T", 3)
            return stored

    fill(producer, b"a", b"b")
    with ClientInstance(running_broker.address) as instance:
        instance.routes.route("T")
        instance.register_consumer("G", Consumer())
        instance.heartbeat()
        admin.set_offset("G", QUEUES[0], 1)
        with WhileItGrows(running_broker.address) as growing:
            assert len(growing.reset_to_time("G", "T", 0)) == 3
    admin.instance.routes.refresh("T")
    assert [lag.consumer_offset for lag in admin.lag("G", "T")] == [0, 0, 0]


def test_member_that_joins_during_set_offset_is_notified(
    admin, producer, running_broker, monkeypatch
):
    fill(producer, b"a", b"b")
    admin.create_group("G")
    store, consumer = BrokerApi.update_consumer_offset, Consumer()
    with ClientInstance(running_broker.address) as instance:
        instance.routes.route("T")

        def while_one_joins(*arguments, **more):
            instance.register_consumer("G", consumer)
            instance.heartbeat()
            return store(*arguments, **more)

        monkeypatch.setattr(BrokerApi, "update_consumer_offset", while_one_joins)
        admin.set_offset("G", QUEUES[0], 1)
        assert consumer.resets.acquire(timeout=10)
    assert consumer.told == [("T", {QUEUES[0]: 1})]


def test_dead_letters_are_returned_oldest_first_and_resent_as_they_were(running_broker, admin):
    group, topic = "DeadLetters", "DeadLettersTopic"
    admin.create_group(group)
    admin.create_topic(topic, 1)
    assert admin.dead_letters(group) == []
    with pytest.raises(GroupNotFound, match="did you mean DeadLetters"):
        admin.dead_letters("DeadLetter")

    def bury(_messages, context):
        context.delay_level_when_next_consume = -1
        raise ValueError("every message is refused")

    sent = [
        Message(topic, b"%d" % number, tags="red", key=f"k{number}", properties={"colour": "red"})
        for number in range(3)
    ]
    with Producer("P", running_broker.address) as producer:
        for each in sent:
            producer.send(each)
    with PushConsumer(group, running_broker.address, listener=bury, start="earliest") as consumer:
        consumer.subscribe(topic)
        wait_until("dead letters", lambda: len(admin.dead_letters(group)) == 3)
    letters = admin.dead_letters(group)
    assert {each.real_topic for each in letters} == {topic}
    assert [each.body for each in admin.dead_letters(group, 2)] == [
        each.body for each in letters[1:]
    ]
    state = admin.describe_group(group)
    assert (state.name, state.dead_letters) == (group, 3)
    assert [each.lag.queue.topic for each in state.queues] == [topic]

    results = admin.resend(letters[:1])
    again = admin.message_at(results[0].queue, results[0].queue_offset)
    [original] = [each for each in sent if each.body == again.body]
    assert (again.topic, again.tags, again.key) == (topic, "red", original.key)
    assert again.properties["colour"] == "red"
    with pytest.raises(NotResendable, match="does not name its original topic"):
        admin.resend([replace(letters[0], properties={})])


def test_describe_group_of_an_unknown_group_is_an_error(admin):
    with pytest.raises(GroupNotFound, match="no consumer group NobodysGroup"):
        admin.describe_group("NobodysGroup")
