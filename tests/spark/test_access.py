"""Options for TLS and access to brokers, and their validation at `load()`."""

import pickle

import pytest
from support.servers.tls import certificate
from support.suite.log_records import lines_of

from rmq_spark.client.transport.tls.settings import TlsSettings
from rmq_spark.spark.brokers.fan_out import instance_for
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options.options import read_options, write_options

CA, CERTIFICATE = certificate("ca.pem"), certificate("client.crt")
NEEDED = {"namesrvAddr": "a:1", "topic": "T"}
LOCKED = {"tlsCertFile": CERTIFICATE, "tlsKeyFile": certificate("locked.key")}


@pytest.mark.parametrize("parse", [read_options, write_options])
def test_files_are_read_on_the_driver_and_travel_to_tasks(parse):
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
    again = pickle.loads(pickle.dumps(options))  # noqa: S301  # what Spark does
    assert again == options
    assert hash(again.access) == hash(options.access)  # by which tasks find their client
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
            "tlsCaFile: it has no effect without tls=true: set that, or leave this out",
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
        ({"tls": "true", "tlsCertFile": CERTIFICATE}, "tlsKeyFile: it is required, as "),
        ({"tls": "true", **LOCKED}, "tlsKeyPassword: it is required, as the key in "),
        (
            {"tls": "true", **LOCKED, "tlsKeyPassword": "s3cr3t"},
            "tlsKeyPassword: it does not decrypt the key",
        ),
        (
            {"tls": "true", "tlsServerName": "."},
            "tlsServerName: no certificate can have the name '.'",
        ),
    ],
)
def test_invalid_tls_option_is_refused_by_name(given, said):
    with pytest.raises(OptionError) as raised:
        read_options({**NEEDED, **given})
    assert str(raised.value).startswith(f"option {said}")
    assert "s3cr3t" not in str(raised.value)
