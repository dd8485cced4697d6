"""Routes, cluster info and topic lists of the broker as its own name server."""

import pytest
from support.brokers.admin_processors import AdminRoom

from rmq_spark.wire.bodies import decode_body
from rmq_spark.wire.bodies.clients import TopicRouteData
from rmq_spark.wire.bodies.configs import DataVersion, TopicConfigSerializeWrapper
from rmq_spark.wire.bodies.operators import ClusterInfo, TopicList
from rmq_spark.wire.codes import RequestCode, ResponseCode

SYSTEM = {
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "rmq_sys_wheel_timer",
    "BenchmarkTest",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRACE_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
}


def route_of(room, topic) -> TopicRouteData:
    return room.asked(TopicRouteData, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})


def topics_of(room, code, **ext_fields) -> set[str]:
    return set(room.asked(TopicList, code, ext_fields).topic_list)


# ---- routes


def test_topic_route_body_is_javas_text_with_this_broker(room):
    room.create_topic("T", read_queue_nums=4, write_queue_nums=3)
    answer = room.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert bytes(answer.body).decode() == (
        '{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.2:9876"},"brokerName":"broker-a",'
        '"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},'
        '"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,'
        '"writeQueueNums":3}]}'
    )


def test_ordered_topics_route_has_its_order_configuration(room):
    room.create_topic("T")
    room.kv_configs.put(("ORDER_TOPIC_CONFIG", "T"), "broker-a:2")
    assert route_of(room, "T").order_topic_conf == "broker-a:2"


def test_default_topic_has_a_route_to_inherit_from(room):
    (queues,) = route_of(room, "TBW102").queue_datas
    assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (8, 8, 7)


def test_default_topic_without_auto_creation_has_no_route(tmp_path):
    room = AdminRoom(tmp_path, auto_create_topic_enable=False)
    assert room.refused(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})[0] == 17
    room.shutdown()


def test_unknown_topic_route_is_refused_as_by_rocketmq(room):
    assert room.refused(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "nowhere"}) == (
        ResponseCode.TOPIC_NOT_EXIST,
        "No topic route info in name server for the topic: nowhere",
    )


def test_route_limits_topic_permission_to_the_brokers(tmp_path):
    room = AdminRoom(tmp_path, broker_permission=4)
    room.create_topic("T", perm=6)
    assert route_of(room, "T").queue_datas[0].perm == 4
    assert route_of(room, "TBW102").queue_datas[0].perm == 5
    room.shutdown()


def test_route_of_a_write_only_broker_is_not_readable(tmp_path):
    room = AdminRoom(tmp_path, broker_permission=2)
    room.create_topic("T", perm=6)
    assert route_of(room, "T").queue_datas[0].perm == 2
    room.shutdown()


def test_cluster_info_body_lists_this_one_broker(room):
    answer = room.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert bytes(answer.body).decode() == (
        '{"brokerAddrTable":{"broker-a":{"brokerAddrs":{"0":"10.0.0.2:9876"},"brokerName":"broker-a",'
        '"cluster":"DefaultCluster","enableActingMaster":false}},'
        '"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
    )
    assert decode_body(ClusterInfo, answer.body).cluster_addr_table == {
        "DefaultCluster": {"broker-a"}
    }


# ---- lists of topics


def test_all_topic_list_equals_the_table(room):
    room.create_topic("T")
    assert topics_of(room, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == set(
        room.topics.topics
    )
    assert "T" in room.topics.topics


def test_topics_by_cluster_of_another_cluster_are_empty(room):
    code = RequestCode.GET_TOPICS_BY_CLUSTER
    assert topics_of(room, code, cluster="DefaultCluster") == set(room.topics.topics)
    assert topics_of(room, code, cluster="another") == set()


def test_system_topics_of_the_name_server_are_cluster_and_broker_names(room):
    found = room.asked(TopicList, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert found.topic_list == {"DefaultCluster", "broker-a"}
    assert found.broker_addr == "10.0.0.2:9876"


def test_system_topic_list_contains_protected_topics(room):
    room.create_topic("T")
    room.create_topic("rmq_sys_x")
    assert topics_of(room, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER) == SYSTEM | {
        "DefaultCluster",
        "broker-a",
        "DefaultCluster_REPLY_TOPIC",
        "rmq_sys_REVIVE_LOG_DefaultCluster",
        "rmq_sys_x",
    }


@pytest.mark.parametrize(
    ("code", "flags"),
    [
        (RequestCode.GET_UNIT_TOPIC_LIST, {1, 3}),
        (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, {2, 3}),
        (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, {2}),
    ],
)
def test_unit_topics_are_selected_by_system_flags(room, code, flags):
    for flag in range(4):
        room.create_topic(f"T{flag}", topic_sys_flag=flag)
    assert topics_of(room, code) == {f"T{flag}" for flag in flags}


# ---- changes


def test_wiped_write_permission_hides_a_broker_from_producers(room):
    room.create_topic("T")
    count = str(len(room.topics.topics))
    wiped = room.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert wiped.ext_fields == {"wipeTopicCount": count}
    assert route_of(room, "T").queue_datas[0].perm == 4
    assert route_of(room, "TBW102").queue_datas[0].perm == 5
    saved = room.saved("topics.json", TopicConfigSerializeWrapper)
    assert saved.topic_config_table["T"].perm == 4
    added = room.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert added.ext_fields == {"addTopicCount": count}
    assert route_of(room, "T").queue_datas[0].perm == 6
    assert route_of(room, "TBW102").queue_datas[0].perm == 7


def test_wiping_write_permission_of_another_broker_changes_nothing(room):
    room.create_topic("T")
    wiped = room.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-b"})
    assert wiped.ext_fields == {"wipeTopicCount": "0"}
    assert route_of(room, "T").queue_datas[0].perm == 6


def test_delete_topic_in_name_server_succeeds_for_a_missing_topic(room):
    code = RequestCode.DELETE_TOPIC_IN_NAMESRV
    assert room.ask(code, {"topic": "gone"}).code == ResponseCode.SUCCESS
    assert (
        room.ask(code, {"topic": "gone", "clusterName": "DefaultCluster"}).code
        == ResponseCode.SUCCESS
    )


def test_delete_topic_in_name_server_is_refused_for_an_existing_topic(room):
    room.create_topic("T")
    code, remark = room.refused(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})
    assert code == ResponseCode.SYSTEM_ERROR
    assert "still exists: delete it in the broker" in remark
    another = {"topic": "T", "clusterName": "another"}
    assert room.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, another).code == ResponseCode.SUCCESS


# ---- requests of brokers


def ask_version(room, version, broker_name="broker-a"):
    header = {"brokerName": broker_name, "brokerAddr": "a:1", "clusterName": "c", "brokerId": "0"}
    return room.ask(RequestCode.QUERY_DATA_VERSION, header, version)


def test_query_data_version_answers_whether_topics_have_changed(room):
    before = room.topics.data_version
    same = ask_version(
        room, DataVersion(counter=before.counter, timestamp=before.timestamp, state_version=0)
    )
    assert same.ext_fields == {"changed": "false"}
    room.create_topic("T")
    other = ask_version(room, before)
    assert other.ext_fields == {"changed": "true"}
    assert decode_body(DataVersion, other.body) == room.topics.data_version


def test_query_data_version_of_another_broker_answers_changed(room):
    answer = ask_version(room, room.topics.data_version, "broker-b")
    assert (answer.ext_fields, answer.body) == ({"changed": "true"}, b"")


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
    ],
)
def test_broker_registration_is_refused_as_not_supported(room, code):
    answered, remark = room.refused(code, {}, b"whatever they send")
    assert answered == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert code.name in remark
    assert "serves its own broker broker-a only" in remark


def test_name_server_config_is_the_brokers_and_read_only(room):
    answer = room.ask(RequestCode.GET_NAMESRV_CONFIG)
    assert b"brokerName=broker-a\n" in answer.body
    assert room.refused(RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"listenPort=1")[0] == 16
