"""Tables whose bodies are decoded to columns: types, invalid bodies, and refused options."""

import pyarrow as pa
import pytest

from rocketpoll import ClientError, EmbeddedBroker, Message, Producer, avro, read_table
from rocketpoll.errors import MessageRejected, MessageUnreadable


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def table(broker, request):
    """Return a function that sends bodies to a new topic of one queue, and reads the topic as a
    table."""
    topic = request.node.name.translate({ord(each): "-" for each in "[] ."})[:100]
    broker.create_topic(topic, queues=1)

    def read(*bodies, columns=("keys", "body"), **more):
        with Producer("P", broker.address) as producer:
            for number, body in enumerate(bodies):
                producer.send(Message(topic, body, keys=[f"k{number}"]))
        return read_table(topic, broker.address, columns=columns, **more)

    return read


def test_json_fields_are_columns_with_the_types_of_their_values(table):
    found = table(
        b'{"id": 1, "total": 9}', b'{"id": 2, "total": 4.5, "to": {"city": "x"}}', body="json"
    )
    assert found.column_names == ["keys", "id", "total", "to"]
    assert found.schema.types[1:3] == [pa.int64(), pa.float64()]
    assert found.to_pylist() == [
        {"keys": "k0", "id": 1, "total": 9.0, "to": None},
        {"keys": "k1", "id": 2, "total": 4.5, "to": {"city": "x"}},
    ]


def test_body_values_have_only_the_fields_and_the_chosen_columns(table):
    assert table(b'{"id": 1}', columns=["tags"], body="json").to_pylist() == [
        {"tags": None, "id": 1}
    ]


def test_texts_and_records_of_a_serializer_are_decoded(table):
    assert table(b"one", b"two", body="text")["body"].to_pylist() == ["one", "two"]


def test_avro_records_are_columns(table):
    schema = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}]}
    orders = avro(schema)
    assert table(orders.dumps({"id": 7}), body=orders)["id"].to_pylist() == [7]


BAD = [b'{"id": 1}', b"no json", b"[1]", b'{"id": 2}']


def test_body_without_fields_fails_the_read_with_its_place(table):
    with pytest.raises(
        MessageUnreadable, match=r"offset 1 of queue 0 of .* cannot be read: .*Json"
    ):
        table(*BAD, body="json")


@pytest.mark.parametrize(("action", "ids"), [("null", [1, None, None, 2]), ("skip", [1, 2])])
def test_bodies_without_fields_are_nulled_or_skipped(table, action, ids, caplog):
    found = table(*BAD, body="json", on_bad_record=action)
    assert found["id"].to_pylist() == ids
    assert "offset 2 of queue 0" in caplog.text
    assert "its body has no fields: found list" in caplog.text


@pytest.mark.parametrize(
    ("bodies", "why"),
    [
        ([b'{"a": 1}', b'{"a": "x"}'], "fields of one type each.*field 'a'"),
        ([b'{"keys": "x"}'], "a field that has the name of a column"),
        ([b'{"a": 1}', b'"text"'], "all have fields, or all are texts"),
        ([b'{"a": %d}' % (1 << 70)], "fields of one type each.*field 'a'"),
    ],
    ids=["two types", "name of a column", "fields and texts", "huge number"],
)
def test_bodies_that_make_no_columns_are_refused_with_the_field(table, bodies, why):
    with pytest.raises(MessageRejected, match=f"body: needed .*{why}"):
        table(*bodies, body="json")


def test_empty_topic_has_the_column_body(table):
    assert table(body="json").column_names == ["keys", "body"]


@pytest.mark.parametrize("body", ["yaml", 5])
def test_unknown_serializer_of_a_table_is_refused_with_the_known_ones(table, body):
    with pytest.raises((ClientError, TypeError), match="body: needed 'json', 'msgpack', 'text'"):
        table(body=body)
