"""References within fastjson's JSON."""

import json

import pytest

from rmq_spark.errors import BodyError
from rmq_spark.wire.bodies.fastjson import DEPTH_MAX, NODES_MAX, ObjectMap, loads


def test_json_reference_is_resolved_by_path():
    assert loads(b'{"a":{"b":[1,{"c":2}]},"d":{"$ref":"$.a.b[1]"},"e":{"$ref":"$.a"}}') == {
        "a": {"b": [1, {"c": 2}]},
        "d": {"c": 2},
        "e": {"b": [1, {"c": 2}]},
    }


def test_reference_path_unescapes_backslashes():
    assert loads(rb'{"my-key.x":{"a":1},"b":{"$ref":"$.my\\-key\\.x"}}')["b"] == {"a": 1}


def test_json_reference_with_an_object_key_is_resolved():
    queue = b'{"brokerName":"b-1","queueId":3,"topic":"T"}'
    path = rb"$.table.MessageQueue\\ \\[topic\\=T\\,\\ brokerName\\=b\\-1\\,\\ queueId\\=3\\]"
    body = loads(b'{"table":{' + queue + b':{"offset":5}},"again":{"$ref":"' + path + b'"}}')
    assert body["again"] == {"offset": 5}


def test_json_reference_in_a_map_with_one_key_is_resolved():
    body = loads(b'{"t":{{"queueId":3}:1},"u":{{"$ref":"$.t.null"}:2}}')
    assert body["u"] == ObjectMap((({"queueId": 3}, 2),))


def test_json_reference_in_a_map_with_several_keys_is_refused():
    with pytest.raises(
        BodyError, match=r"\$ref: needed the path of exactly one object, found '\$.t.null'"
    ):
        loads(b'{"t":{{"queueId":3}:1,{"queueId":4}:1},"u":{{"$ref":"$.t.null"}:2}}')


def test_json_reference_may_lead_to_another():
    assert loads(b'{"a":{"x":1},"b":{"y":{"$ref":"$.a"}},"c":{"$ref":"$.b.y"}}')["c"] == {"x": 1}


@pytest.mark.parametrize(
    "path",
    ["$.missing", "$.a[0]", "$.list[9]", "a", "", "..", "@", "$.", "$a", "$.list[x]", "$.list.0"],
)
def test_json_reference_to_nothing_is_refused_by_its_path(path):
    with pytest.raises(BodyError, match=r"JSON body at \$ref: needed"):
        loads(b'{"a":{"x":1},"list":[1],"r":{"$ref":"%s"}}' % path.encode())


@pytest.mark.parametrize("path", ["$", "$.a", "$.b"])
def test_circular_fastjson_references_are_refused(path):
    with pytest.raises(BodyError, match="does not contain the reference"):
        loads(b'{"a":{"x":{"$ref":"%s"}},"b":{"$ref":"$.a"}}' % path.encode())


def test_json_references_cannot_expand_a_small_body_without_limit():
    levels = [b'"l0":[1,1,1,1,1,1,1,1]']
    levels += [
        b'"l%d":[%s]' % (n, b",".join([b'{"$ref":"$.l%d"}' % (n - 1)] * 8)) for n in range(1, 12)
    ]
    with pytest.raises(BodyError, match=rf"\$ref: needed at most {NODES_MAX} values"):
        loads(b"{" + b",".join(levels) + b"}")


def test_object_with_an_ordinary_ref_member_is_not_a_reference():
    assert loads(b'{"$ref":"$.a","b":1}') == {"$ref": "$.a", "b": 1}
    assert loads(b'{"a":{"$ref":5}}') == {"a": {"$ref": 5}}


def chain_of(length, link):
    """Return JSON in which r0 is an object, and each following r refers to the previous one."""
    members = {"r0": {"x": 1}}
    members.update({f"r{number}": link(f"$.r{number - 1}") for number in range(1, length + 1)})
    return members


@pytest.mark.parametrize("order", [list, reversed], ids=["forwards", "backwards"])
@pytest.mark.parametrize("link", [lambda path: {"$ref": path}, lambda path: {"a": {"$ref": path}}])
def test_long_reference_chain_is_refused_in_either_order(order, link):
    members = chain_of(1200, link)
    with pytest.raises(BodyError, match=f"at most {DEPTH_MAX} levels"):
        loads(json.dumps({name: members[name] for name in order(members)}).encode())


def test_short_reference_chain_is_resolved_in_either_order():
    members = chain_of(DEPTH_MAX - 3, lambda path: {"$ref": path})
    for order in (list, reversed):
        body = loads(json.dumps({name: members[name] for name in order(members)}).encode())
        assert body[f"r{DEPTH_MAX - 3}"] == {"x": 1}


def test_json_nested_deeply_beside_a_reference_is_refused():
    deep = b"[" * 900 + b"]" * 900
    with pytest.raises(BodyError, match=f"at most {DEPTH_MAX} levels"):
        loads(b'{"unknown":' + deep + b',"a":{},"b":{"$ref":"$.a"}}')


@pytest.mark.timeout(60)  # a quadratic reader would take minutes
def test_repeatedly_referenced_object_is_built_once():
    queues = [b'{"topic":"T","brokerName":"b","queueId":%d}' % number for number in range(5_000)]
    table = b",".join(b"%s:{}" % queue for queue in queues)
    path = rb"$.t.MessageQueue\\ \\[topic\\=T\\,\\ brokerName\\=b\\,\\ queueId\\=%d\\]"
    again = b",".join(b'{"$ref":"' + path % number + b'"}' for number in range(5_000))
    data = b'{"t":{' + table + b'},"again":[' + again + b"]}"
    assert loads(data)["again"] == [{}] * 5_000
    body = loads(b'{"a":{"x":1},"again":[{"$ref":"$.a"},{"$ref":"$.a"}]}')
    assert body["again"][0] is body["again"][1]


def test_reference_path_of_megabytes_is_refused():
    with pytest.raises(BodyError, match="needed a path of at most"):
        loads(b'{"$ref":"$.%s"}' % (b"a" * 1_000_000))
