"""Certificates' validity, read from DER: the same dates as OpenSSL's, or a ValueError."""

import ssl
from contextlib import suppress
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.servers.tls import CERTIFICATES

from rocketpoll.broker.server.tls.validity import (
    Validity,
    certificates_of_pem,
    validity_of_der,
)


def der(tag, *content):
    """Return a DER value."""
    data = b"".join(content)
    size = len(data)
    if size < 128:
        return bytes([tag, size]) + data
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + data


def certificate_with(not_before, not_after, *, serial=b"\1", version=True, issuer=b""):
    """Return the parts of a certificate before its subject, which is not read here."""
    return der(
        0x30,
        der(
            0x30,
            der(0xA0, der(0x02, b"\2")) if version else b"",
            der(0x02, serial),
            der(0x30, der(0x06, b"\x2a\x86")),
            der(0x30, issuer),
            der(0x30, not_before, not_after),
            b"and so on",
        ),
        b"signature",
    )


@given(
    st.integers(-631_152_000, 253_402_300_799),  # from 1950 to 9999
    st.booleans(),
    st.binary(min_size=1, max_size=300),
    st.binary(max_size=70_000),
)
def test_certificate_times_of_both_der_types_are_parsed(seconds, has_version, serial, issuer):
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    text = f"{moment:%Y%m%d%H%M%S}Z".encode()
    general = der(0x18, text)
    utc = der(0x17, text[2:]) if 1950 <= moment.year < 2050 else general
    for first, second in ((general, utc), (utc, general)):
        data = certificate_with(first, second, serial=serial, version=has_version, issuer=issuer)
        assert validity_of_der(data) == Validity(seconds, seconds)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_certificate_or_a_value_error(data):
    with suppress(ValueError):
        validity_of_der(data)


[SERVER] = certificates_of_pem((CERTIFICATES / "server.pem").read_text())


@given(st.integers(0, len(SERVER) - 1), st.integers(0, 255))
def test_damaged_certificate_is_read_or_raises_value_error(position, value):
    damaged = bytearray(SERVER)
    damaged[position] = value
    with suppress(ValueError):
        validity_of_der(bytes(damaged))


@given(st.integers(0, 180))
def test_certificate_cut_within_its_validity_raises_value_error(size):
    with pytest.raises(ValueError, match=r"cut short|has no length|cannot be read|needed"):
        validity_of_der(SERVER[:size])


@pytest.mark.parametrize("name", ["ca.pem", "other-ca.pem"])
def test_certificate_validity_equals_that_of_openssl(name):
    text = (CERTIFICATES / name).read_text()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=text)
    [known] = context.get_ca_certs()
    [found] = map(validity_of_der, certificates_of_pem(text))
    assert found.not_before == ssl.cert_time_to_seconds(known["notBefore"])
    assert found.not_after == ssl.cert_time_to_seconds(known["notAfter"])


@pytest.mark.parametrize(
    "time",
    [
        der(0x17, b"210101000000"),
        der(0x17, b"21010100Z"),
        der(0x18, b"20211301000000Z"),
        der(0x18, b"20210101000000+0100"),
        der(0x04, b"210101000000Z"),
        b"",
    ],
    ids=["no zone", "no minutes", "month 13", "another zone", "no time", "nothing"],
)
def test_validity_time_of_another_form_raises_value_error(time):
    with pytest.raises(ValueError, match=r"needed a time|does not match format|remains"):
        validity_of_der(certificate_with(der(0x17, b"200101000000Z"), time))


def test_certificates_of_a_file_are_found_between_other_text():
    texts = [(CERTIFICATES / name).read_text() for name in ("client.pem", "ca.pem")]
    found = certificates_of_pem("\n# comment\n".join([*texts, "the end"]))
    assert len(found) == 2
    assert found == [certificates_of_pem(text)[0] for text in texts]
    with pytest.raises(ValueError, match="base64 is damaged"):
        certificates_of_pem(texts[1].replace("MII", "M!I", 1))
