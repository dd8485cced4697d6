import pytest

from rmq_spark.errors import BodyError
from rmq_spark.wire.bodies.fastjson import loads
from rmq_spark.wire.bodies.object_map import ObjectMap


def test_an_object_written_before_is_found_by_its_path():
    assert loads(b'{"a":{"b":[1,{"c":2}]},"d":{"$ref":"$.a.b[1]"},"e":{"$ref":"$.a"}}') == {
        "a": {"b": [1, {"c": 2}]},
        "d": {"c": 2},
        "e": {"b": [1, {"c": 2}]},
    }


def test_a_backslash_makes_the_next_character_part_of_a_name():
    assert loads(rb'{"my-key.x":{"a":1},"b":{"$ref":"$.my\\-key\\.x"}}')["b"] == {"a": 1}


def test_a_value_is_found_by_the_text_of_its_key():
    queue = b'{"brokerName":"b-1","queueId":3,"topic":"T"}'
    path = rb"$.table.MessageQueue\\ \\[topic\\=T\\,\\ brokerName\\=b\\-1\\,\\ queueId\\=3\\]"
    body = loads(b'{"table":{' + queue + b':{"offset":5}},"again":{"$ref":"' + path + b'"}}')
    assert body["again"] == {"offset": 5}


def test_a_key_is_found_where_there_is_only_one():
    body = loads(b'{"t":{{"queueId":3}:1},"u":{{"$ref":"$.t.null"}:2}}')
    assert body["u"] == ObjectMap((({"queueId": 3}, 2),))


def test_among_several_keys_no_guess_is_made():
    with pytest.raises(BodyError, match=r"\$ref: needed one object that is there, found '\$.t.null'"):
        loads(b'{"t":{{"queueId":3}:1,{"queueId":4}:1},"u":{{"$ref":"$.t.null"}:2}}')


def test_a_reference_may_lead_to_another():
    assert loads(b'{"a":{"x":1},"b":{"y":{"$ref":"$.a"}},"c":{"$ref":"$.b.y"}}')["c"] == {"x": 1}


@pytest.mark.parametrize(
    "path", ["$.missing", "$.a[0]", "$.list[9]", "a", "", "..", "@", "$.", "$a", "$.list[x]", "$.list.0"]
)
def test_paths_to_nothing_are_named(path):
    with pytest.raises(BodyError, match=r"JSON body at \$ref: needed"):
        loads(b'{"a":{"x":1},"list":[1],"r":{"$ref":"%s"}}' % path.encode())


@pytest.mark.parametrize("path", ["$", "$.a", "$.b"])
def test_circles_are_refused(path):
    with pytest.raises(BodyError, match="does not contain the reference"):
        loads(b'{"a":{"x":{"$ref":"%s"}},"b":{"$ref":"$.a"}}' % path.encode())


def test_references_cannot_multiply_a_small_body_without_bound():
    levels = [b'"l0":[1,1,1,1,1,1,1,1]']
    levels += [b'"l%d":[%s]' % (n, b",".join([b'{"$ref":"$.l%d"}' % (n - 1)] * 8)) for n in range(1, 12)]
    with pytest.raises(BodyError, match=r"\$ref: needed at most \d+ values"):
        loads(b"{" + b",".join(levels) + b"}")


def test_an_object_that_merely_has_such_a_member_is_left_alone():
    assert loads(b'{"$ref":"$.a","b":1}') == {"$ref": "$.a", "b": 1}
    assert loads(b'{"a":{"$ref":5}}') == {"a": {"$ref": 5}}
