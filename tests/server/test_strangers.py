"""Clients of other protocols are recognized by their first bytes."""

import pytest

from rocketpoll.broker.server.client_connection import detect_protocol


@pytest.mark.parametrize(
    ("first_bytes", "name"),
    [
        (b"GET / HT", "HTTP"),
        (b"POST /x ", "HTTP"),
        (b"HEAD / H", "HTTP"),
        (b"PRI * HT", "HTTP/2"),
        (b"\x16\x03\x01\x02", "TLS"),
        (b"\x00\x00\x01\x00\x00\x00\x00\x80", None),
        (b"GE", None),
        (b"", None),
    ],
)
def test_foreign_protocol_is_detected_by_its_first_bytes(first_bytes, name):
    assert detect_protocol(first_bytes) == name
