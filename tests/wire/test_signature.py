"""Signatures of requests."""

import pytest
from support.rocketmq import java_vectors

from rmq_spark.errors import HeaderError
from rmq_spark.wire.signature import SIGNATURE, sign, signed_fields

FIELDS = {"AccessKey": "RocketMQ", "topic": "TopicTest"}
SIGNED = "RSnjDEmC7TZWy3Cb7kjIryomJgA="


@java_vectors.each("signatures")
def test_signatures_equal_javas(vector):
    # Java signs a null field as "null"; our fields are always text.
    fields = {name: "null" if value is None else value for name, value in vector["ext"].items()}
    assert (
        sign(fields, bytes.fromhex(vector["body"] or ""), vector["secretKey"])
        == vector["signature"]
    )


def test_signed_request_has_access_key_and_signature():
    fields = signed_fields(
        {"topic": "TopicTest"}, b"body", access_key="RocketMQ", secret_key="12345678"
    )
    assert fields == {**FIELDS, SIGNATURE: SIGNED}


def test_security_token_is_sent_and_signed():
    fields = signed_fields(
        {}, b"", access_key="RocketMQ", secret_key="12345678", security_token="t"
    )
    assert fields["SecurityToken"] == "t"
    assert fields[SIGNATURE] == sign(
        {"AccessKey": "RocketMQ", "SecurityToken": "t"}, b"", "12345678"
    )


def test_signature_depends_on_fields_body_and_key_only():
    assert sign({**FIELDS, SIGNATURE: "é"}, b"body", "12345678") == SIGNED
    assert sign(FIELDS, b"Body", "12345678") != SIGNED
    assert sign(FIELDS, b"body", "12345679") != SIGNED
    assert sign({**FIELDS, "topic": "Other"}, b"body", "12345678") != SIGNED


@pytest.mark.parametrize("left_out", ["_UNIQUE_KEY_QUERY"])
def test_excluded_field_does_not_change_the_signature(left_out):
    fields = {**FIELDS, left_out: "true"}
    assert sign(fields, b"body", "12345678") != SIGNED
    assert sign(fields, b"body", "12345678", excluded={left_out}) == SIGNED


def test_excluded_field_is_sent_but_not_signed():
    fields = {"topic": "TopicTest", "_UNIQUE_KEY_QUERY": "true"}
    signed = signed_fields(
        fields,
        b"body",
        access_key="RocketMQ",
        secret_key="12345678",
        excluded={"_UNIQUE_KEY_QUERY"},
    )
    assert signed == {**fields, **FIELDS, SIGNATURE: SIGNED}


@pytest.mark.parametrize(
    ("fields", "secret_key", "place"),
    [({"topic": "\ud800"}, "12345678", "topic"), (FIELDS, "12345678\ud800", "the secret key")],
)
def test_text_outside_utf8_cannot_be_signed_and_is_not_shown(fields, secret_key, place):
    with pytest.raises(
        HeaderError, match=f"signature at {place}: needed text that UTF-8 can encode"
    ) as caught:
        sign(fields, b"", secret_key)
    assert "1234" not in str(caught.value)
