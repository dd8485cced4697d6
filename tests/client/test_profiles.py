"""Profiles of connection settings: values that are read or refused, and the file's permissions."""

import os
import subprocess
import sys

import pytest

from rmq_spark.client.errors import ProfileRejected
from rmq_spark.client.profiles import PROFILE_KEYS, read_profile

PROFILES = (
    "[prod]\nnamesrv = prod-1:9876\naccess-key = operator\nsecret-key = 100%secret\ntls = yes\n"
)


def test_profile_has_the_settings_of_its_section(monkeypatch, tmp_path):
    path = tmp_path / "profiles.ini"
    path.write_text(f"{PROFILES}[other]\nnamesrv = other:1\n", encoding="utf-8")
    monkeypatch.setenv("ROCKETPOLL_PROFILES", str(path))
    assert read_profile("prod").settings == {
        "namesrv": "prod-1:9876",
        "access-key": "operator",
        "secret-key": "100%secret",
        "tls": True,
    }
    assert "100%secret" not in repr(read_profile("prod"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[other]\n", "has no section [prod]. Add it, or use one of: other"),
        (
            "[prod]\nnamesvr = a:1\n",
            '[prod] has the unknown setting "namesvr". Did you mean namesrv?',
        ),
        ("[prod]\nx = 1\n", "Use one of namesrv, access-key"),
        ("[prod]\ntls = maybe\n", "tls = maybe. Write true or false"),
        ("[prod]\nnamesrv =\n", "has no value for namesrv"),
        ("[prod]\n" + "#" * (1 << 20), "characters. Point ROCKETPOLL_PROFILES at"),
        ("secret-key = s3cr3t\n", "is not an INI file: line 1 stands before any section"),
        ("[prod]\nsecret-key s3cr3t\n", "is not an INI file: line 2 has no ="),
        ("[prod]\nnamespace = a%b\n", "namespace = a%b. Write a name of letters"),
        ("[prod]\nmax-body-bytes = many\n", "max-body-bytes = many. Write a number from 1 to"),
        (b"[prod]\nnamesrv = \xff\n", "is not an INI file"),
    ],
)
def test_invalid_profile_is_refused_with_the_reason(monkeypatch, tmp_path, text, why):
    path = tmp_path / "profiles.ini"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.setenv("ROCKETPOLL_PROFILES", str(path))
    with pytest.raises(ProfileRejected) as raised:
        read_profile("prod")
    assert why in str(raised.value)
    assert "s3cr3t" not in str(raised.value)


@pytest.mark.parametrize(
    ("mode", "text", "is_told"),
    [
        (0o600, "secret-key = s", False),
        (0o640, "secret-key = s", True),
        (0o604, "tls-key-password = s", True),
        (0o644, "access-key = operator", False),
    ],
)
def test_profile_file_with_readable_secrets_is_warned_of(
    monkeypatch, tmp_path, mode, text, is_told
):
    path = tmp_path / "profiles.ini"
    path.write_text(f"[prod]\n{text}\n", encoding="utf-8")
    path.chmod(mode)
    monkeypatch.setenv("ROCKETPOLL_PROFILES", str(path))
    warning = f"other users can read the secrets in {path}. Run chmod 600 {path}"
    assert read_profile("prod").warning == (warning if is_told else None)


def test_profile_paths_may_start_with_the_home_directory(monkeypatch, tmp_path):
    path = tmp_path / "profiles.ini"
    path.write_text("[prod]\ntls-ca-file = ~/ca.pem\n", encoding="utf-8")
    monkeypatch.setenv("ROCKETPOLL_PROFILES", str(path))
    monkeypatch.setenv("HOME", "/home/ada")
    assert read_profile("prod").settings == {"tls-ca-file": "/home/ada/ca.pem"}


def test_profiles_file_is_in_the_users_configuration_directory(monkeypatch, tmp_path):
    monkeypatch.delenv("ROCKETPOLL_PROFILES", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(ProfileRejected, match=r"cannot read .*rocketpoll/profiles\.ini"):
        read_profile("prod")
    (tmp_path / "rocketpoll").mkdir()
    (tmp_path / "rocketpoll" / "profiles.ini").write_text(PROFILES, encoding="utf-8")
    assert set(read_profile("prod").settings) < set(PROFILE_KEYS)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_account_without_home_directory_gets_advice_on_profiles():
    program = (
        "import os\n"
        "from rmq_spark.client.profiles import read_profile\n"
        "os.environ.clear()\n"
        "os.setuid(54321)\n"
        "read_profile('prod')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "ProfileRejected: profile prod: this account has no home" in done.stderr
