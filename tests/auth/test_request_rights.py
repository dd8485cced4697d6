"""Request rights: every code has a row, and needs follow from headers and bodies."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.access import answers

from rmq_spark.wire.bodies import clients, configs, encode_body
from rmq_spark.wire.codes import RequestCode as Code
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.auth.request_rights import RIGHTS, TO_CLIENTS
from rocketpoll.broker.auth.rights import Action, Need, ResourceType, group_need, topic_need

CLUSTER = "DefaultCluster"


def test_rights_table_has_every_request_that_a_broker_can_receive():
    assert [code for code in Code if (code in RIGHTS) == (code in TO_CLIENTS)] == []


# ---- the same rights as RocketMQ 5.5.0, or more

ANY_READER = {"SEARCH_OFFSET", "GET_MAX_OFFSET", "GET_MIN_OFFSET", "GET_EARLIEST", "VIEW_MESSAGE"}
"""RocketMQ requires Get, which consumers lack; users who may read all messages may read
this as well."""


def as_words(needs):
    """Return needs as in the vectors: of several with one type, the one with the fewest actions."""
    found = {}
    for need in needs:
        actions = {action.value for action in need.actions}
        kind = found.setdefault(need.resource.value, actions)
        kind &= actions or kind
    return found


@pytest.mark.parametrize(
    "vector",
    [each for each in answers.load("5.5.0", "request") if each["code"] in RIGHTS],
    ids=lambda vector: vector["name"],
)
def test_request_needs_what_rocketmq_wants_or_more(vector):
    request = RemotingCommand(
        vector["code"], ext_fields=vector["ext"], body=bytes.fromhex(vector["body"])
    )
    needs = as_words(RIGHTS[vector["code"]](request, CLUSTER))
    for kind, actions in vector["needs"].items():
        if any(vector["name"].startswith(name) for name in ANY_READER):
            assert needs[kind] == {*actions, "Sub"}
        elif vector["code"] == Code.RESUME_CHECK_HALF_MESSAGE:
            assert needs == {"Cluster": {"Update"}}  # a transaction belongs to no topic
        elif vector["code"] == Code.CLONE_GROUP_OFFSET and kind == "Group":
            assert not needs[kind]  # Get on one, Update on the other
        else:
            assert needs[kind] == set(actions)


# ---- needs follow from the named objects

NAMES = st.text("abcXYZ_%-19", min_size=1, max_size=12).filter(
    lambda name: not name.startswith("%RETRY%")
)
TOPICS = NAMES | NAMES.map("%RETRY%{}".format) | NAMES.map("%DLQ%{}".format)


def needs_of(code, body=b"", **fields):
    """Return the needs of a request that has these fields, and valid values in all others."""
    exchange = HEADERS.get(code)
    if exchange is None or exchange.request is None:
        return RIGHTS[code](RemotingCommand(code, body=body), CLUSTER)
    codec = exchange.request
    required = {
        name: 0 if "int" in str(kind).lower() or kind is bool else ""
        for name, kind in codec.header_type.__annotations__.items()
        if name not in codec.header_type._field_defaults
    }
    known = {name: each for name, each in fields.items() if name in codec.header_type._fields}
    header = codec.header_type(**{**required, **known})
    ext_fields = {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in zip(codec.keys, header, strict=True)
        if value is not None
    }
    return RIGHTS[code](RemotingCommand(code, ext_fields=ext_fields, body=body), CLUSTER)


SENDS = [Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE]
OUR_SENDS = [Code.APPEND_CHUNK, Code.STAGE_CHUNK]


@given(st.sampled_from([*SENDS, *OUR_SENDS]), TOPICS, NAMES)
def test_send_needs_its_topic_whatever_producer_group_it_states(code, topic, group):
    needs = needs_of(code, topic=topic, producer_group=group)
    if topic.startswith("%RETRY%"):
        assert needs == (group_need(topic.removeprefix("%RETRY%"), Action.SUB),)
    else:
        assert needs == (Need(ResourceType.TOPIC, topic, (Action.PUB,)),)


PULLS = [Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE, Code.PULL_CHUNK, Code.PULL_PLACES]


@given(st.sampled_from(PULLS), TOPICS, NAMES)
def test_pull_needs_topic_and_group_and_the_group_of_a_retry_topic(code, topic, group):
    needs = set(needs_of(code, topic=topic, consumer_group=group))
    assert needs == {topic_need(topic, Action.SUB), group_need(group, Action.SUB)}


@given(
    st.lists(st.tuples(NAMES, st.lists(TOPICS, max_size=3)), max_size=3),
    st.lists(NAMES, max_size=2),
)
def test_heartbeat_needs_every_group_and_topic_of_its_consumers(consumers, producers):
    body = clients.HeartbeatData(
        client_id="c",
        producer_data_set=tuple(clients.ProducerData(group_name=each) for each in producers),
        consumer_data_set=tuple(
            clients.ConsumerData(
                group_name=group,
                subscription_data_set=tuple(
                    clients.SubscriptionData(topic=topic) for topic in topics
                ),
            )
            for group, topics in consumers
        ),
    )
    expected = {group_need(group, Action.SUB) for group, _ in consumers}
    expected |= {topic_need(topic, Action.SUB) for _, topics in consumers for topic in topics}
    assert set(needs_of(Code.HEART_BEAT, encode_body(body))) == expected


@given(
    st.sampled_from([Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ]),
    NAMES,
    st.lists(TOPICS, max_size=4),
)
def test_lock_needs_the_group_and_every_topic(code, group, topics):
    queues = frozenset(
        MessageQueue(topic=topic, broker_name="b", queue_id=n) for n, topic in enumerate(topics)
    )
    body = clients.LockBatchRequestBody(consumer_group=group, client_id="c", mq_set=queues)
    assert set(needs_of(code, encode_body(body))) == {
        group_need(group, Action.SUB),
        *(topic_need(topic, Action.SUB) for topic in topics),
    }


@given(st.lists(TOPICS, max_size=4), st.lists(NAMES, max_size=4))
def test_lists_of_configurations_need_each_of_their_names(topics, groups):
    body = configs.CreateTopicListRequestBody(
        topic_config_list=tuple(configs.TopicConfig(topic_name=each) for each in topics)
    )
    needs = needs_of(Code.UPDATE_AND_CREATE_TOPIC_LIST, encode_body(body))
    assert needs == tuple(topic_need(each, Action.CREATE) for each in topics)
    groups_body = configs.SubscriptionGroupList(
        group_config_list=tuple(configs.SubscriptionGroupConfig(group_name=each) for each in groups)
    )
    needs = needs_of(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, encode_body(groups_body))
    assert needs == tuple(group_need(each, Action.CREATE) for each in groups)


@given(NAMES, st.none() | TOPICS, st.none() | st.lists(TOPICS, max_size=3).map(";".join))
def test_consume_stats_need_the_group_and_every_named_topic(group, topic, topic_list):
    needs = needs_of(
        Code.GET_CONSUME_STATS, consumer_group=group, topic=topic, topic_list=topic_list
    )
    named = [topic, *(topic_list or "").split(";")]
    assert set(needs) == {
        group_need(group, Action.GET),
        *(topic_need(each, Action.GET) for each in named if each),
    }


@given(TOPICS, NAMES, st.none() | st.lists(NAMES, max_size=3).map(",".join))
def test_correction_offset_needs_the_topic_and_every_named_group(topic, group, filters):
    assume("," not in group)
    needs = needs_of(
        Code.QUERY_CORRECTION_OFFSET, topic=topic, compare_group=group, filter_groups=filters
    )
    groups = [group, *(filters or "").split(",")]
    assert set(needs) == {
        topic_need(topic, Action.GET),
        *(group_need(each, Action.GET) for each in groups if each),
    }


@given(NAMES, NAMES, st.none() | TOPICS)
def test_clone_of_offsets_needs_both_groups(source, destination, topic):
    needs = needs_of(Code.CLONE_GROUP_OFFSET, src_group=source, dest_group=destination, topic=topic)
    expected = {group_need(source, Action.GET), group_need(destination, Action.UPDATE)}
    assert {*needs} == (
        expected if topic is None else expected | {topic_need(topic, Action.UPDATE)}
    )


@given(NAMES, st.none() | TOPICS)
def test_message_sent_back_needs_the_group_and_its_stated_topic(group, topic):
    needs = set(needs_of(Code.CONSUMER_SEND_MSG_BACK, group=group, origin_topic=topic))
    expected = {group_need(group, Action.SUB)}
    assert needs == (expected if topic is None else expected | {topic_need(topic, Action.SUB)})


@given(TOPICS)
def test_route_needs_any_right_of_a_client_but_for_the_topics_of_all(topic):
    (need,) = needs_of(Code.GET_ROUTEINFO_BY_TOPIC, topic=topic)
    wanted = (
        (Action.SUB, Action.GET)
        if topic.startswith("%RETRY%")
        else (
            Action.PUB,
            Action.SUB,
            Action.GET,
        )
    )
    assert need == topic_need(topic, *wanted)
    for of_all in ("TBW102", f"{CLUSTER}_REPLY_TOPIC"):
        assert needs_of(Code.GET_ROUTEINFO_BY_TOPIC, topic=of_all) == ()


BY_TOPIC = {
    Code.UPDATE_AND_CREATE_TOPIC: Action.CREATE,
    Code.DELETE_TOPIC_IN_BROKER: Action.DELETE,
    Code.DELETE_TOPIC_IN_NAMESRV: Action.DELETE,
    Code.GET_TOPIC_CONFIG: Action.GET,
    Code.GET_TOPIC_STATS_INFO: Action.GET,
    Code.QUERY_TOPIC_CONSUME_BY_WHO: Action.GET,
}


@given(st.sampled_from(list(BY_TOPIC)), TOPICS)
def test_operators_request_of_a_topic_needs_one_right_on_it(code, topic):
    assert needs_of(code, topic=topic) == (topic_need(topic, BY_TOPIC[code]),)


def test_requests_about_the_broker_need_the_cluster():
    for code in Code:
        if code.name.startswith(("AUTH_", "GET_BROKER_CONFIG", "UPDATE_BROKER", "CLEAN_", "ALL_")):
            (need,) = needs_of(code)
            assert (need.resource, need.name) == (ResourceType.CLUSTER, CLUSTER)
