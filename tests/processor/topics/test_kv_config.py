"""KV configs are saved, listed and deleted."""

from rmq_spark.wire.bodies.operators import KVTable
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rocketpoll.broker.state.tables.kv_config import KVConfigSerializeWrapper

ORDER = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}


def test_kv_config_value_is_saved_until_deleted(room, tmp_path):
    assert room.ask(RequestCode.PUT_KV_CONFIG, {**ORDER, "value": "broker-a:4"}).code == 0
    assert "broker-a:4" in (tmp_path / "config" / "kvConfig.json").read_text()
    assert room.ask(RequestCode.GET_KV_CONFIG, ORDER).ext_fields == {"value": "broker-a:4"}
    assert room.ask(RequestCode.DELETE_KV_CONFIG, ORDER).code == 0
    assert "broker-a:4" not in (tmp_path / "config" / "kvConfig.json").read_text()
    assert room.refused(RequestCode.GET_KV_CONFIG, ORDER) == (
        ResponseCode.QUERY_NOT_FOUND,
        "No config item, Namespace: ORDER_TOPIC_CONFIG Key: T",
    )


def test_deleting_a_missing_kv_config_succeeds(room):
    assert room.ask(RequestCode.DELETE_KV_CONFIG, ORDER).code == 0


def test_kv_namespace_list_has_all_its_values(room):
    for key in ("T", "U"):
        room.ask(RequestCode.PUT_KV_CONFIG, {**ORDER, "key": key, "value": f"{key}:1"})
    found = room.asked(
        KVTable, RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "ORDER_TOPIC_CONFIG"}
    )
    assert found.table == {"T": "T:1", "U": "U:1"}


def test_empty_kv_namespace_is_not_found(room):
    assert room.refused(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"}) == (
        ResponseCode.QUERY_NOT_FOUND,
        "No config item, Namespace: N",
    )


def test_unsaved_kv_change_is_rolled_back(room):
    kept, new = {"namespace": "N", "key": "kept"}, {"namespace": "M", "key": "new"}
    assert room.ask(RequestCode.PUT_KV_CONFIG, {**kept, "value": "1"}).code == 0
    room.disk.refuse("kvConfig.json")
    for code, fields in [
        (RequestCode.PUT_KV_CONFIG, {**kept, "value": "2"}),
        (RequestCode.DELETE_KV_CONFIG, kept),
        (RequestCode.PUT_KV_CONFIG, {**new, "value": "1"}),
    ]:
        answered, remark = room.refused(code, fields)
        assert (answered, "No space left" in remark) == (ResponseCode.SYSTEM_ERROR, True)
        assert room.kv_configs.get(("N", "kept")) == "1"
        assert room.kv_configs.list("M") == {}
    room.disk.refuse()
    room.kv_configs.save()
    assert room.saved("kvConfig.json", KVConfigSerializeWrapper).config_table == {
        "N": {"kept": "1"}
    }
