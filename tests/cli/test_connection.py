"""Cluster connection settings: options override a profile, which overrides the environment."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import click
import pytest
from support.programs.cli_commands import EVERY
from support.servers.tls import certificate

from rmq_spark.cli.shell.command_tree import CommandWithExample
from rmq_spark.cli.shell.connection import (
    PROFILE_KEYS,
    ClusterAccess,
    connection_options,
    read_profile,
)

PROFILES = """
[prod]
namesrv = prod-1:9876;prod-2:9876
access-key = operator
secret-key = 100%secret
[secure]
namesrv = secure:9876
tls = yes
tls-verify = false
"""


@pytest.fixture
def access_of(monkeypatch, tmp_path):
    """The access that a command gets with some options."""
    for variable in ("NAMESRV_ADDR", "ROCKETPOLL_ACCESS_KEY", "ROCKETPOLL_SECRET_KEY"):
        monkeypatch.delenv(variable, raising=False)
    path = tmp_path / "profiles.ini"
    path.write_text(PROFILES, encoding="utf-8")
    monkeypatch.setenv("ROCKETPOLL_PROFILES", str(path))
    command = click.command(cls=CommandWithExample)(connection_options(lambda access: access))

    def of(*options):
        with command.make_context("command", list(options)) as context:
            return command.invoke(context)

    return of


def test_default_connection_is_localhost(access_of):
    assert access_of().name_servers == "127.0.0.1:9876"


def test_connection_option_overrides_profile_and_environment(access_of, monkeypatch):
    monkeypatch.setenv("NAMESRV_ADDR", "environment:1")
    assert access_of().name_servers == "environment:1"
    assert access_of("--profile", "prod").name_servers == "prod-1:9876;prod-2:9876"
    assert access_of("--profile", "prod", "--namesrv", "option:1").name_servers == "option:1"


def test_empty_namesrv_option_is_refused(access_of):
    with pytest.raises(click.UsageError, match=r"--namesrv is empty\. Give HOST:PORT"):
        access_of("--namesrv", "")


def test_profile_file_with_a_byte_order_mark_is_read(access_of, monkeypatch, tmp_path):
    path = tmp_path / "marked.ini"
    path.write_text(PROFILES.lstrip(), encoding="utf-8-sig")
    monkeypatch.setenv("ROCKETPOLL_PROFILES", str(path))
    assert access_of("--profile", "prod").name_servers == "prod-1:9876;prod-2:9876"


def test_secret_key_comes_from_profile_or_environment(access_of, monkeypatch):
    assert access_of("--profile", "prod").settings["secret-key"] == "100%secret"
    monkeypatch.setenv("ROCKETPOLL_SECRET_KEY", "of the environment")
    access = access_of("--access-key", "operator")
    assert access.settings["secret-key"] == "of the environment"
    assert access.instance().connections is not None


def test_keys_belong_together(access_of):
    with pytest.raises(click.UsageError, match="--secret-key is missing"):
        access_of("--access-key", "operator").instance()


def test_certificates_mean_tls(access_of, monkeypatch):
    trusting = access_of("--tls-ca-file", certificate("ca.pem"))
    assert trusting.instance().connections is not None
    assert trusting._tls().ca is not None
    assert access_of("--profile", "secure")._tls().verify is False
    assert access_of("--profile", "secure", "--no-tls")._tls() is None
    monkeypatch.setenv("ROCKETPOLL_TLS_KEY_PASSWORD", "of another cluster")
    assert access_of()._tls() is None
    assert access_of("--tls")._tls().key_password is None
    with pytest.raises(click.UsageError, match=r"--tls-ca-file: .* cannot be read"):
        access_of("--tls-ca-file", "/nothing").instance()


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
        ("namesrv = a:1\n", "is not an INI file"),
        (b"[prod]\nnamesrv = \xff\n", "is not an INI file"),
    ],
)
def test_invalid_profile_is_refused_with_the_reason(monkeypatch, tmp_path, text, why):
    path = tmp_path / "profiles.ini"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.setenv("ROCKETPOLL_PROFILES", str(path))
    with pytest.raises(click.UsageError) as raised:
        read_profile("prod")
    assert why in raised.value.message


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
    monkeypatch, tmp_path, capsys, mode, text, is_told
):
    path = tmp_path / "profiles.ini"
    path.write_text(f"[prod]\n{text}\n", encoding="utf-8")
    path.chmod(mode)
    monkeypatch.setenv("ROCKETPOLL_PROFILES", str(path))
    read_profile("prod")
    [*said] = capsys.readouterr().err.splitlines()
    warning = f"rocketpoll: other users can read the secrets in {path}. Run chmod 600 {path}"
    assert said == [warning] * is_told


def test_profile_paths_may_start_with_the_home_directory(monkeypatch, tmp_path):
    path = tmp_path / "profiles.ini"
    path.write_text("[prod]\ntls-ca-file = ~/ca.pem\n", encoding="utf-8")
    monkeypatch.setenv("ROCKETPOLL_PROFILES", str(path))
    monkeypatch.setenv("HOME", "/home/ada")
    assert read_profile("prod") == {"tls-ca-file": "/home/ada/ca.pem"}


def test_profiles_are_where_settings_of_users_are(monkeypatch, tmp_path):
    monkeypatch.delenv("ROCKETPOLL_PROFILES", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(click.UsageError, match=r"cannot read .*rocketpoll/profiles\.ini"):
        read_profile("prod")
    (tmp_path / "rocketpoll").mkdir()
    (tmp_path / "rocketpoll" / "profiles.ini").write_text(PROFILES, encoding="utf-8")
    assert set(read_profile("prod")) < set(PROFILE_KEYS)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_account_without_home_directory_gets_advice_on_profiles():
    program = (
        "import os\n"
        "from rmq_spark.cli.shell.connection import read_profile\n"
        "os.environ.clear()\n"
        "os.setuid(54321)\n"
        "read_profile('prod')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "click.exceptions.UsageError: --profile prod: this account has no home" in done.stderr


def test_cluster_access_objects_compare_by_value():
    assert ClusterAccess({"namesrv": "a:1"}) == ClusterAccess({"namesrv": "a:1"})


STARTS = {
    "nothing": (),
    "name servers": ("--namesrv", "a:1;b:2"),
    "profile": ("--profile", "secure"),
    "profile with keys": ("--profile", "prod"),
    "profile and an option": ("--profile", "prod", "--namesrv", "option:1"),
    "profile without name servers": ("--profile", "only-tls"),
    "keys": ("--namesrv", "a:1", "--access-key", "operator", "--secret-key", "hidden-1"),
    "TLS": ("--namesrv", "a:1", "--tls"),
    "no TLS": ("--profile", "secure", "--no-tls"),
    "files": ("--tls-ca-file", "ca.pem", "--tls-cert-file", "it's.pem", "--tls-key-file", "k.pem"),
    "odd TLS": ("--no-tls-verify", "--tls-server-name", "broker.local"),
}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("variables", [{}, {"NAMESRV_ADDR": "environment:1"}])
def test_printed_connection_options_reach_the_same_cluster_from_another_shell(
    access_of, monkeypatch, tmp_path, start, variables
):
    profiles = tmp_path / "profiles.ini"
    profiles.write_text(f"{PROFILES}[only-tls]\ntls = yes\n", encoding="utf-8")
    for name, value in {**variables, "ROCKETPOLL_TLS_KEY_PASSWORD": "hidden-2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    access = access_of(*STARTS[start])
    line = access.command("group seek", "--", options=["--to", "-10"])
    assert "hidden" not in line
    monkeypatch.setenv("NAMESRV_ADDR", "other:9")
    monkeypatch.delenv("ROCKETPOLL_TLS_KEY_PASSWORD")
    monkeypatch.delenv("ROCKETPOLL_PROFILES")
    monkeypatch.chdir("/")
    words = shlex.split(line)
    if words[0].startswith("ROCKETPOLL_PROFILES="):
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    assert words[:5] == ["rocketpoll", "group", "seek", "--to", "-10"]
    assert words[-2:] == ["--", "--"]
    reached = access_of(*words[5:-2])
    assert reached.name_servers == access.name_servers
    for key in {*PROFILE_KEYS} - {"namesrv", "access-key", "secret-key", "tls-key-password"}:
        expected = access.settings.get(key)
        if key.endswith("-file") and expected is not None:
            expected = str(tmp_path / expected)
        assert reached.settings.get(key) == expected, key
    if not access.needs_credentials:
        assert reached.settings.get("secret-key") == access.settings.get("secret-key")
    assert access_of(*STARTS["keys"]).needs_credentials


def test_commands_in_a_printed_sentence_get_the_clusters_options(access_of):
    access = access_of("--namesrv", "a:1;b:2")
    text = "rocketpoll topic list shows all, rocketpoll top rates, rocketpoll broker starts one"
    assert access.complete_commands(text) == (
        "rocketpoll topic list --namesrv 'a:1;b:2' shows all, "
        "rocketpoll top --namesrv 'a:1;b:2' rates, rocketpoll broker starts one"
    )


@pytest.mark.parametrize("name", [name for name, verb in EVERY.items() if name != "broker"])
def test_suggested_command_contains_the_connection_options(access_of, name):
    has_connection = any(each.name == "namesrv" for each in EVERY[name].params)
    completed = access_of("--namesrv", "a:1").complete_commands(f"see rocketpoll {name} for more")
    if name in ("doctor", "checkpoint", "demo"):  # no sentence names these
        return
    assert ("--namesrv a:1" in completed) is has_connection
