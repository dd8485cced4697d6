"""Groups: member lists, assignments, queue locks and connections."""

import pytest
from support.brokers.connections import FakeConnection, body_in, finished
from support.brokers.processors import refused
from support.brokers.state_tables import join, produce, room

from rmq_spark.client.consumer.rebalance import strategies
from rmq_spark.wire.bodies import clients
from rmq_spark.wire.bodies import operators as bodies
from rmq_spark.wire.bodies.clients import GetConsumerListByGroupResponseBody
from rmq_spark.wire.bodies.operators import TopicList
from rmq_spark.wire.codes import LanguageCode
from rmq_spark.wire.codes import RequestCode as Code
from rmq_spark.wire.codes import ResponseCode as Answer
from rmq_spark.wire.headers import members, operators
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll.broker.processor.groups.consumer_group import ConsumerGroupProcessor
from rocketpoll.broker.processor.request import RequestRejected
from rocketpoll.broker.state.members.consumers import ConsumerManager
from rocketpoll.broker.state.members.producers import ProducerManager
from rocketpoll.broker.state.members.queue_locks import QueueLocks

CLIENT = FakeConnection()


@pytest.fixture
def consumers():
    return ConsumerManager(lambda _: None, room())


@pytest.fixture
def producers():
    return ProducerManager(room())


@pytest.fixture
def processor(parts, consumers, producers):
    locks = QueueLocks(parts.clock)
    return ConsumerGroupProcessor(
        parts.broker(
            consumers=consumers,
            producers=producers,
            locks=locks,
            now_ms=lambda: parts.clock() + 1_000,
        )
    )


def ask(processor, code, header=None, body=None):
    answer = finished(processor.handlers()[code](CLIENT, CLIENT.ask(code, header, body)))
    assert answer.code == Answer.SUCCESS
    return answer


def test_consumer_list_is_sorted(processor, consumers):
    for client_id in "daebfchg":
        join(consumers, "g", client_id, "T")
    answer = ask(
        processor, Code.GET_CONSUMER_LIST_BY_GROUP, members.ConsumerGroupRequestHeader("g")
    )
    assert body_in(GetConsumerListByGroupResponseBody, answer).consumer_id_list == tuple("abcdefgh")


def test_consumer_list_of_a_group_without_members_is_refused(processor):
    request = CLIENT.ask(Code.GET_CONSUMER_LIST_BY_GROUP, members.ConsumerGroupRequestHeader("g"))
    assert refused(processor.get_consumer_list_by_group, CLIENT, request) == (
        Answer.SYSTEM_ERROR,
        "no consumer for this group, g",
    )


def assignment(processor, client_id, **more):
    given = {"topic": "T", "consumer_group": "g", "strategy_name": "AVG", **more}
    body = clients.QueryAssignmentRequestBody(client_id=client_id, **given)
    answer = ask(processor, Code.QUERY_ASSIGNMENT, body=body)
    if not answer.body:
        return None
    found = body_in(clients.QueryAssignmentResponseBody, answer).message_queue_assignments
    assert all(each.mode is clients.MessageRequestMode.PULL for each in found)
    assert {each.message_queue.broker_name for each in found} <= {"broker-a"}
    return [each.message_queue.queue_id for each in found]


@pytest.mark.parametrize(
    "strategy",
    [
        strategies.AllocateMessageQueueAveragely(),
        strategies.AllocateMessageQueueAveragelyByCircle(),
    ],
    ids=lambda each: each.name,
)
@pytest.mark.parametrize("queue_count", [1, 3, 4, 7, 8])
@pytest.mark.parametrize("members", ["a", "ab", "abc", "abcde"])
def test_broker_assigns_queues_as_each_strategy_would(
    processor, consumers, parts, members, queue_count, strategy
):
    parts.make_topic("T", queue_count)
    for client_id in members:
        join(consumers, "g", client_id, "T")
    all_queues = [MessageQueue("T", "broker-a", number) for number in range(queue_count)]
    for client_id in members:
        mine = strategy.allocate(client_id, all_queues, list(members))
        assert assignment(processor, client_id, strategy_name=strategy.name) == [
            queue.queue_id for queue in mine
        ]


def test_broadcast_member_is_assigned_all_queues(processor, parts):
    parts.make_topic("T", 3)
    broadcasting = clients.MessageModel.BROADCASTING
    assert assignment(processor, "a", message_model=broadcasting) == [0, 1, 2]


def test_broker_assignment_is_none_without_members_or_readable_queues(processor, consumers, parts):
    parts.make_topic("T", 3)
    parts.make_topic("W", 3, perm=2)
    assert assignment(processor, "a") is None  # the group has no member
    join(consumers, "g", "a", "T")
    assert assignment(processor, "a", topic="nothing") is None
    assert assignment(processor, "a", topic="W") is None
    assert assignment(processor, "stranger") == []


def test_unknown_rebalance_strategy_is_refused_with_the_choices(processor, consumers, parts):
    parts.make_topic("T", 3)
    join(consumers, "g", "a", "T")
    body = clients.QueryAssignmentRequestBody(
        topic="T", consumer_group="g", client_id="a", strategy_name="MACHINE_ROOM"
    )
    with pytest.raises(RequestRejected, match="by AVG or AVG_BY_CIRCLE, not by MACHINE_ROOM"):
        finished(processor.query_assignment(CLIENT, CLIENT.ask(Code.QUERY_ASSIGNMENT, body=body)))


def queues(*numbers, topic="T", broker="broker-a"):
    return frozenset(MessageQueue(topic, broker, number) for number in numbers)


def lock(processor, client_id, wanted, group="g"):
    body = clients.LockBatchRequestBody(consumer_group=group, client_id=client_id, mq_set=wanted)
    answer = ask(processor, Code.LOCK_BATCH_MQ, body=body)
    return body_in(clients.LockBatchResponseBody, answer).lock_ok_mq_set


def test_queue_lock_lasts_until_unlock_or_a_minute(processor, parts):
    assert lock(processor, "a", queues(0, 1)) == queues(0, 1)
    assert lock(processor, "b", queues(1, 2)) == queues(2)
    body = clients.LockBatchRequestBody(consumer_group="g", client_id="a", mq_set=queues(1))
    ask(processor, Code.UNLOCK_BATCH_MQ, body=body)
    assert lock(processor, "b", queues(0, 1)) == queues(1)
    parts.clock.now_ms += 60_001
    assert lock(processor, "b", queues(0)) == queues(0)


def test_queues_that_this_broker_does_not_have_cannot_be_locked(processor):
    strange = queues(4, -1) | queues(0, topic="U") | queues(0, broker="broker-b")
    assert lock(processor, "a", strange | queues(3)) == queues(3)


def test_group_member_may_hold_more_queue_locks_than_a_stranger(processor, consumers, monkeypatch):
    monkeypatch.setattr("rocketpoll.broker.state.members.queue_locks.LOCK_BYTES_MAX", 128 << 10)
    assert len(lock(processor, "a", queues(*range(4)))) == 1
    join(consumers, "g", "a", "T")
    assert len(lock(processor, "a", queues(*range(4)))) == 4


def test_lock_of_a_closed_client_is_refused(processor):
    gone = FakeConnection()
    gone.close("it is over")
    body = clients.LockBatchRequestBody(consumer_group="g", client_id="gone", mq_set=queues(0, 1))
    finished(processor.lock_batch_mq(gone, gone.ask(Code.LOCK_BATCH_MQ, body=body)))
    assert lock(processor, "a", queues(0, 1)) == queues(0, 1)


@pytest.mark.parametrize("code", [Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ])
def test_queue_lock_request_with_an_invalid_group_or_client_is_refused(processor, code):
    for group, client_id, why in (
        ("a/b", "c", "other characters"),
        ("g", " ", "no clientID"),
        ("g", "c" * 1_025, "over 1024"),
    ):
        body = clients.LockBatchRequestBody(
            consumer_group=group, client_id=client_id, mq_set=queues(0)
        )
        answer, remark = refused(processor.handlers()[code], CLIENT, CLIENT.ask(code, body=body))
        assert answer == Answer.SYSTEM_ERROR
        assert why in remark


def test_consumer_connection_list_shows_subscriptions(processor, consumers):
    member = join(consumers, "g", "c", "T", "U", version=477, language=LanguageCode.GO)
    answer = ask(
        processor,
        Code.GET_CONSUMER_CONNECTION_LIST,
        members.ConsumerGroupRequestHeader("g"),
    )
    body = body_in(bodies.ConsumerConnection, answer)
    assert body.connection_set == (
        bodies.Connection(
            client_id="c", client_addr=str(member.remote_host), language="GO", version=477
        ),
    )
    assert set(body.subscription_table) == {"T", "U"}
    assert body.consume_type is clients.ConsumeType.CONSUME_PASSIVELY
    assert body.message_model is clients.MessageModel.CLUSTERING
    assert body.consume_from_where is clients.ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET


def test_consumer_connections_of_an_offline_group_are_refused(processor):
    request = CLIENT.ask(Code.GET_CONSUMER_CONNECTION_LIST, members.ConsumerGroupRequestHeader("g"))
    assert (
        refused(processor.get_consumer_connection_list, CLIENT, request)[0]
        == Answer.CONSUMER_NOT_ONLINE
    )


def test_producer_connection_list_is_by_group(processor, producers, parts):
    one = produce(producers, "p", "one", now_ms=5)
    produce(producers, "q", "two")
    header = operators.GetProducerConnectionListRequestHeader("p")
    body = body_in(
        bodies.ProducerConnection, ask(processor, Code.GET_PRODUCER_CONNECTION_LIST, header)
    )
    assert [each.client_id for each in body.connection_set] == ["one"]
    everybody = body_in(bodies.ProducerTableInfo, ask(processor, Code.GET_ALL_PRODUCER_INFO)).data
    assert set(everybody) == {"p", "q"}
    assert everybody["p"] == (
        bodies.ProducerInfo(
            client_id="one",
            remote_ip=str(one.remote_host),
            language="JAVA",
            version=409,
            last_update_timestamp=1_005,
        ),
    )


def test_empty_producer_group_does_not_exist(processor):
    header = operators.GetProducerConnectionListRequestHeader("p")
    request = CLIENT.ask(Code.GET_PRODUCER_CONNECTION_LIST, header)
    assert refused(processor.get_producer_connection_list, CLIENT, request) == (
        Answer.SYSTEM_ERROR,
        "the producer group[p] not exist",
    )
    assert body_in(bodies.ProducerTableInfo, ask(processor, Code.GET_ALL_PRODUCER_INFO)).data == {}


def test_topics_of_a_group_are_those_with_offsets(processor, parts):
    parts.offsets.commit("g", "T", 0, 1)
    parts.offsets.commit("g", "%RETRY%g", 0, 1)
    header = operators.GetSubscriptionGroupConfigRequestHeader("g")
    answer = ask(processor, Code.QUERY_TOPICS_BY_CONSUMER, header)
    assert body_in(TopicList, answer).topic_list == {"T", "%RETRY%g"}


def test_query_subscription_of_a_group_in_a_topic(processor, consumers):
    join(consumers, "g", "c", "T")
    for topic in ("T", "U"):
        header = operators.QuerySubscriptionByConsumerRequestHeader("g", topic)
        answer = ask(processor, Code.QUERY_SUBSCRIPTION_BY_CONSUMER, header)
        body = body_in(bodies.QuerySubscriptionResponseBody, answer)
        assert (body.group, body.topic) == ("g", topic)
        assert (body.subscription_data is None) == (topic == "U")
