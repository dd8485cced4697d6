"""``rocketpoll profile``: commands create, select and delete profiles, in a file with comments."""

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.cli.access.profile_command import with_section, without_section
from rmq_spark.client.profiles import PROFILE_KEYS, parse_profile

KEY = "correct-horse-battery"
TEXT = """\
# clusters of the shop

[prod]
# the old one
namesrv = a:9876
secret-key = correct-horse-battery
access-key = operator
tls-key-password = correct-horse-battery

; for tests
[test]
namesrv = b:9876
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "settings" / "profiles.ini"
    monkeypatch.setenv("ROCKETPOLL_PROFILES", str(path))
    return path


@pytest.fixture
def filled(file):
    file.parent.mkdir()
    file.write_text(TEXT, encoding="utf-8")
    return file


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_profile_is_created_used_shown_and_deleted_by_verbs(run, file, cluster, monkeypatch):
    monkeypatch.delenv("NAMESRV_ADDR")
    assert run("profile", "list").err.startswith("no profiles. Create one with rocketpoll profile")
    made = run("profile", "create", "local", "--namesrv", cluster.name_server)
    assert made.out == f"created local in {file}\n"
    assert (mode(file), mode(file.parent)) == (0o600, 0o700)
    assert run("profile", "show").code == 2  # none is selected
    assert run("profile", "use", "local").out == f"using local: {cluster.name_server}\n"
    assert run("profile", "show", "-o", "json").json["namesrv"] == cluster.name_server
    [row] = run("profile", "list", "-o", "json").json
    assert (row["profile"], row["current"]) == ("local", True)
    assert run("cluster", "info", "-o", "json").json[0]["address"] == cluster.address
    assert run("profile", "delete", "local").code == 2  # no terminal confirms it
    assert run("profile", "delete", "local", "--yes").out == "deleted local\n"
    assert run("profile", "show").code == 2
    assert file.read_text() == ""


def test_address_of_an_option_or_the_environment_has_precedence(run, file, cluster, monkeypatch):
    run("profile", "create", "away", "--namesrv", "127.0.0.1:1", "--use")
    assert run("topic", "list").code == 0  # uses NAMESRV_ADDR
    monkeypatch.delenv("NAMESRV_ADDR")
    assert "127.0.0.1:1" in run("topic", "list").err
    assert run("topic", "list", "--namesrv", cluster.name_server).code == 0
    run("profile", "create", "here", "--namesrv", cluster.name_server)
    assert run("topic", "list", "--profile", "here").code == 0
    assert run("profile", "use", "--none").out == "using no profile\n"
    assert not file.with_name("profiles.ini.current").exists()


def test_current_profile_that_is_gone_is_an_error_with_the_fix(run, filled, monkeypatch):
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    run("profile", "use", "test")
    filled.write_text("")
    ran = run("topic", "list")
    assert ran.code == 1
    assert "the current profile test" in ran.err
    assert "rocketpoll profile use" in ran.err


def test_secrets_are_read_from_stdin_and_never_printed(run, file):
    line = ("profile", "create", "prod", "--namesrv", "a:9876", "--access-key", "operator")
    refused = run(*line)
    assert (refused.code, file.exists()) == (2, False)
    assert "Add --secret-key-stdin" in refused.err
    outputs = [run(*line, "--secret-key-stdin", stdin=f"{KEY}\n".encode())]
    assert parse_profile("prod", file.read_text(), file).settings["secret-key"] == KEY
    for verb in (("list",), ("show", "prod"), ("use", "prod"), ("create", "prod"), ("show", "x")):
        outputs += [run("profile", *verb), run("profile", *verb, "-o", "json")]
    assert run("profile", "show", "prod", "-o", "json").json["secret-key"] == "(hidden)"
    assert not any(KEY in ran.out + ran.err for ran in outputs)


def test_profile_command_keeps_comments_and_other_profiles(run, filled):
    assert run("profile", "create", "test", "--namesrv", "c:9876").code == 1
    assert run("profile", "create", "test", "--namesrv", "c:9876", "--tls", "--replace").code == 0
    assert filled.read_text() == TEXT.replace("namesrv = b:9876", "namesrv = c:9876\ntls = true")
    assert mode(filled) == 0o600
    run("profile", "delete", "prod", "--yes")
    left = filled.read_text()
    for comment in ("# clusters of the shop", "# the old one", "; for tests", "[test]"):
        assert comment in left
    assert KEY not in left


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("create DEFAULT --namesrv a:1", "cannot name a profile"),
        ("create a]b --namesrv a:1", "cannot name a profile"),
        ("create new", "--namesrv is missing"),
        ("create new --namesrv a", "not an address. Write HOST:PORT"),
        ("create new --namesrv a:1 --secret-key-stdin", "--access-key is missing"),
        ("create prod --namesrv a:1", "Add --replace"),
        ("show prd", "there is no profile prd. Did you mean prod?"),
        ("use prd", "there is no profile prd. Did you mean prod?"),
        ("delete prd --yes", "there is no profile prd. Did you mean prod?"),
        ("use", "give the name of a PROFILE, or --none"),
    ],
)
def test_wrong_profile_commands_give_advice_and_change_nothing(run, filled, line, said):
    ran = run("profile", *line.split())
    assert ran.code in (1, 2)
    assert said in ran.err
    assert filled.read_text() == TEXT


VALUES = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1)
SETTINGS = st.dictionaries(st.sampled_from(["namesrv", "access-key", "secret-key"]), VALUES)
COMMENTS = st.lists(st.sampled_from(["# one", "; two", "", "[other]", "tls-server-name = x"]))


@given(COMMENTS, SETTINGS, SETTINGS)
def test_profile_settings_round_trip_at_any_section_position(lines, settings, others):
    text = "\n".join(["[first]", "namesrv = y:1", *dict.fromkeys(lines)])
    written = with_section(text, "new", settings)
    replaced = with_section(written, "new", others)
    for found, expected in ((written, settings), (replaced, others)):
        assert parse_profile("new", found, "f").settings == expected
        assert set(expected) <= set(PROFILE_KEYS)
    assert parse_profile("first", replaced, "f").settings["namesrv"]
    comments = [line for line in text.splitlines() if line[:1] in ("#", ";")]
    assert [line for line in replaced.splitlines() if line[:1] in ("#", ";")] == comments
    assert "[new]" not in without_section(replaced, "new")
