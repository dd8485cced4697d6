"""Cluster connection settings: options override a profile, which overrides the environment."""

import shlex

import click
import pytest
from support.programs.cli_commands import EVERY
from support.servers.tls import certificate

from rmq_spark.cli.shell.command_tree import CommandWithExample
from rmq_spark.cli.shell.connection import (
    ClusterAccess,
    connection_options,
)
from rmq_spark.client.profiles import PROFILE_KEYS

PROFILES = """
[prod]
namesrv = prod-1:9876;prod-2:9876
access-key = operator
secret-key = 100%secret
[secure]
namesrv = secure:9876
tls = yes
tls-verify = false
[in-eu]
namesrv = a:1
namespace = eu
"""


@pytest.fixture
def access_of(monkeypatch, tmp_path):
    """Return a function that returns the access settings of a command with some options."""
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


def test_namespace_comes_from_option_profile_or_environment(access_of, monkeypatch):
    assert not access_of().instance().namespace
    assert access_of("--profile", "in-eu").instance().namespace.name == "eu"
    assert access_of("--profile", "in-eu", "--namespace", "us").instance().namespace.name == "us"
    monkeypatch.setenv("ROCKETPOLL_NAMESPACE", "asia")
    access = access_of()
    assert access.instance().namespace.name == "asia"
    assert "--namespace asia" in access.command("topic list")


@pytest.mark.parametrize("name", ["", "a%b", "a b"])
def test_name_that_is_no_namespace_is_refused(access_of, name):
    with pytest.raises(click.UsageError, match=r"--namespace .* is not a valid namespace"):
        access_of("--namespace", name)


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


def test_access_key_without_secret_key_is_refused(access_of):
    with pytest.raises(click.UsageError, match="--secret-key is missing"):
        access_of("--access-key", "operator").instance()


def test_certificate_options_turn_tls_on(access_of, monkeypatch):
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


def test_invalid_profile_is_wrong_usage(access_of):
    with pytest.raises(click.UsageError, match=r"--profile prodd: .* has no section \[prodd\]"):
        access_of("--profile", "prodd")


def test_cluster_access_objects_compare_by_value():
    assert ClusterAccess({"namesrv": "a:1"}) == ClusterAccess({"namesrv": "a:1"})


STARTS = {
    "nothing": (),
    "name servers": ("--namesrv", "a:1;b:2"),
    "profile": ("--profile", "secure"),
    "current profile": (),
    "profile with keys": ("--profile", "prod"),
    "profile and an option": ("--profile", "prod", "--namesrv", "option:1"),
    "namespace": ("--namesrv", "a:1", "--namespace", "eu"),
    "profile with a namespace": ("--profile", "in-eu"),
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
    if start == "current profile":
        monkeypatch.setenv("ROCKETPOLL_PROFILES", str(profiles))
        (tmp_path / "profiles.ini.current").write_text("prod\n", encoding="utf-8")
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
    of_spark = {"registry-user", "registry-password"}
    secret = {"namesrv", "access-key", "secret-key", "tls-key-password"}
    for key in {*PROFILE_KEYS} - secret - of_spark:
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
    assert "".join(part for part, _ in access.split_commands(text)) == (
        "rocketpoll topic list --namesrv 'a:1;b:2' shows all, "
        "rocketpoll top --namesrv 'a:1;b:2' rates, rocketpoll broker starts one"
    )


def test_split_commands_marks_only_whole_commands_of_a_sentence(access_of):
    def commands(text):
        parts = access_of("--namesrv", "a:1").split_commands(text)
        return [part for part, is_command in parts if is_command]

    created = "rocketpoll topic create {} --namesrv a:1"
    for text, found in (
        ("run rocketpoll topic list --sizes.", ["rocketpoll topic list --sizes --namesrv a:1"]),
        ("see rocketpoll top, or rocketpoll tail orders -n 1", ["rocketpoll top --namesrv a:1"]),
        ("with rocketpoll topic create orders", [created.format("orders")]),
        ("with rocketpoll topic create a;b.", []),
        ("with rocketpoll topic create $(x).", [created.format("'$(x)'")]),
        ("with rocketpoll group list to see all", ["rocketpoll group list --namesrv a:1"]),
        ("first rocketpoll user create NAME, then go on", []),
    ):
        assert commands(text) == found, text


@pytest.mark.parametrize("name", [name for name, verb in EVERY.items() if name != "broker"])
def test_suggested_command_contains_the_connection_options(access_of, name):
    has_connection = any(each.name == "namesrv" for each in EVERY[name].params)
    parts = list(access_of("--namesrv", "a:1").split_commands(f"see rocketpoll {name} for more"))
    # their sentences have no variable part
    if name in ("doctor", "checkpoint", "demo", "profile create"):
        return
    assert any("--namesrv a:1" in part for part, _ in parts) is has_connection


WITHOUT_A_CLUSTER = {
    name
    for name in EVERY
    if name.startswith(("broker", "demo", "archive", "completion", "store", "profile"))
}


@pytest.mark.parametrize("name", sorted(EVERY.keys() - WITHOUT_A_CLUSTER))
def test_every_verb_that_asks_a_cluster_takes_a_profile(name):
    """The checkpoint verbs and the doctor take one as well."""
    options = {option for each in EVERY[name].params for option in each.opts}
    assert "--profile" in options
