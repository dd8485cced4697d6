"""TLS settings are read once, checked by name, and never show a secret."""

import pickle
from pathlib import Path

import pytest
from support.servers.tls import certificate

from rmq_spark.client.errors import TlsRejected
from rmq_spark.client.transport.tls.settings import TlsSettings

CA = {"ca_file": certificate("ca.pem")}
CLIENT = {"cert_file": certificate("client.crt"), "key_file": certificate("client.key")}
LOCKED = {"cert_file": certificate("client.crt"), "key_file": certificate("locked.key")}


def test_tls_files_are_read_once_and_pickled_with_the_settings():
    settings = TlsSettings.of_files(
        **CA, **LOCKED, key_password="rocketpoll", server_name="brokers"
    )
    again = pickle.loads(pickle.dumps(settings))  # noqa: S301  # as Spark does
    assert again == settings
    assert hash(again) == hash(settings)
    assert again.ca.text == Path(CA["ca_file"]).read_text(encoding="ascii")


def test_tls_settings_repr_shows_no_secrets():
    shown = repr(TlsSettings.of_files(**CA, **LOCKED, key_password="s3cr3t"))
    assert "s3cr3t" not in shown
    assert "BEGIN" not in shown
    assert "locked.key" in shown
    assert "verify=True" in shown


def test_text_between_pem_blocks_is_ignored(tmp_path):
    block = Path(CA["ca_file"]).read_text(encoding="ascii")
    (tmp_path / "ca.pem").write_text(f"# Autorité\n{block}Issuer: x\n{block}", encoding="utf-8")
    assert TlsSettings.of_files(ca_file=str(tmp_path / "ca.pem")).ca.text == block * 2


def test_binary_ca_file_has_no_certificate(tmp_path):
    damaged = Path(CA["ca_file"]).read_bytes().replace(b"M", b"\xff", 1)
    (tmp_path / "ca.pem").write_bytes(damaged)
    with pytest.raises(TlsRejected, match="contains no certificate"):
        TlsSettings.of_files(ca_file=str(tmp_path / "ca.pem"))


def test_tls_key_may_be_in_the_certificate_file():
    settings = TlsSettings.of_files(cert_file=certificate("client.pem"))
    assert settings.key is None
    assert settings.certificate.has_block("PRIVATE KEY")


@pytest.mark.parametrize(
    ("given", "setting", "says"),
    [
        ({"ca_file": "/nowhere/ca.pem"}, "ca_file", "/nowhere/ca.pem cannot be read: No such file"),
        ({"cert_file": "/"}, "cert_file", "/ cannot be read: Is a directory"),
        ({**CLIENT, "key_file": "\0"}, "key_file", "cannot be read"),
        (
            {"ca_file": certificate("server.key")},
            "ca_file",
            "contains no certificate: it must be a text file",
        ),
        ({"ca_file": certificate("make.sh")}, "ca_file", "contains no certificate"),
        ({**CLIENT, "key_file": certificate("ca.pem")}, "key_file", "contains no private key"),
        ({"key_file": certificate("client.key")}, "cert_file", "together with its key"),
        ({"key_password": "x"}, "cert_file", "together with its key's password"),
        (
            {"cert_file": certificate("client.crt")},
            "key_file",
            "client.crt contains no private key",
        ),
        (LOCKED, "key_password", "the key in .*locked.key is encrypted"),
        ({**CA, "verify": False}, "ca_file", "Remove one of the two"),
        ({"ca_file": ""}, "ca_file", "needed the path of a PEM file"),
        ({"ca_file": "\ud800"}, "ca_file", r"\\ud800 cannot be read"),
        (
            {**LOCKED, "key_password": "s3cr3t\ud800"},
            "key_password",
            "needed text that UTF-8 can encode",
        ),
    ],
)
def test_contradicting_tls_settings_are_refused(given, setting, says):
    with pytest.raises(TlsRejected, match=says) as raised:
        TlsSettings.of_files(**given)
    assert raised.value.setting == setting


@pytest.mark.parametrize("verify", [None, 0, 1, "", "false", [], float("nan")])
def test_tls_verify_setting_must_be_a_boolean(verify):
    needed = "verify: needed True or False, found .*; for example: True"
    with pytest.raises(TypeError, match=needed):
        TlsSettings.of_files(verify=verify)
    with pytest.raises(TypeError, match=needed):
        TlsSettings(verify=verify)


@pytest.mark.parametrize("setting", ["ca_file", "cert_file", "key_file"])
@pytest.mark.parametrize("path", [b"ca.pem", 5, True, ["ca.pem"]])
def test_tls_file_setting_of_wrong_type_is_refused_by_name(setting, path):
    with pytest.raises(
        TypeError, match=f"{setting}: needed the path of a PEM file .*; for example: "
    ):
        TlsSettings.of_files(**{setting: path})


def test_tls_file_may_be_given_as_a_path_object():
    given = TlsSettings.of_files(ca_file=Path(CA["ca_file"]))
    assert given == TlsSettings.of_files(**CA)


@pytest.mark.parametrize("setting", ["ca", "certificate", "key", "key_password", "server_name"])
@pytest.mark.parametrize("found", [b"s3cr3t", 5, ["s3cr3t"]])
def test_tls_setting_of_wrong_type_is_refused_by_name(setting, found):
    with pytest.raises(TypeError, match=f"{setting}: needed .*, found .*; for example: ") as raised:
        TlsSettings(**{setting: found})
    assert setting != "key_password" or "s3cr3t" not in str(raised.value)


def test_tls_file_name_in_place_of_a_pem_is_refused():
    with pytest.raises(
        TypeError, match=r"ca: needed a Pem.*, found str .*of_files\(ca_file='ca.pem'\)"
    ):
        TlsSettings(ca="ca.pem")
