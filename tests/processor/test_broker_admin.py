"""Requests for settings, statistics and housekeeping."""

from pathlib import Path

import pytest
from support.brokers.connections import finished

from rmq_spark.wire.bodies import decode_body
from rmq_spark.wire.bodies.configs import DataVersion, DelayOffsetSerializeWrapper
from rmq_spark.wire.bodies.operators import BrokerStatsData
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.processor.admin.broker_admin import (
    properties_text,
    read_only_error,
    reserved_topics,
)
from rocketpoll.broker.settings.config import BrokerConfig
from rocketpoll.broker.settings.settings import KEYS, load_config
from rocketpoll.broker.store.config import StoreConfig


@pytest.mark.parametrize(
    "body", [b"", b"brokerPermission=4\n", b"filterServerNums=1\nrocketmqHome=/tmp/x"]
)
def test_remote_settings_change_is_refused(room, body):
    before = room.config
    code, remark = room.refused(RequestCode.UPDATE_BROKER_CONFIG, {}, body)
    assert code == ResponseCode.NO_PERMISSION
    assert "read-only" in remark
    assert room.config == before


def test_broker_config_is_returned_with_its_version(room):
    answer = room.ask(RequestCode.GET_BROKER_CONFIG)
    version = decode_body(DataVersion, answer.ext_fields["version"].encode())
    assert version == DataVersion(timestamp=room.clock(), counter=0)
    assert bytes(answer.body).endswith(properties_text(room.config))


NEEDED_BY_EXPORT_CONFIGS = """
    brokerClusterName brokerId brokerName brokerRole fileReservedTime filterServerNums flushDiskType
    maxMessageSize messageDelayLevel msgTraceTopicName slaveReadEnable traceOn traceTopicEnable
    useTLS autoCreateTopicEnable autoCreateSubscriptionGroup
"""


def test_broker_config_has_all_keys_that_mqadmin_exportconfigs_needs(room):
    """The command of 4.9.7 fails if a key is missing."""
    answer = room.ask(RequestCode.GET_BROKER_CONFIG)
    found = dict(line.split("=", 1) for line in bytes(answer.body).decode().splitlines())
    assert set(NEEDED_BY_EXPORT_CONFIGS.split()) <= found.keys()
    assert all(found[name] for name in NEEDED_BY_EXPORT_CONFIGS.split())


def test_delay_offsets_are_shown_by_level(room):
    room.delay_offsets = {1: 10, 2: 0}
    answer = room.ask(RequestCode.GET_ALL_DELAY_OFFSET)
    assert bytes(answer.body).decode() == '{"offsetTable":{"1":10,"2":0}}'
    assert decode_body(DelayOffsetSerializeWrapper, answer.body).offset_table == {1: 10, 2: 0}


def test_broker_stats_body_is_javas_text(room):
    room.stats.record_put("T", 3, 300)
    finished(room.stats.sample(room.clock() + 10_000))
    answer = room.ask(
        RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}
    )
    item = '{"avgpt":3.0,"sum":3,"tps":0.3}'
    assert (
        bytes(answer.body).decode()
        == f'{{"statsDay":{item},"statsHour":{item},"statsMinute":{item}}}'
    )
    assert decode_body(BrokerStatsData, answer.body).stats_day.sum == 3


def test_broker_stats_of_an_unused_counter_are_refused_as_by_rocketmq(room):
    refused = room.refused(
        RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}
    )
    assert refused == (ResponseCode.SYSTEM_ERROR, "The stats <TOPIC_PUT_NUMS> <T> not exist")


def test_broker_stats_of_an_unknown_counter_are_refused_with_the_known_ones(room):
    code, remark = room.refused(
        RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "DISK_FALL", "statsKey": "T"}
    )
    assert code == ResponseCode.SYSTEM_ERROR
    assert "GROUP_GET_NUMS" in remark


@pytest.mark.parametrize(
    "code", [RequestCode.DELETE_EXPIRED_COMMITLOG, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE]
)
def test_housekeeping_request_triggers_cleaning(room, code):
    assert room.ask(code).code == ResponseCode.SUCCESS
    assert room.cleanings == 1


# ---- the broker's settings as operators see them


CONFIG = BrokerConfig(
    store=StoreConfig(store_path_root_dir=Path("/data")), broker_name="b", broker_cluster_name="c"
)


def test_settings_text_can_be_loaded_as_a_configuration_file(tmp_path):
    (tmp_path / "broker.conf").write_bytes(properties_text(CONFIG))
    assert load_config(tmp_path / "broker.conf") == CONFIG


def test_secret_settings_are_hidden():
    secrets = [name for name, key in KEYS.items() if key.setting.value_type.is_secret]
    assert secrets == ["tls.server.keyPassword", "initAuthenticationUser"]
    assert set(secrets) >= {name for name in KEYS if "password" in name.lower()}


def test_remote_configuration_update_is_refused_with_the_way_to_do_it():
    refusal = read_only_error(RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG))
    assert refusal.code == ResponseCode.NO_PERMISSION
    assert "UPDATE_BROKER_CONFIG" in refusal.remark
    assert "restart" in refusal.remark


def test_cluster_and_broker_give_their_names_to_topics():
    assert reserved_topics(CONFIG) == {"b", "c", "c_REPLY_TOPIC"}
