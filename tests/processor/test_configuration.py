"""The broker's settings as operators are shown them."""

from pathlib import Path

from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.command import RemotingCommand
from rocketpoll.broker.processor.admin.broker_admin import (
    properties_text,
    read_only_error,
    reserved_topics,
)
from rocketpoll.broker.settings.config import BrokerConfig
from rocketpoll.broker.settings.settings import KEYS, load_config
from rocketpoll.broker.store.config import StoreConfig

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
