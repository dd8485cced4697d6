"""Options of body formats: values and contradictions."""

import pickle
import sys

import pytest
from support.spark.body_rows import options_of

from rmq_spark.spark.errors import OptionError, SetUpError
from rmq_spark.spark.options.bodies import BINARY_BODIES
from rmq_spark.spark.options.options import read_options, write_options
from rmq_spark.spark.options.values import BodyFormat

AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'


def test_bodies_are_bytes_by_default():
    given = {"namesrvAddr": "localhost:9876", "topic": "orders"}
    assert read_options(given).body == write_options(given).body == BINARY_BODIES
    assert BINARY_BODIES.format is BodyFormat.BINARY


def test_body_schema_option_is_ddl_json_or_avro():
    ddl = options_of("json", "id BIGINT").body
    assert options_of("json", ddl.schema.json()).body == ddl
    assert options_of("avro", AVRO).body.schema == ddl.schema
    assert options_of("avro", AVRO).body.avro_schema == AVRO
    assert options_of("avro", "id BIGINT").body.avro_schema is None


def test_body_options_can_be_pickled():
    body = options_of("JSON", "id BIGINT, a ARRAY<DATE>", bodyColumn=" value ").body
    assert pickle.loads(pickle.dumps(body)) == body  # noqa: S301  # the test's own data
    assert (body.format, body.column) == (BodyFormat.JSON, "value")


@pytest.mark.parametrize(
    ("kind", "schema", "more", "said"),
    [
        (
            "yaml",
            None,
            {},
            "option bodyFormat: needed binary, text, json, avro, msgpack or protobuf, found 'yaml'",
        ),
        (
            "text",
            "id INT",
            {},
            "option bodySchema: it applies to bodyFormat json, avro and msgpack only, found text",
        ),
        (
            "binary",
            None,
            {"bodyColumn": "v"},
            "option bodyColumn: it does not apply to bodyFormat binary",
        ),
        ("json", "id", {}, "option bodySchema: needed a type, found the end: 'id'"),
        ("json", "m MAP<INT, INT>", {}, "option bodySchema: m has keys of int: needed string"),
        ("json", " ", {}, "option bodySchema: it is empty"),
        ("json", AVRO, {}, "option bodySchema: not a schema as df.schema.json"),
        ("avro", "`a-b` INT", {}, "option bodySchema: a-b is not a valid name in Avro"),
        (
            "avro",
            '{"type": "record", "name": "A"}',
            {},
            "option bodySchema: the record has no 'fields'",
        ),
        (
            "avro",
            AVRO.replace('"long"', '{"type": {"type": "int"}}'),
            {},
            "option bodySchema: fastavro cannot read such a schema (",
        ),
        (
            "json",
            "a " + "ARRAY<" * 200 + "INT" + ">" * 200,
            {},
            "option bodySchema: a is nested 200 levels deep, over the 60 of Arrow",
        ),
        (
            "json",
            "a " + "ARRAY<" * 5_000 + "INT" + ">" * 5_000,
            {},
            "option bodySchema: it is nested too deep",
        ),
    ],
)
def test_contradicting_body_options_are_refused_in_one_line(kind, schema, more, said):
    with pytest.raises(OptionError) as caught:
        options_of(kind, schema, **more)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_body_schema_option_is_refused_for_the_sink():
    given = {"namesrvAddr": "localhost:9876", "bodyFormat": "json", "bodySchema": "id INT"}
    with pytest.raises(OptionError, match="bodySchema: it does not apply to the sink"):
        write_options(given)


def test_avro_without_its_library_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(SetUpError, match=r"fastavro.*: pip install fastavro"):
        options_of("avro", "id INT")
