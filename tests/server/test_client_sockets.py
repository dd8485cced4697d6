"""Undelivered bytes of a client's socket, as the system reports them."""

import socket
from contextlib import suppress

from rocketpoll.broker.server.client_connection import kernel_buffered_bytes


def test_kernel_buffered_bytes_count_undelivered_data():
    with socket.create_server(("127.0.0.1", 0)) as server:
        writer = socket.create_connection(server.getsockname())
        reader, _ = server.accept()
    with writer, reader:
        assert kernel_buffered_bytes(writer.fileno()) == 0
        writer.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                writer.send(bytes(1 << 16))
        assert kernel_buffered_bytes(writer.fileno()) > 0


def test_kernel_buffered_bytes_of_a_closed_socket_are_zero():
    assert kernel_buffered_bytes(-1) == 0
