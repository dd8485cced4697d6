"""Files of TLS settings: errors name setting, path, cause and remedy."""

import os
import shutil
import ssl
import subprocess

import pytest
from support.servers.tls import CERTIFICATES, certificate

from rocketpoll.broker.server.tls.context import TlsFileRejected, load_context
from rocketpoll.broker.settings.settings import config_of

CERT, KEY, TRUST = ("tls.server.certPath", "tls.server.keyPath", "tls.server.trustCertPath")
PASSWORD = "tls.server.keyPassword"  # noqa: S105  # the setting's name


def settings_with(**changed):
    """Return valid settings, except the given ones."""
    texts = {CERT: certificate("server.pem"), KEY: certificate("server.key")}
    return config_of({**texts, **{name: str(value) for name, value in changed.items()}}).tls


def rejection_of(**changed):
    with pytest.raises(TlsFileRejected) as raised:
        load_context(settings_with(**changed))
    return str(raised.value)


def written(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def pem(name):
    return (CERTIFICATES / name).read_text()


def test_valid_tls_files_make_a_context_of_tls_1_2_and_newer():
    loaded = load_context(settings_with())
    assert loaded.context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert not loaded.context.options & ssl.OP_NO_TICKET
    assert loaded.context.verify_mode == ssl.CERT_NONE
    [file] = loaded.files
    assert file.setting == CERT
    assert (file.not_before, file.not_after) == (1_577_836_800, 4_733_510_400)


def test_tls_key_may_be_in_the_certificate_file():
    load_context(config_of({CERT: certificate("client.pem")}).tls)


def test_key_with_a_password_is_decrypted():
    both = {CERT: certificate("client.crt"), KEY: certificate("locked.key")}
    load_context(settings_with(**both, **{PASSWORD: "rocketpoll"}))


def test_tls_context_ignores_text_around_certificates(tmp_path):
    path = written(tmp_path / "c.pem", f"Größe: über alles\n{pem('server.pem')}\nEnde ü\n")
    load_context(settings_with(**{CERT: path}))


@pytest.mark.parametrize(
    ("need", "mode"), [("optional", ssl.CERT_OPTIONAL), ("require", ssl.CERT_REQUIRED)]
)
def test_tls_context_verifies_clients_as_configured(need, mode):
    more = {
        "tls.server.authClient": "true",
        "tls.server.need.client.auth": need,
        TRUST: certificate("ca.pem"),
    }
    loaded = load_context(settings_with(**more))
    assert loaded.context.verify_mode == mode
    assert [file.setting for file in loaded.files] == [CERT, TRUST]


@pytest.mark.parametrize("setting", [CERT, KEY, TRUST])
def test_unreadable_tls_files_are_named(setting, tmp_path):
    more = {
        TRUST: certificate("ca.pem"),
        "tls.server.authClient": "true",
        "tls.server.need.client.auth": "require",
    }
    missing, pipe, large = tmp_path / "missing.pem", tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe)
    written(large, bytes((1 << 20) + 1))
    for path, cause in (
        (missing, "the file does not exist. Correct the path"),
        (tmp_path, "it is a directory. Name a file in it"),
        (pipe, "it is not a regular file"),
        (large, "it has over 1048576 bytes"),
        (written(tmp_path / "empty", b""), "it holds no "),
        (written(tmp_path / "der", bytes(range(256))), "it holds no "),
    ):
        assert rejection_of(**{**more, setting: path}).startswith(f"{setting}={path}: {cause}")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_tls_file_without_read_permission_is_named(tmp_path):
    path = written(tmp_path / "key.pem", pem("server.key"))
    path.chmod(0)
    assert "the broker's user may not read it" in rejection_of(**{KEY: path})


def test_tls_file_path_below_a_file_is_named(tmp_path):
    path = written(tmp_path / "a", b"") / "b"
    assert rejection_of(**{KEY: path}) == f"{KEY}={path}: it cannot be read: Not a directory"


def test_permission_error_names_the_remedy(tmp_path, monkeypatch):
    """The error is simulated, because tests may run as root."""
    path = written(tmp_path / "key.pem", pem("server.key"))
    opened = type(path).open

    def refuse(self, *arguments):
        if self == path:
            raise PermissionError(13, "Permission denied")
        return opened(self, *arguments)

    monkeypatch.setattr(type(path), "open", refuse)
    assert "the broker's user may not read it. Change the owner" in rejection_of(**{KEY: path})


def test_damaged_certificate_is_named(tmp_path):
    text = pem("server.pem")
    middle = len(text) // 2
    for damaged in (
        text[:middle] + "!" + text[middle + 1 :],
        text[: middle - 65] + text[middle:],
        text.replace("MII", "MIX", 1),
    ):
        path = written(tmp_path / "c.pem", damaged)
        said = rejection_of(**{CERT: path})
        assert said.startswith(f"{CERT}={path}: a certificate in it is damaged (")
        assert said.endswith(". Copy the file again")


def test_key_of_another_certificate_is_named():
    for other in ("client.key", "ed25519.key"):
        path = certificate(other)
        assert rejection_of(**{KEY: path}) == (
            f"{KEY}={path}: it is not the key of the certificate in {certificate('server.pem')}. "
            "Name the key that the certificate was made with"
        )


def test_wrong_or_missing_tls_key_password_names_the_setting_without_showing_it():
    both = {CERT: certificate("client.crt"), KEY: certificate("locked.key")}
    assert rejection_of(**both).endswith("is encrypted. Set tls.server.keyPassword")
    said = rejection_of(**both, **{PASSWORD: "open sesame"})
    assert "tls.server.keyPassword does not decrypt the private key" in said
    assert "sesame" not in said
    long = rejection_of(**both, **{PASSWORD: "x" * 2000})
    assert "tls.server.keyPassword" in long or "cannot be loaded" in long


def test_damaged_key_is_named(tmp_path):
    lines = pem("server.key").splitlines()
    path = written(tmp_path / "k.pem", "\n".join([lines[0], lines[1][::-1], *lines[2:]]))
    said = rejection_of(**{KEY: path})
    assert said.startswith(f"{KEY}={path}: the private key is damaged (")


def test_certificate_without_a_key_in_its_file_asks_for_the_setting(tmp_path):
    with pytest.raises(TlsFileRejected, match=r"it holds no private key .*\. Set tls\.server\.key"):
        load_context(config_of({CERT: certificate("server.pem")}).tls)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a weak certificate with openssl")
def test_weak_tls_certificate_is_named(tmp_path):
    subject = ["-subj", "/CN=x", "-keyout", "k.pem", "-out", "c.pem"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:512", "-nodes", *subject]
    if subprocess.run(made, cwd=tmp_path, capture_output=True, check=False).returncode:
        pytest.skip("openssl makes none")
    said = rejection_of(**{CERT: tmp_path / "c.pem", KEY: tmp_path / "k.pem"})
    assert "too weak for this machine's OpenSSL" in said


def test_validity_faults_and_warnings_name_times():
    [file] = load_context(settings_with()).files
    day = 86_400
    assert file.fault(file.not_before) is None
    assert file.fault(file.not_after) is None
    early = file.fault(file.not_before - 1)
    assert early is not None
    assert "is valid from 2020-01-01 00:00:00 UTC on" in early
    assert "this machine's clock says 2019-12-31 23:59:59 UTC. Correct the clock" in early
    late = file.fault(file.not_after + 1)
    assert late is not None
    assert "expired at 2120-01-01 00:00:00 UTC" in late
    assert "Renew it and send SIGHUP" in late
    assert file.warning(file.not_after - 14 * day - 1) is None
    assert "in 14.0 days. Renew it" in file.warning(file.not_after - 14 * day)
