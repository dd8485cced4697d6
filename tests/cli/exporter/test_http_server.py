"""The exporter's HTTP port answers a few paths and disconnects slow clients."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from http import HTTPStatus

import pytest

from rmq_spark.cli.exporter import command
from rmq_spark.cli.exporter.command import MetricsServer
from rmq_spark.cli.shell.http_server import CLIENTS_MAX


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


def test_exporter_does_not_look_up_the_host_name(monkeypatch):
    """Where no name server answers, that takes half a minute."""
    asked_for = []
    monkeypatch.setattr(socket, "getfqdn", asked_for.append)
    with MetricsServer("0.0.0.0", 0, {}) as server:  # noqa: S104  # for a moment
        assert server.url == f"http://0.0.0.0:{server.server_port}"
    assert asked_for == []


def test_clients_beyond_the_limit_are_turned_away_until_others_have_gone(port):
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(CLIENTS_MAX)]
    with socket.create_connection(("127.0.0.1", port), timeout=20) as another:
        assert another.recv(1) == b""
    for each in idle:
        each.close()
    for _ in range(2_000):  # each place is free again once its thread has noticed
        try:
            assert asked(port, "/metrics")[0] == 200
        except (urllib.error.URLError, ConnectionError):
            continue
        break
    else:
        raise AssertionError("nobody is let in again")


def test_silent_client_of_the_exporter_is_disconnected(port, monkeypatch):
    monkeypatch.setattr(command._MetricsHandler, "timeout", 0.05)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as silent:
        assert silent.recv(1) == b""
