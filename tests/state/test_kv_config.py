"""KV configs by namespace."""

import pytest
from support.brokers.state_tables import kv_in

from rocketpoll.broker.state.tables.kv_config import ORDER_TOPIC_CONFIG
from rocketpoll.broker.state.tables.table import TooMany


def test_values_are_kept_by_namespace_and_key_over_a_restart(tmp_path):
    kv = kv_in(tmp_path)
    kv.put((ORDER_TOPIC_CONFIG, "T"), "broker-a:4")
    kv.put(("other", "T"), "x")
    kv.save()
    again = kv_in(tmp_path)
    assert again.get((ORDER_TOPIC_CONFIG, "T")) == "broker-a:4"
    assert again.list("other") == {"T": "x"}
    assert again.get(("other", "U")) is None
    assert again.get(("unknown", "T")) is None
    assert again.list("unknown") == {}
    assert not again.is_dirty


def test_kv_namespace_is_removed_with_its_last_value(tmp_path):
    kv = kv_in(tmp_path)
    kv.put(("n", "a"), "1")
    kv.put(("n", "b"), "2")
    kv.delete(("n", "a"))
    assert kv.wrapper().config_table == {"n": {"b": "2"}}
    kv.delete(("n", "b"))
    assert kv.wrapper().config_table == {}
    kv.save()
    assert kv_in(tmp_path).list("n") == {}


def test_rocketmqs_kv_config_file_is_loaded(tmp_path):
    (tmp_path / "kvConfig.json").write_text(
        '{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4;broker-b:4"}}}'
    )
    assert kv_in(tmp_path).get((ORDER_TOPIC_CONFIG, "T")) == "broker-a:4;broker-b:4"


def test_kv_namespace_view_is_read_only(tmp_path):
    kv = kv_in(tmp_path)
    kv.put(("n", "a"), "1")
    with pytest.raises(TypeError):
        kv.list("n")["a"] = "2"


def test_kv_config_limits_number_and_length(tmp_path, monkeypatch):
    monkeypatch.setattr("rocketpoll.broker.state.tables.kv_config.VALUES_MAX", 3)
    kv = kv_in(tmp_path)
    for namespace, key in (("n", "a"), ("n", "b"), ("m", "a")):
        kv.put((namespace, key), "1")
    with pytest.raises(
        TooMany,
        match=r"(?m)there are 3 key-value configurations already, the maximum. Delete some first$",
    ):
        kv.put(("m", "b"), "1")
    kv.put(("m", "a"), "2")
    kv.delete(("n", "a"))
    kv.put(("m", "b"), "1")
    with pytest.raises(TooMany, match="over 4096 characters"):
        kv.put(("m", "b"), "x" * 4_095)
    assert kv.get(("m", "b")) == "1"
