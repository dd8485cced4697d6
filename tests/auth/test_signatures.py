"""Signatures of requests: which key has made them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.access import answers
from support.messages.wire_strategies import text

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.signature import SIGNATURE, sign, signed_fields
from rocketpoll.broker.auth.signatures import is_signed_by

KEY = "12345678"
FIELDS = st.dictionaries(text.filter(lambda name: name != SIGNATURE), text, max_size=6)


def signed(fields, body=b"", **more):
    return RemotingCommand(
        more.pop("code", 310),
        ext_fields=signed_fields(fields, body, access_key="user", secret_key=KEY, **more),
        body=body,
    )


@pytest.mark.parametrize(
    "vector",
    answers.load("5.5.0", "signature"),
    ids=lambda vector: f"{vector['name']}-{vector['version']}",
)
def test_signature_is_valid_where_rocketmq_accepts_it(vector):
    if vector["ext"].get("AccessKey") != answers.OPERATOR.name:
        return  # another key, or none
    request = RemotingCommand(
        vector["code"], ext_fields=vector["ext"], body=bytes.fromhex(vector["body"])
    )
    refusal = vector["refusal"]
    is_either_form = vector["name"].startswith("a query by unique id")
    is_empty_in_binary = (vector["name"], vector["codec"]) == ("an empty field", "ROCKETMQ")
    is_taken = refusal is None or is_either_form or is_empty_in_binary
    assert is_signed_by(request, answers.OPERATOR.secret) == is_taken


@given(FIELDS, st.binary(max_size=100))
def test_signature_of_the_owner_is_valid(fields, body):
    assert is_signed_by(signed(fields, body), KEY)


@given(FIELDS, st.binary(min_size=1, max_size=20), st.data())
def test_signature_of_changed_content_is_invalid(fields, body, data):
    request = signed(fields, body)
    assert not is_signed_by(request, KEY + "x")
    assert not is_signed_by(request._replace(body=body + b"x"), KEY)
    name = data.draw(st.sampled_from(sorted({*fields, "AccessKey"})))
    value = data.draw(text.filter(lambda each: each != request.ext_fields[name]))
    changed = {**request.ext_fields, name: value}
    others = "".join(changed[each] for each in sorted(changed) if each != SIGNATURE)
    before = "".join(request.ext_fields[each] for each in sorted(changed) if each != SIGNATURE)
    if others != before:
        assert not is_signed_by(request._replace(ext_fields=changed), KEY)


@given(FIELDS, text)
def test_arbitrary_text_is_no_valid_signature(fields, signature):
    request = RemotingCommand(310, ext_fields={**fields, SIGNATURE: signature})
    assert is_signed_by(request, KEY) == (signature == sign(fields, b"", KEY))


def test_request_without_a_signature_is_not_signed():
    assert not is_signed_by(RemotingCommand(310, ext_fields={"AccessKey": "user"}), KEY)


@pytest.mark.parametrize("code", [RequestCode.QUERY_MESSAGE, RequestCode.PULL_MESSAGE])
def test_signature_of_a_query_may_leave_out_its_mark_of_unique_keys(code):
    fields = {"topic": "T", "_UNIQUE_KEY_QUERY": "true"}
    assert is_signed_by(signed(fields, code=code), KEY)
    request = signed(fields, code=code, excluded=("_UNIQUE_KEY_QUERY",))
    assert is_signed_by(request, KEY) == (code == RequestCode.QUERY_MESSAGE)


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 200_000])
def test_signature_of_a_large_body_equals_that_of_its_parts(size):
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    request = signed({"a": "1"}, memoryview(body))
    assert is_signed_by(request, KEY)
    assert request.ext_fields[SIGNATURE] == sign(
        {"a": "1", "AccessKey": "user" + body[:0].decode()}, body, KEY
    )
