"""Requests to a schema registry, and bodies with its header."""

import base64
import pickle

import pytest
from google.protobuf import duration_pb2
from support.servers.fake_servers import FakeServer
from support.servers.schema_registry import RegistryServer

from rmq_spark.client.serializers import decode_value, encode_value
from rocketpoll import SchemaRegistry, avro, protobuf
from rocketpoll.errors import (
    BodyError,
    MessageRejected,
    RegistryAway,
    RegistryFailed,
    SchemaNotFound,
)

FIRST = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
CUSTOMER = {"name": "customer", "type": ["null", "string"], "default": None}
SECOND = {**FIRST, "fields": [*FIRST["fields"], CUSTOMER]}


@pytest.fixture
def server():
    with RegistryServer() as found:
        yield found


def test_avro_serializer_writes_and_reads_by_the_schemas_of_a_registry(server):
    registry = SchemaRegistry(server.url)
    server.add("orders-value", FIRST)
    old = registry.latest("orders-value")
    body = encode_value({"id": 1}, avro(old.avro(), header=old.header))
    server.add("orders-value", SECOND)
    new = registry.latest("orders-value")
    serializer = avro(new.avro(), header=new.header, schema_of=registry.schema_of)
    assert decode_value(body, serializer, "orders", "") == {"id": 1, "customer": None}
    assert (old.header, new.header) == (b"\0\0\0\0\1", b"\0\0\0\0\2")
    with pytest.raises(BodyError, match="has no schema for header"):
        decode_value(b"\0\0\0\0\7\2", serializer, "orders", "")
    with RegistryServer() as other:
        gone = SchemaRegistry(other.url)
    serializer = avro(new.avro(), header=new.header, schema_of=gone.schema_of)
    with pytest.raises(RegistryAway, match=r"no answer: .*refused"):
        decode_value(body, serializer, "orders", "")


def test_schema_is_fetched_once_and_registered_once(server):
    registry = SchemaRegistry(server.url)
    made = registry.register("orders-value", "AVRO", '"long"')
    assert registry.register("orders-value", "AVRO", '"long"') == made
    asked = len(server.requests)
    assert [registry.schema(made.schema_id) for _ in range(3)] == [made] * 3
    assert len(server.requests) == asked + 1


def test_schema_registry_subject_with_any_characters_is_quoted(server):
    server.add("a/b c%value", FIRST)
    assert SchemaRegistry(server.url).latest("a/b c%value").avro() == FIRST


def test_missing_schemas_and_subjects_are_lookup_errors_that_can_be_pickled(server):
    registry = SchemaRegistry(server.url)
    for ask, said in (
        (lambda: registry.schema(7), "it has no 7"),
        (lambda: registry.latest("x"), "it has no such subject"),
    ):
        with pytest.raises(SchemaNotFound) as caught:
            ask()
        assert str(caught.value) == f"schema registry {server.url}: {said}"
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301  # the test's own data
        assert isinstance(caught.value, LookupError)


def test_schema_registry_credentials_are_not_sent_to_a_redirected_host(server):
    seen = []

    def redirect(peer):
        request = peer.socket.recv(1 << 16).decode()
        seen.append(request)
        place = f"{server.url}/schemas/ids/1"
        peer.send(f"HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n")

    server.add("orders-value", FIRST)
    asked = []
    answer = server.answer
    server.answer = lambda request, body: (
        asked.append(dict(request.headers)),
        answer(request, body),
    )
    with FakeServer(redirect) as first:
        registry = SchemaRegistry(f"http://{first.address}", user="reader", password="hidden")
        assert registry.schema(1).avro() == FIRST
    assert f"Basic {base64.b64encode(b'reader:hidden').decode()}" in seen[0]
    assert not any("Authorization" in headers for headers in asked)


@pytest.mark.parametrize("status", [500, 503, 429])
def test_schema_registry_failure_is_retryable(server, status):
    server.status = status
    with pytest.raises(RegistryAway, match=f"status {status}"):
        SchemaRegistry(server.url).latest("orders-value")


def test_schema_registry_refusal_is_not_retryable(server):
    server.status = 422
    with pytest.raises(RegistryFailed, match="status 422") as caught:
        SchemaRegistry(server.url).register("orders-value", "AVRO", "no schema")
    assert not isinstance(caught.value, RegistryAway)


@pytest.mark.parametrize(
    ("url", "more"),
    [
        ("localhost:8081", {}),
        ("ftp://localhost", {}),
        ("http://", {}),
        ("http://user:hidden@localhost", {}),
        ("http://localhost", {"user": "reader"}),
        ("http://localhost", {"password": "hidden"}),
    ],
)
def test_wrong_address_of_a_registry_is_refused(url, more):
    with pytest.raises(MessageRejected) as caught:
        SchemaRegistry(url, **more)
    assert "hidden" not in str(caught.value)


def test_protobuf_serializer_writes_and_reads_messages():
    serializer = protobuf(duration_pb2.Duration, header=b"\0\0\0\0\1\0")
    value = duration_pb2.Duration(seconds=7)
    for each in (value, {"seconds": 7}):
        body = encode_value(each, serializer)
        assert body == b"\0\0\0\0\1\0" + value.SerializeToString()
    assert decode_value(b"\0\0\0\0\2\0" + body[6:], serializer, "orders", "") == value
    with pytest.raises(TypeError, match="needed a Duration"):
        encode_value("x", serializer)
    with pytest.raises(TypeError, match=r"cannot encode dict .*seconds"):
        encode_value({"seconds": "x"}, serializer)
    for bad in (b"", b"\1\0\0\0\1\0", b"\0\0\0\0\1\0\x08"):
        with pytest.raises(BodyError, match="a body of serializer Protobuf"):
            decode_value(bad, serializer, "orders", "")
    with pytest.raises(TypeError, match="message: needed a class of Protobuf messages"):
        protobuf(value)
