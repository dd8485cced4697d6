"""Any change of a signed request is refused, in each header codec."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers.access import LoneUsers, signed
from support.brokers.connections import FakeConnection
from support.clients.remoting_clients import pull_request, send_request

from rmq_spark.errors import FrameError, HeaderError
from rmq_spark.wire.codes import SerializeType
from rmq_spark.wire.remoting.command import decode_command
from rmq_spark.wire.remoting.framing import FrameReader
from rmq_spark.wire.signature import SIGNATURE
from rocketpoll.broker.common.request_content import RequestRejected

CODECS = list(SerializeType)
REQUESTS = {
    "send": send_request("the body", properties={"KEYS": "k", "TAGS": "A"}),
    "pull": pull_request(3),
}


@pytest.fixture(scope="module")
def access(tmp_path_factory):
    users = LoneUsers(tmp_path_factory.mktemp("users"))
    users.grant("alice", "Topic:* All", "Group:* All")
    return users.control


def is_accepted(access, request):
    try:
        access.check(FakeConnection(), request)
    except (RequestRejected, HeaderError):  # the dispatcher answers either with a refusal
        return False
    return True


def received(frame):
    """Return the request in a frame; None if it cannot be read."""
    reader = FrameReader()
    reader.feed(frame)
    try:
        found = reader.next_frame()
        return None if found is None else decode_command(found)
    except (FrameError, HeaderError):
        return None


def content(request):
    """Return the signed content: values sorted by field name, and the body."""
    fields = {name: text for name, text in request.ext_fields.items() if name != SIGNATURE}
    return "".join(fields[name] for name in sorted(fields)).encode() + bytes(request.body)


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_signed_request_is_accepted_in_each_codec(access, name, codec):
    request = signed(REQUESTS[name], "alice").with_serialize_type(codec)
    assert is_accepted(access, received(request.encode()))


@given(
    name=st.sampled_from(sorted(REQUESTS)),
    codec=st.sampled_from(CODECS),
    change=st.sampled_from(["value", "added", "removed", "swapped", "body", "signature"]),
    which=st.integers(0, 1 << 16),
    text=st.text(st.characters(codec="utf-8"), min_size=1, max_size=9),
)
def test_changed_field_or_body_of_a_signed_request_is_refused(
    access, name, codec, change, which, text
):
    request = signed(REQUESTS[name], "alice")
    fields, body = dict(request.ext_fields), request.body
    names = sorted(fields)
    one, other = names[which % len(names)], names[(which + 1) % len(names)]
    match change:
        case "value":
            fields[one] += text
        case "added":
            fields[f"x{text}"] = text
        case "removed":
            del fields[one]
        case "swapped":
            fields[one], fields[other] = fields[other], fields[one]
        case "body":
            body = bytes(body) + text.encode()
        case "signature":
            fields[SIGNATURE] = text
    changed = request._replace(ext_fields=fields, body=body)
    if (
        content(changed) == content(request)
        and fields.get(SIGNATURE) == request.ext_fields[SIGNATURE]
    ):
        return  # the signature has no separators: different fields may give the same signed content
    assert not is_accepted(access, received(changed.with_serialize_type(codec).encode()))


@given(
    name=st.sampled_from(sorted(REQUESTS)),
    codec=st.sampled_from(CODECS),
    where=st.integers(0, 1 << 16),
    byte=st.integers(0, 255),
)
def test_frame_with_any_changed_byte_is_refused_unless_the_signed_content_is_the_same(
    access, name, codec, where, byte
):
    request = signed(REQUESTS[name], "alice").with_serialize_type(codec)
    frame = bytearray(request.encode())
    frame[where % len(frame)] = byte
    found = received(bytes(frame))
    if found is None or not is_accepted(access, found):
        return
    assert content(found) == content(request)
    assert found.ext_fields[SIGNATURE] == request.ext_fields[SIGNATURE]
