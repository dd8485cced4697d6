"""The exporter's HTTP port answers a few paths and disconnects slow clients."""

import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from http import HTTPStatus

import pytest

from rmq_spark import http_server
from rmq_spark.http_server import CLIENTS_MAX, MetricsServer


@pytest.fixture
def port():
    answers = {"/metrics": lambda: (HTTPStatus.OK, b"a 1\n")}
    with MetricsServer("127.0.0.1", 0, answers) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield server.server_address[1]
        server.shutdown()
        serving.join()


def asked(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        return answer.status, answer.headers["Content-Type"], answer.read()


def test_exporter_answers_metrics_and_404(port):
    status, kind, body = asked(port, "/metrics?x=y")
    assert (status, body) == (200, b"a 1\n")
    assert kind.startswith("text/plain; version=0.0.4")
    with pytest.raises(urllib.error.HTTPError) as raised:
        asked(port, "/")
    with raised.value as answer:
        assert (answer.code, answer.read()) == (404, b"no such path. Use one of: /metrics\n")


def test_page_of_another_site_cannot_read_metrics_from_loopback(port):
    for host, status in (("evil.example:5558", 403), ("localhost", 200), ("[::1]:1", 200)):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            client.sendall(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            with client.makefile("rb") as answer:
                assert int(answer.readline().split()[1]) == status


def test_exporter_does_not_look_up_the_host_name(monkeypatch):
    """Without an answer from a DNS server, the lookup takes half a minute."""
    asked_for = []
    monkeypatch.setattr(socket, "getfqdn", asked_for.append)
    with MetricsServer("0.0.0.0", 0, {}) as server:  # noqa: S104  # only for this test
        assert server.url == f"http://0.0.0.0:{server.server_port}"
    assert asked_for == []


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nX: a", b"POST / HTTP/1.1\r\n"])
def test_exporter_serves_new_clients_though_an_attacker_holds_all_connections(port, said):
    idle = []
    for number in range(3 * CLIENTS_MAX):
        idle.append(socket.create_connection(("127.0.0.1", port)))
        idle[-1].sendall(said)
        if number > CLIENTS_MAX:
            assert asked(port, "/metrics")[0] == 200
    for each in idle:
        each.close()


def test_exporter_limits_concurrent_responses():
    begun, may_end = threading.Semaphore(0), threading.Event()

    def slowly():
        begun.release()
        may_end.wait(20)
        return HTTPStatus.OK, b"at last\n"

    with MetricsServer("127.0.0.1", 0, {"/metrics": slowly}) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        address = server.server_address
        clients = [socket.create_connection(address, timeout=20) for _ in range(CLIENTS_MAX)]
        for each in clients:
            each.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert begun.acquire(timeout=20)
        with socket.create_connection(address, timeout=20) as another:
            assert another.recv(1) == b""
        may_end.set()
        for each in clients:
            with each, each.makefile("rb") as answer:
                assert answer.read().endswith(b"at last\n")
        server.shutdown()


def drip(client, data=b"a", pause=0.02):
    """Send bytes slowly until the server disconnects; return the seconds that took."""
    began = time.monotonic()
    client.settimeout(pause)
    while time.monotonic() < began + 20:
        with suppress(TimeoutError):
            if client.recv(1) == b"":
                break
        client.sendall(data)
    return time.monotonic() - began


@pytest.mark.parametrize(
    "said",
    [b"", b"GET /metrics HTTP/1.1\r\nX: ", b"POST / HTTP/1.1\r\nContent-Length: 99999\r\n"],
)
def test_exporter_disconnects_a_client_that_drips_bytes(port, monkeypatch, said):
    monkeypatch.setattr(http_server._MetricsHandler, "request_seconds", 0.3)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as slow:
        slow.sendall(said)
        with suppress(ConnectionError):
            assert drip(slow) < 10  # sending them all would take more than an hour
        with suppress(ConnectionError):
            assert slow.recv(1) == b""
