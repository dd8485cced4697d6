"""``rocketpoll exporter`` as a command: its start and its errors for wrong arguments."""

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import pytest
from support.brokers.metrics_endpoint import samples_of
from support.servers.tls import HOST, certificate, under_tls

from rmq_spark.cli.main import main
from rocketpoll import EmbeddedBroker


@pytest.fixture(autouse=True)
def nothing_is_named(monkeypatch):
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


@contextmanager
def exporting(*arguments):
    """Start an exporter; return its process and the address that it prints."""
    command = [sys.executable, "-m", "rocketpoll", "exporter", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as exporter:
        try:
            said = exporter.stdout.readline().strip()
            (url,) = re.findall(r"^metrics at (http://127.0.0.1:\d+)/metrics$", said)
            yield exporter, url
        finally:
            exporter.kill()


def samples_at(url):
    """Return the samples once the exporter has read the cluster."""
    for _ in range(2_000):
        samples = samples_of(_get(f"{url}/metrics"))
        if samples.names:
            return samples
    raise AssertionError("the cluster is not read")


def test_exporter_serves_until_sigterm(cluster):
    topic = cluster.topic()
    cluster.send(topic, "a")
    with exporting("--namesrv", cluster.name_server) as (exporter, url):
        assert _get(f"{url}/healthz") == "ok\n"
        assert samples_at(url)("rocketmq_messages_in_total", topic=topic) == 1
        assert _get(f"{url}/readyz") == "ready\n"
        exporter.send_signal(signal.SIGTERM)
        assert exporter.wait(20) == 0


def test_exporter_reads_a_cluster_under_tls(tmp_path):
    with EmbeddedBroker(tmp_path) as broker:
        broker.send("orders", "a")
    with EmbeddedBroker(tmp_path, brokerIP1=HOST) as broker, under_tls(broker.port) as terminator:
        named = ["--namesrv", terminator.address, "--tls-ca-file", certificate("ca.pem")]
        with exporting(*named) as (_, url):
            assert samples_at(url)("rocketmq_messages_in_total", topic="orders") == 1


def _get(url):
    with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310  # the test's own server
        return answer.read().decode()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "70000"], "not a whole number from 0 to 65,535"),
        (["--interval", "0"], "not at least 1 and at most 3,600"),
        (["--access-key", "k"], "--access-key and --secret-key together"),
    ],
)
def test_wrong_exporter_arguments_are_refused_with_advice(arguments, said, capsys):
    assert main(["exporter", "--namesrv", "127.0.0.1:1", *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_exporter_refuses_a_malformed_address(capsys):
    assert main(["exporter", "--namesrv", "http://x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_exporter_port_in_use_is_reported(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert main(["exporter", "--namesrv", "127.0.0.1:1", "--port", port]) == 1
    err = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1:{port}" in err
    assert err.count("\n") == 1
