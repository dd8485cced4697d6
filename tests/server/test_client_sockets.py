"""What the system tells of a socket: where its ends are, and what has not arrived."""

import socket
from contextlib import suppress

import pytest

from rmq_spark.wire.hosts import parse_host
from rocketpoll.broker.server.client_sockets import host_of, kept_by_the_system


@pytest.mark.parametrize(
    ("name", "host"),
    [
        (("10.0.0.1", 9876), "10.0.0.1:9876"),
        (("::ffff:10.0.0.1", 9876, 0, 0), "10.0.0.1:9876"),
        (("::1", 1, 0, 0), "[::1]:1"),
        (("fe80::1%eth0", 1, 0, 2), "[fe80::1]:1"),
    ],
)
def test_an_end_is_at_an_address_of_ipv4_where_there_is_one(name, host):
    assert host_of(name) == parse_host(host)


def test_what_was_given_to_the_system_is_kept_until_it_has_arrived():
    with socket.create_server(("127.0.0.1", 0)) as server:
        writer = socket.create_connection(server.getsockname())
        reader, _ = server.accept()
    with writer, reader:
        assert kept_by_the_system(writer.fileno()) == 0
        writer.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                writer.send(bytes(1 << 16))
        assert kept_by_the_system(writer.fileno()) > 0


def test_of_a_socket_that_is_closed_nothing_is_kept():
    assert kept_by_the_system(-1) == 0
