"""``rocketpoll doctor`` on the cluster: name server, topic and brokers, reachable or not."""

import socket

import pytest
from support.servers.tls import HOST, certificate, under_tls

from rmq_spark.cli.doctor import check_cluster
from rocketpoll import EmbeddedBroker


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker() as broker:
        broker.create_topic("orders", queues=2)
        broker.send("orders", "one")
        yield broker


@pytest.fixture(autouse=True)
def nothing_is_named(monkeypatch):
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


@pytest.fixture
def nobody():
    """Return an address where no server listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_doctor_finds_name_server_topic_and_brokers(broker):
    findings = check_cluster(broker.address, "orders")
    assert [each.subject for each in findings if each.is_ok] == ["name server", "topic", "brokers"]
    assert findings[-1].detail.endswith(": 2 queues, 1 message stored in all")


def test_doctor_skips_what_was_not_named(broker, monkeypatch):
    [alone] = check_cluster(None, None)
    assert alone.is_skipped
    monkeypatch.setenv("NAMESRV_ADDR", broker.address)
    name_server, topic = check_cluster(None, None)
    assert not name_server.is_skipped
    assert topic.is_skipped


def test_doctor_names_a_missing_topic(broker):
    fault = check_cluster(broker.address, "oders")[-1]
    assert not fault.is_ok
    assert "oders" in fault.detail


@pytest.mark.parametrize("address", ["localhost", "localhost:port"])
def test_doctor_reports_a_malformed_address(address):
    [fault] = check_cluster(address, "orders")
    assert fault.detail.startswith("option namesrvAddr: needed host:port")
    assert fault.remedy is not None


def test_doctor_reports_address_without_listener(nobody):
    [fault] = check_cluster(nobody, "orders")
    assert nobody in fault.detail
    assert fault.remedy is not None


def test_doctor_reports_unreachable_broker_address(tmp_path):
    with EmbeddedBroker(tmp_path / "store") as broker:
        broker.create_topic("orders")
    with EmbeddedBroker(tmp_path / "store", brokerIP1="127.0.0.9") as broker:
        name_server, topic, brokers = check_cluster(broker.address, "orders")
    assert name_server.is_ok
    assert topic.is_ok
    assert "127.0.0.9" in brokers.detail
    assert "brokerIP1" in brokers.remedy


def test_brokers_under_tls_are_asked_with_the_options_that_a_read_needs(tmp_path):
    with EmbeddedBroker(tmp_path / "store") as broker:
        broker.create_topic("orders", queues=2)
    with (
        EmbeddedBroker(tmp_path / "store", brokerIP1=HOST) as broker,
        under_tls(broker.port) as terminator,
    ):
        options = {"tls": "true", "tlsCaFile": certificate("ca.pem")}
        assert all(each.is_ok for each in check_cluster(terminator.address, "orders", options))
        of_reads = {**options, "consumerGroup": "billing", "STARTINGOFFSETS": "earliest"}
        assert all(each.is_ok for each in check_cluster(terminator.address, "orders", of_reads))
        [fault] = check_cluster(terminator.address, "orders")
        assert f"{terminator.address} requires TLS: it has a certificate for" in fault.detail
        assert fault.remedy.startswith("set option tls to true, and tlsCaFile to a PEM file")
        [fault] = check_cluster(terminator.address, "orders", {**options, "tlsCaFile": "/nowhere"})
        assert fault.detail.startswith("option tlsCaFile: /nowhere cannot be read: No such file")
        assert fault.remedy == "correct this --option"
