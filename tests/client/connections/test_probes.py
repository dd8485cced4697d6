"""Client connections have TCP keepalive."""

import socket

from support.servers.fake_servers import FakeServer, silent

from rmq_spark.client.transport.connection import RemotingConnection


def test_tcp_keepalive_options_are_set_on_client_connections():
    options = {
        "TCP_KEEPIDLE": 30,
        "TCP_KEEPINTVL": 10,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": 60_000,
    }
    with FakeServer(silent) as server:
        connection = RemotingConnection.connect(server.address)
        sock = connection._socket
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        there = {name: value for name, value in options.items() if hasattr(socket, name)}
        found = {name: sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in there}
        assert found == there
        connection.close()
