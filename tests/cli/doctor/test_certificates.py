"""``rocketpoll doctor`` explains what is wrong with certificates, credentials and rights."""

from datetime import datetime, timezone

import pytest
from support.brokers.secured import OPERATOR, client_of, secured_broker
from support.servers.fake_servers import FakeServer, answering
from support.servers.tls import certificate, server_context

from rmq_spark.cli.access.connection_checks import check_connection
from rmq_spark.cli.doctor import check_cluster
from rmq_spark.cli.main import main
from rmq_spark.spark.options.options import write_options
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.operators import ClusterInfo
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rocketpoll import AclPolicy, Admin, EmbeddedBroker

TRUSTING = {"tls": "true", "tlsCaFile": certificate("ca.pem")}
NOW = datetime(2026, 11, 29, 12, 30, tzinfo=timezone.utc)


def name_server(request):
    """Run a name server that knows no broker."""
    if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
        return request.respond(ResponseCode.SUCCESS)._replace(body=encode_body(ClusterInfo()))
    return None


def refusing(remark):
    """Return a handler that refuses every request with a remark."""
    return lambda request: request.respond(ResponseCode.NO_PERMISSION, remark)


def checked(address, options, now=NOW):
    access = write_options({"namesrvAddr": address, "retryTimeoutMs": "0", **options}).access
    return check_connection(access, lambda: now)


@pytest.fixture
def serving():
    """Return a function that starts a TLS server and returns the fault that a client with these
    options gets."""

    def fault_of(name, options, **settings):
        with FakeServer(answering(name_server), server_context(name, **settings)) as server:
            [*_, fault] = checked(server.address, options)
            return fault._replace(
                detail=fault.detail.replace(server.address, "SERVER"),
                remedy=None if fault.remedy is None else fault.remedy.replace(server.address, "X"),
            )

    return fault_of


def test_doctor_shows_subject_and_expiry_of_a_certificate():
    with FakeServer(answering(name_server), server_context()) as server:
        tls, answers = checked(server.address, TRUSTING)
    assert tls.is_ok
    assert answers.is_ok
    assert tls.detail == (
        f"{server.address} has a certificate for localhost, 127.0.0.1, 127.0.0.2, 0:0:0:0:0:0:0:1, "
        "issued by rocketpoll tests, until 2120-01-01"
    )


def test_doctor_warns_of_a_certificate_that_expires_soon():
    with FakeServer(answering(name_server), server_context()) as server:
        tls, _ = checked(server.address, TRUSTING, datetime(2119, 12, 25, tzinfo=timezone.utc))
    assert tls.detail.endswith("until 2120-01-01, in 7 days: renew it")


def test_doctor_names_the_issuer_that_is_not_trusted(serving):
    fault = serving("server.pem", {"tls": "true", "tlsCaFile": certificate("other-ca.pem")})
    assert fault.subject == "TLS"
    assert "is issued by rocketpoll tests, and not trusted by the authorities in " in fault.detail
    assert fault.remedy == (
        "set option tlsCaFile to a PEM file with the certificate of rocketpoll tests"
    )


def test_doctor_names_the_hosts_of_a_certificate(serving):
    fault = serving("named.pem", TRUSTING)
    assert fault.detail == (
        "the certificate of SERVER is for brokers.example, and not for 127.0.0.1"
    )
    assert "set option tlsServerName to one" in fault.remedy
    right = {**TRUSTING, "tlsServerName": "brokers.example"}
    assert serving("named.pem", right).is_ok


def test_doctor_says_when_a_certificate_has_expired(serving):
    fault = serving("expired.pem", TRUSTING)
    assert fault.detail == (
        "the certificate of SERVER has expired on 2021-01-01, and this machine's clock says "
        "2026-11-29 12:30 UTC"
    )
    assert fault.remedy.startswith("renew the certificate at the broker")


def test_doctor_suspects_the_clock_before_a_certificate_is_valid(serving):
    fault = serving("future.pem", {"tls": "true", "tlsCaFile": certificate("future-ca.pem")})
    assert fault.detail.startswith("the certificate of SERVER is not valid before 2100-01-01, and")
    assert fault.remedy.startswith("set this clock if it is behind")


def test_doctor_says_that_a_server_requires_a_client_certificate(serving):
    fault = serving("server.pem", TRUSTING, clients_of="ca.pem")
    assert fault.detail == "SERVER requires a certificate of this client"
    assert fault.remedy.startswith("set options tlsCertFile and tlsKeyFile to a certificate")
    own = {"tlsCertFile": certificate("client.crt"), "tlsKeyFile": certificate("client.key")}
    assert serving("server.pem", {**TRUSTING, **own}, clients_of="ca.pem").is_ok


def test_doctor_tells_a_plain_client_that_the_server_requires_tls(serving):
    fault = serving("server.pem", {})
    assert fault.subject == "TLS"
    assert fault.detail.startswith("SERVER requires TLS: it has a certificate for localhost")
    assert fault.remedy.startswith("set option tls to true, and tlsCaFile to")


def test_doctor_says_that_a_server_does_not_speak_tls():
    def hang_up(peer):
        peer.socket.recv(1)

    with FakeServer(hang_up) as server:
        [fault] = checked(server.address, TRUSTING)
    assert fault.detail == f"{server.address} does not speak TLS"
    assert "tls.server.mode=permissive" in fault.remedy


def test_doctor_reports_a_key_that_does_not_match_its_certificate():
    wrong = {"tlsCertFile": certificate("client.crt"), "tlsKeyFile": certificate("ed25519.key")}
    [fault] = check_cluster("localhost:1", None, {**TRUSTING, **wrong})
    assert "ed25519.key is not the key of the certificate in" in fault.detail
    assert fault.remedy == "correct this --option"


@pytest.mark.parametrize(
    ("remark", "remedy"),
    [
        ("username cannot be null.", "Pass the access key and the secret key of a user"),
        ("User:billing is not found.", "have an operator run rocketpoll user create billing"),
        ("User:billing is disabled.", "rocketpoll user update billing --enable"),
        ("check signature failed.", "Correct the secret key"),
    ],
)
def test_doctor_explains_refused_credentials(remark, remedy):
    keys = {"accessKey": "billing", "secretKey": "12345678"}
    with FakeServer(answering(refusing(remark))) as server:
        [fault] = checked(server.address, keys)
    assert fault.subject == "credentials"
    assert remark.rstrip(".") in fault.detail
    assert remedy in fault.remedy
    assert "12345678" not in str(fault)


def test_doctor_names_the_right_that_is_missing_and_the_command_that_grants_it():
    remark = "User:billing has no permission to access Topic:orders from ::1, no matched policies."

    def answer(request):
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return request.respond(ResponseCode.NO_PERMISSION, remark)
        return name_server(request)

    keys = {"accessKey": "billing", "secretKey": "12345678"}
    with FakeServer(answering(answer)) as server:
        answers, credentials, fault = check_cluster(server.address, "orders", keys)
    assert answers.is_ok
    assert credentials.detail == "accepted from user billing"
    assert fault.subject == "rights"
    assert "Topic:orders" in fault.detail
    assert "rocketpoll acl grant billing Topic:orders --actions Pub" in fault.remedy


def test_doctor_takes_addresses_and_certificates_from_a_profile(monkeypatch, tmp_path, capsys):
    profiles = tmp_path / "profiles.ini"
    monkeypatch.setenv("ROCKETPOLL_PROFILES", str(profiles))
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with FakeServer(answering(name_server), server_context()) as server:
        settings = f"namesrv = {server.address}\ntls-ca-file = {certificate('ca.pem')}\n"
        profiles.write_text(f"[prod]\n{settings}", encoding="utf-8")
        main(["doctor", "--profile", "prod"])
        out = capsys.readouterr().out
        assert f"{server.address} has a certificate for localhost" in out
        assert f"{server.address} answers" in out
    main(["doctor", "--profile", "test"])
    assert "has no section [test]" in capsys.readouterr().out


# ---- our broker with self-signed certificates


@pytest.fixture(scope="module")
def secured():
    """Run a broker with TLS and users, a topic, and a user without rights."""
    with secured_broker(tls=True) as broker, Admin(instance=operator_of(broker)) as admin:
        admin.create_topic("orders", 1)
        admin.create_user("billing", "of billing")
        yield broker


def operator_of(broker):
    return client_of(broker, tls=broker.tls)


def options_of(broker, **more):
    """Return the options of a client that trusts a broker."""
    return {"tls": "true", "tlsCaFile": str(broker.ca_file), **more}


def test_doctor_finds_our_broker_ready_under_tls_with_keys(secured):
    keys = {"accessKey": OPERATOR.access_key, "secretKey": OPERATOR.secret_key}
    found = check_cluster(secured.address, "orders", options_of(secured, **keys))
    assert [each.subject for each in found if each.is_ok] == [
        *("TLS", "name server", "credentials", "topic", "brokers")
    ]


def test_doctor_tells_a_plain_client_that_our_broker_requires_tls(secured):
    [fault] = check_cluster(secured.address, "orders")
    assert fault.detail.startswith(f"{secured.address} requires TLS: it has a certificate for ")


def test_doctor_tells_a_client_of_our_plain_broker_that_it_does_not_speak_tls():
    with EmbeddedBroker() as broker:
        address = broker.address
        [fault] = checked(address, TRUSTING)
    assert fault.detail == f"{address} does not speak TLS"


def test_doctor_tells_a_user_which_right_reading_needs(secured):
    keys = {"accessKey": "billing", "secretKey": "of billing"}
    with Admin(instance=operator_of(secured)) as admin:
        [*_, fault] = check_cluster(secured.address, "orders", options_of(secured, **keys))
        assert fault.subject == "rights"
        assert "grant billing Topic:orders --actions Pub; Sub or Get suffices" in fault.remedy
        admin.create_acl(AclPolicy("billing", "Topic:orders", ("Get",)))
        [*_, fault] = check_cluster(secured.address, "orders", options_of(secured, **keys))
        assert "grant billing Topic:orders --actions Sub" in fault.remedy
        admin.create_acl(AclPolicy("billing", "Topic:orders", ("Sub",)))
        [*_, fault] = check_cluster(secured.address, "orders", options_of(secured, **keys))
        assert "grant billing Group:rocketpoll-spark --actions Sub" in fault.remedy
        admin.create_acl(AclPolicy("billing", "Group:rocketpoll-spark", ("Sub",)))
        found = check_cluster(secured.address, "orders", options_of(secured, **keys))
        assert all(each.is_ok for each in found)
