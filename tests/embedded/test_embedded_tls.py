"""Embedded brokers with TLS: helpers and clients need one argument, and no file is left."""

import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest
from support.servers.tls import BROKER_TLS, TRUSTING, certificate

from rmq_spark.client.errors import ClientError
from rocketpoll import ClientInstance, LitePullConsumer, Message, Producer, TlsSettings
from rocketpoll.broker.embedded import EmbeddedBroker, EmbeddedBrokerError

pytestmark = pytest.mark.usefixtures("temporary")

NEED = "tls.server.need.client.auth"


def send_with(broker, tls, body=b"one"):
    with (
        ClientInstance(broker.address, tls=tls) as instance,
        Producer("shop", instance=instance) as producer,
    ):
        producer.send(Message("orders", body))


def test_embedded_helpers_and_clients_use_tls_with_one_argument(kind, temporary):
    with EmbeddedBroker(tls=True, **kind) as broker:
        broker.create_topic("orders", queues=1)
        broker.send("orders", "zero")
        send_with(broker, broker.tls)
        broker.wait_until_arrived("orders", 2)
        assert [message.body for message in broker.messages("orders")] == [b"zero", b"one"]
        assert broker.read_table("orders").num_rows == 2
        for path in broker.ca_file.parent.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(broker.ca_file.parent.stat().st_mode) == 0o700
        assert broker.client_file is None
    assert list(temporary.iterdir()) == []


def test_embedded_broker_with_tls_refuses_plain_clients(kind):
    with EmbeddedBroker(tls=True, **kind) as broker:
        with pytest.raises(ClientError, match="TLS"):
            send_with(broker, None)
        with pytest.raises(ClientError, match="is not trusted"):
            send_with(broker, TRUSTING)


def test_embedded_broker_restart_keeps_the_certificates(kind):
    with EmbeddedBroker(tls=True, **kind) as broker:
        before = broker.tls
        broker.send("orders", "zero")
        broker.restart()
        send_with(broker, before)
        assert len(broker.messages("orders")) == 2


def test_embedded_broker_can_require_client_certificates(kind):
    with EmbeddedBroker(tls=True, **kind, **{NEED: "require"}) as broker:
        send_with(broker, broker.tls)
        with pytest.raises(ClientError):
            send_with(broker, TlsSettings.of_files(ca_file=broker.ca_file))
        with (
            ClientInstance(broker.address, tls=broker.tls) as instance,
            LitePullConsumer("billing", instance=instance) as consumer,
        ):
            consumer.subscribe("orders")
            assert [message.body for message in consumer.poll(10_000)] == [b"one"]


def test_permissive_embedded_broker_accepts_tls_and_plain_clients():
    with EmbeddedBroker(tls=True, **{"tls.server.mode": "permissive"}) as broker:
        send_with(broker, None)
        send_with(broker, broker.tls)


def test_embedded_spark_options_connect_over_tls():
    with EmbeddedBroker() as broker:
        assert broker.tls is None
        assert broker.spark_options == {"namesrvAddr": broker.address}
        with pytest.raises(EmbeddedBrokerError, match=r"Create it with EmbeddedBroker\(tls=True\)"):
            broker.ca_file  # noqa: B018  # raises
    with EmbeddedBroker(tls=True, **{NEED: "optional"}) as broker:
        assert broker.spark_options == {
            "namesrvAddr": broker.address,
            "tls": "true",
            "tlsCaFile": str(broker.ca_file),
            "tlsCertFile": str(broker.client_file),
        }
    for use in ("tls", "ca_file", "spark_options"):
        with pytest.raises(EmbeddedBrokerError, match="was stopped"):
            getattr(broker, use)


def test_embedded_certificate_contains_the_configured_addresses():
    with EmbeddedBroker(tls=True, bindAddress="127.0.0.2", brokerIP1="127.0.0.2") as broker:
        broker.send("orders", "one")
        assert broker.address.startswith("127.0.0.2:")
    with EmbeddedBroker(tls=True, bindAddress="::1") as broker:
        broker.send("orders", "one")


def test_embedded_broker_with_own_certificate_gives_client_settings(kind):
    with EmbeddedBroker(tls=TRUSTING, **kind, **BROKER_TLS) as broker:
        broker.send("orders", "one")
        assert broker.tls is TRUSTING
        with pytest.raises(EmbeddedBrokerError, match="pass namesrvAddr, tls=true and tlsCaFile"):
            broker.spark_options  # noqa: B018  # raises


def test_embedded_broker_refuses_contradicting_tls_arguments(tmp_path):
    with pytest.raises(TypeError, match="tls: needed True, False or TlsSettings, found str"):
        EmbeddedBroker(tls="enforcing")
    with pytest.raises(EmbeddedBrokerError, match=r"leave out tls\.server\.certPath"):
        EmbeddedBroker(tls=True, **BROKER_TLS)
    wrong = EmbeddedBroker(**{"tls.server.certPath": str(tmp_path / "none.pem")})
    with pytest.raises(EmbeddedBrokerError, match="the file does not exist"):
        wrong.start()


def test_embedded_tls_key_password_is_in_no_command_line(kind, temporary):
    settings = {
        "tls.server.certPath": certificate("client.crt"),
        "tls.server.keyPath": certificate("locked.key"),
        "tls.server.keyPassword": "rocketpoll",
    }
    with EmbeddedBroker(**kind, **settings) as broker:
        for _ in range(2):
            broker.send("orders", "one")
            own = [b"keyPassword=" in path.read_bytes() for path in command_lines()]
            assert not any(own)
            broker.restart()
    assert list(temporary.iterdir()) == []


def command_lines():
    """Return the command lines of this process and its children."""
    found = [Path("/proc/self/cmdline")]
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # the thread has ended meanwhile
            children = (task / "children").read_text().split()
            found += [Path("/proc", child, "cmdline") for child in children]
    return found


def test_failed_embedded_tls_start_leaves_no_files(temporary):
    with EmbeddedBroker() as other:
        taken = EmbeddedBroker(tls=True, port=other.port)
        before = len(list(temporary.iterdir()))
        with pytest.raises(EmbeddedBrokerError, match="cannot start"):
            taken.start()
        assert len(list(temporary.iterdir())) == before


def test_embedded_clock_moved_by_years_keeps_tls_connections(caplog):
    with EmbeddedBroker(tls=True) as broker:
        broker.send("orders", "one")
        broker.clock.advance(86_400.0 * 3)
        broker.send("orders", "two")
    assert not [record for record in caplog.records if "certificate" in record.getMessage()]


def test_forked_child_uses_the_embedded_brokers_tls():
    with EmbeddedBroker(tls=True) as broker:
        broker.send("orders", "one")
        child = os.fork()
        if not child:
            code = 1
            try:
                broker.send("orders", "two")
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert len(broker.messages("orders")) == 2


def test_embedded_network_faults_work_under_tls():
    with EmbeddedBroker(tls=True) as broker:
        broker.send("orders", "one")
        with broker.slow(0.05):
            broker.send("orders", "two")
        with broker.cut_after(10):
            pass
        with broker.away():
            pass
        broker.send("orders", "three")
        assert len(broker.messages("orders")) == 3
