"""Headers are encoded and decoded by their fields."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.wire_strategies import int32, int64, text

from rmq_spark.errors import HeaderError
from rmq_spark.wire.codes import PullSysFlag
from rmq_spark.wire.headers import HeaderCodec, Int32, Int64


class Example(NamedTuple):
    topic: str
    queue_id: Int32
    commit_offset: Int64
    is_force: bool
    remark_text: str | None = None
    max_num: Int32 | None = None
    unit_mode: bool = False


CODEC = HeaderCodec(Example, {"is_force": "f"})
FIELDS = {"topic": "T", "queueId": "3", "commitOffset": "-1", "f": "true"}


def test_wire_names_are_camel_case_by_default():
    assert CODEC.keys == (
        "topic",
        "queueId",
        "commitOffset",
        "f",
        "remarkText",
        "maxNum",
        "unitMode",
    )


def test_absent_fields_take_their_defaults_and_unknown_ones_are_passed_over():
    assert CODEC.decode({**FIELDS, "later": "x"}) == Example("T", 3, -1, is_force=True)


def test_header_field_that_is_none_is_omitted_when_encoded():
    assert CODEC.encode(Example("T", 3, -1, is_force=True)) == {**FIELDS, "unitMode": "false"}


def test_header_flag_is_encoded_as_its_number():
    header = Example("T", PullSysFlag.SUSPEND | PullSysFlag.LITE_PULL, 5, is_force=False)
    assert CODEC.encode(header)["queueId"] == "18"


@given(
    st.builds(
        Example,
        topic=text,
        queue_id=int32,
        commit_offset=int64,
        is_force=st.booleans(),
        remark_text=st.none() | text,
        max_num=st.none() | int32,
        unit_mode=st.booleans(),
    )
)
def test_header_encode_decode_round_trip(header):
    assert CODEC.decode(CODEC.encode(header)) == header


@pytest.mark.parametrize(
    ("word", "value"), [("TRUE", True), ("True", True), ("yes", False), ("", False)]
)
def test_header_boolean_is_parsed_as_in_java(word, value):
    assert CODEC.decode({**FIELDS, "f": word}).is_force is value


@pytest.mark.parametrize(
    ("key", "word", "message"),
    [
        ("queueId", "", "Example at extFields.queueId: needed a 32-bit integer, found ''"),
        ("queueId", "x", "needed a 32-bit integer, found 'x'"),
        ("queueId", "1.5", "needed a 32-bit integer"),
        ("queueId", "1_0", "needed a 32-bit integer, found '1_0'"),
        ("queueId", " 12 ", "needed a 32-bit integer, found ' 12 '"),
        ("queueId", "2147483648", "needed a 32-bit integer, found '2147483648'"),
        ("queueId", "-2147483649", "needed a 32-bit integer"),
        ("commitOffset", "9223372036854775808", "extFields.commitOffset: needed a 64-bit integer"),
        ("commitOffset", "9" * 100_000, "needed a 64-bit integer, found '9999"),
    ],
)
def test_header_value_that_is_not_its_number_is_named(key, word, message):
    with pytest.raises(HeaderError, match=message) as caught:
        CODEC.decode({**FIELDS, key: word})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("key", FIELDS)
def test_missing_required_header_field_is_named_in_the_error(key):
    fields = {name: word for name, word in FIELDS.items() if name != key}
    with pytest.raises(HeaderError, match=f"Example at extFields.{key}: needed .*, found None"):
        CODEC.decode(fields)


def test_header_without_a_required_field_is_not_encoded():
    with pytest.raises(HeaderError, match=r"extFields\.topic: needed text, found None"):
        CODEC.encode(Example(None, 3, -1, is_force=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queue_id": 1 << 40}, "queueId: needed a 32-bit integer, found 1099511627776"),
        ({"queue_id": "5"}, "queueId: needed a 32-bit integer, found '5'"),
        ({"queue_id": 5.0}, "queueId: needed a 32-bit integer, found 5.0"),
        ({"queue_id": None}, "queueId: needed a 32-bit integer, found None"),
        ({"commit_offset": 1 << 63}, "commitOffset: needed a 64-bit integer"),
        ({"topic": 5}, "topic: needed text, found 5"),
        ({"is_force": "false"}, "f: needed true or false, found 'false'"),
    ],
)
def test_header_field_of_a_wrong_type_is_not_encoded(change, message):
    with pytest.raises(HeaderError, match=rf"Example at extFields\.{message}"):
        CODEC.encode(Example("T", 3, -1, is_force=True)._replace(**change))
