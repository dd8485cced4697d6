"""SignedTemplate gives the same verdicts as a full signature check of each request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.wire.signature import sign
from rocketpoll.broker.auth.signatures import SignedTemplate
from rocketpoll.broker.processor.fast_paths import cut_signature

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
fields = st.dictionaries(st.text(max_size=3), texts, max_size=6)
keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=90)


@given(others=fields, values=st.tuples(texts, texts), body=st.binary(max_size=100), key=keys)
def test_signed_template_accepts_the_signature_of_every_request_of_its_form(
    others, values, body, key
):
    learned = {**others, "g": "1", "i": "2", "Signature": "x"}
    template = SignedTemplate(learned, ("g", "i"), key)
    first, second = values
    signature = sign({**learned, "g": first, "i": second}, body, key).encode()
    assert template.is_valid_signature(first.encode(), second.encode(), memoryview(body), signature)


@given(
    others=fields,
    values=st.tuples(texts, texts),
    body=st.binary(max_size=20),
    key=keys,
    change=st.sampled_from(["first", "second", "body", "signature", "other key", "other field"]),
    noise=st.binary(min_size=1, max_size=4),
)
def test_signed_template_refuses_all_other_signatures(others, values, body, key, change, noise):
    learned = {**others, "g": "1", "i": "2"}
    first, second = (value.encode() for value in values)
    signed = {**learned, "g": values[0], "i": values[1]}
    if change == "other field":
        signed["a new one"] = "x"
    secret = key + "x" if change == "other key" else key
    signature = sign(signed, body, secret).encode()
    given_body = body
    match change:
        case "first":
            first += noise
        case "second":
            second += noise
        case "body":
            given_body += noise
        case "signature":
            signature = signature[:-2] + noise
    template = SignedTemplate(learned, ("g", "i"), key)
    is_same = signature == sign(signed, body, secret).encode() and change == "signature"
    assert template.is_valid_signature(first, second, given_body, signature) is is_same


@pytest.mark.parametrize("missing", ["g", "i"])
def test_signed_template_needs_both_varying_fields(missing):
    learned = {"g": "1", "i": "2"}
    del learned[missing]
    with pytest.raises(KeyError):
        SignedTemplate(learned, ("g", "i"), "key")


def test_signature_is_removed_from_a_header_at_any_position():
    signature = b"A" * 27 + b"="
    for before, after in ((b'{"a":"b",', b',"c":"d"}'), (b"{", b"}")):
        header = before + b'"Signature":"' + signature + b'"' + after
        assert cut_signature(header) == (before + b'"Signature":""' + after, signature)
    assert cut_signature(b'{"a":"b"}') == (b'{"a":"b"}', b"")
