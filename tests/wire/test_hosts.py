"""Hosts as bytes and as texts."""

import pytest
from hypothesis import given
from support.messages.wire_strategies import hosts

from rmq_spark.errors import RecordError
from rmq_spark.wire.message.hosts import Host, decode_host, host_of, parse_host


@given(hosts)
def test_host_encode_decode_round_trip(host):
    assert decode_host(host.encode()) == host
    assert parse_host(str(host)) == host


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("10.0.0.1:9876", Host(b"\n\0\0\1", 9876)),
        ("[::1]:10911", Host(bytes(15) + b"\1", 10911)),
        ("::1:10911", Host(bytes(15) + b"\1", 10911)),
    ],
)
def test_host_text_is_parsed(text, host):
    assert parse_host(text) == host


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.1",
        "10.0.0.1:",
        "10.0.0.1:x",
        "broker-a:9876",
        "300.1.1.1:1",
        "10.0.0.1:1_0",
        "10.0.0.1: 1",
    ],
)
def test_invalid_host_text_is_refused(text):
    with pytest.raises(RecordError, match="host at text: needed address:port"):
        parse_host(text)


@pytest.mark.parametrize("data", [b"", bytes(7), bytes(9), bytes(21)])
def test_host_bytes_of_another_width_are_refused(data):
    with pytest.raises(RecordError, match="host at byte 0: needed 8 or 20 bytes"):
        decode_host(data)


@pytest.mark.parametrize("host", [Host(b"", 1), Host(bytes(4), -1), Host(bytes(4), 1 << 31)])
def test_host_without_encoding_is_refused(host):
    with pytest.raises(RecordError, match="host at address"):
        host.encode()


@pytest.mark.parametrize(
    ("name", "host"),
    [
        (("10.0.0.1", 9876), "10.0.0.1:9876"),
        (("::ffff:10.0.0.1", 9876, 0, 0), "10.0.0.1:9876"),
        (("::1", 1, 0, 0), "[::1]:1"),
        (("fe80::1%eth0", 1, 0, 2), "[fe80::1]:1"),
    ],
)
def test_host_of_a_socket_name_prefers_ipv4(name, host):
    assert host_of(name) == parse_host(host)


@pytest.mark.parametrize("name", [("a/socket",), ("", 0), ("nowhere", 1)])
def test_host_of_a_socket_that_is_not_ip_is_refused(name):
    with pytest.raises(ValueError, match="IP"):
        host_of(name)


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1:1", True), ("127.9.9.9:1", True), ("[::1]:1", True), ("10.0.0.1:1", False)],
)
def test_host_is_loopback_only_for_local_addresses(host, is_loopback):
    assert parse_host(host).is_loopback is is_loopback
