"""Options for TLS and access keys, and their validation at `load()`."""

import pickle

import pytest
from support.servers.tls import certificate
from support.suite.log_records import lines_of

from rmq_spark.client.transport.remoting_client import Credentials
from rmq_spark.client.transport.tls.settings import TlsSettings
from rmq_spark.spark.brokers.fan_out import instance_for
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options.options import read_options, write_options

CA, CERTIFICATE = certificate("ca.pem"), certificate("client.crt")
NEEDED = {"namesrvAddr": "a:1", "topic": "T"}
LOCKED = {"tlsCertFile": CERTIFICATE, "tlsKeyFile": certificate("locked.key")}


@pytest.mark.parametrize("parse", [read_options, write_options])
def test_tls_files_are_read_on_the_driver_and_pickled_to_tasks(parse):
    options = parse(
        {
            **NEEDED,
            **LOCKED,
            "tls": "true",
            "tlsCaFile": CA,
            "tlsKeyPassword": "rocketpoll",
            "tlsServerName": "brokers",
        }
    )
    assert options.access.tls == TlsSettings.of_files(
        ca_file=CA,
        cert_file=CERTIFICATE,
        key_file=certificate("locked.key"),
        key_password="rocketpoll",
        server_name="brokers",
    )
    again = pickle.loads(pickle.dumps(options))  # noqa: S301  # as Spark does
    assert again == options
    assert hash(again.access) == hash(options.access)  # tasks find their shared client by this hash
    assert "key_password" not in repr(options)
    assert "BEGIN" not in repr(options)


def test_tls_option_alone_uses_system_certificates():
    assert read_options({**NEEDED, "tls": "TRUE"}).access.tls == TlsSettings()
    assert read_options({**NEEDED, "tls": "false"}).access.tls is None
    assert read_options(NEEDED).access.tls is None


def test_tls_without_verification_is_accepted_with_a_warning(caplog):
    options = read_options({**NEEDED, "tls": "true", "tlsVerify": "false"})
    assert lines_of(caplog, "rmq_spark") == []
    instance_for(options.access).shutdown()
    assert "TLS without verify" in caplog.text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"tlsCaFile": CA},
            "tlsCaFile: it has no effect without tls=true. Set tls=true, or remove this option",
        ),
        ({"tls": "false", "tlsVerify": "false"}, "tlsVerify: it has no effect without tls=true"),
        ({"tls": "yes"}, "tls: needed true or false, found 'yes'"),
        ({"tls": "true", "tlsVerify": "no"}, "tlsVerify: needed true or false, found 'no'"),
        (
            {"tls": "true", "tlsCaFile": "/no/ca.pem"},
            "tlsCaFile: /no/ca.pem cannot be read: No such file",
        ),
        (
            {"tls": "true", "tlsCaFile": CA, "tlsVerify": "false"},
            "tlsCaFile: it has no effect with verify=False",
        ),
        (
            {"tls": "true", "tlsKeyFile": certificate("client.key")},
            "tlsCertFile: it is required together with its",
        ),
        ({"tls": "true", "tlsCertFile": CERTIFICATE}, "tlsKeyFile: it is required, because "),
        ({"tls": "true", **LOCKED}, "tlsKeyPassword: it is required, because the key in "),
        (
            {"tls": "true", **LOCKED, "tlsKeyPassword": "s3cr3t"},
            "tlsKeyPassword: it does not decrypt the key",
        ),
        (
            {"tls": "true", "tlsServerName": "."},
            "tlsServerName: no certificate can be for the name '.'",
        ),
    ],
)
def test_invalid_tls_option_is_refused_by_name(given, said):
    with pytest.raises(OptionError) as raised:
        read_options({**NEEDED, **given})
    assert str(raised.value).startswith(f"option {said}")
    assert "s3cr3t" not in str(raised.value)


@pytest.fixture
def profiles(monkeypatch, tmp_path):
    """Return the path of the profiles file, which tests write."""
    path = tmp_path / "profiles.ini"
    path.touch(mode=0o600)
    monkeypatch.setenv("ROCKETPOLL_PROFILES", str(path))
    for variable in ("NAMESRV_ADDR", "ROCKETPOLL_ACCESS_KEY", "ROCKETPOLL_SECRET_KEY"):
        monkeypatch.delenv(variable, raising=False)
    return path


PROFILE = f"""
[prod]
namesrv = prod:9876
access-key = billing
secret-key = s3cr3t
tls-ca-file = {CA}
max-body-bytes = 1000
"""


@pytest.mark.parametrize("parse", [read_options, write_options])
def test_profile_has_addresses_keys_and_certificates_of_source_and_sink(profiles, parse):
    profiles.write_text(PROFILE, encoding="utf-8")
    options = parse({"profile": "prod", "topic": "T"})
    assert options.access.name_servers == ("prod:9876",)
    assert options.access.credentials == Credentials("billing", "s3cr3t")
    assert options.access.tls == TlsSettings.of_files(ca_file=CA)  # without a tls option
    assert "s3cr3t" not in repr(options)
    profiles.unlink()  # tasks have the driver's values
    assert pickle.loads(pickle.dumps(options)).access == options.access  # noqa: S301  # as Spark does


def test_profile_limits_the_bodies_of_reads(profiles):
    profiles.write_text(PROFILE, encoding="utf-8")
    assert read_options({"profile": "prod", "topic": "T"}).max_body_bytes == 1_000


def test_options_override_a_profile_and_a_profile_overrides_the_environment(profiles, monkeypatch):
    profiles.write_text(PROFILE, encoding="utf-8")
    monkeypatch.setenv("NAMESRV_ADDR", "environment:1")
    monkeypatch.setenv("ROCKETPOLL_ACCESS_KEY", "other")
    monkeypatch.setenv("ROCKETPOLL_SECRET_KEY", "other")
    access = read_options({"profile": "prod", "topic": "T", "secretKey": "mine"}).access
    assert access.name_servers == ("prod:9876",)
    assert access.credentials == Credentials("billing", "mine")
    assert read_options({"profile": "prod", "topic": "T", "tls": "false"}).access.tls is None


def test_access_keys_come_from_the_environment_without_options(profiles, monkeypatch):
    monkeypatch.setenv("ROCKETPOLL_ACCESS_KEY", "billing")
    monkeypatch.setenv("ROCKETPOLL_SECRET_KEY", "s3cr3t")
    monkeypatch.setenv("ROCKETPOLL_TLS_KEY_PASSWORD", "rocketpoll")
    assert read_options(NEEDED).access.credentials == Credentials("billing", "s3cr3t")
    assert read_options({**NEEDED, "tls": "true"}).access.tls == TlsSettings()
    locked = read_options({**NEEDED, "tls": "true", **LOCKED}).access.tls
    assert locked.key_password == "rocketpoll"  # noqa: S105  # the password of the test key
    monkeypatch.delenv("ROCKETPOLL_SECRET_KEY")
    with pytest.raises(OptionError, match="required together with ROCKETPOLL_ACCESS"):
        read_options(NEEDED)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "profile: .* has no section \\[prod\\]. Add it, or use one of: none"),
        (
            "[prod]\nnamesrv = a\n",
            r"profile \(prod\): needed host:port, for example localhost:9876",
        ),
        ("[prod]\ntls-ca-file = /no/ca.pem\n", r"profile \(prod\): /no/ca.pem cannot be read"),
        ("[prod]\naccess-key = x\n", r"secretKey: it is required together with profile \(prod\)"),
        ("[prod]\nacess-key = x\n", "has the unknown setting .acess-key.. Did you mean access-key"),
    ],
)
def test_wrong_profile_is_refused_as_an_option(profiles, text, said):
    profiles.write_text(text, encoding="utf-8")
    given = {"topic": "T", "profile": "prod"}
    with pytest.raises(OptionError, match=f"^option {said}" if said[0] != "h" else said):
        read_options(given if "namesrv" in text else {**NEEDED, **given})


def test_profile_that_others_can_read_is_warned_of(profiles, caplog):
    profiles.write_text(PROFILE, encoding="utf-8")
    profiles.chmod(0o644)
    read_options({"profile": "prod", "topic": "T"})
    [line] = lines_of(caplog, "rmq_spark")
    assert line == f"other users can read the secrets in {profiles}. Run chmod 600 {profiles}"
