"""`make fresh` runs the README's commands in a bare Debian, with this machine's mirrors and
registries."""

import os
import sys
import time

import pytest
from support.programs import fresh_debian
from support.programs.terminals import new_terminal

README = (fresh_debian.CLONE / "README.md").read_text(encoding="utf-8")


def test_fresh_debian_commands_are_those_of_the_readme():
    assert fresh_debian.readme_commands(README) == {
        "demo": "sh bootstrap.sh && make demo",
        "check": "sh bootstrap.sh && make check",
    }


@pytest.mark.parametrize(
    ("summary", "is_shown"),
    [
        (
            "sent 1,480,000 messages, read 1,480,000 rows in 31 batches: every one of them once",
            True,
        ),
        ("sent 0 messages, read 0 rows in 1 batches: every one of them once", False),
        ("sent 20 messages, read 10 rows in 1 batches: NOT the same number", False),
        ("sent 0 messages; no batch has ended", False),
    ],
)
def test_demo_summary_without_rows_counts_as_nothing_shown(summary, is_shown):
    assert (
        bool(fresh_debian.SHOWN["demo"].search(f"batch\r\n{summary}\r\nrows per second"))
        is is_shown
    )


def test_only_proxy_and_verification_settings_of_apt_are_copied():
    ways = [
        'Acquire::http::Proxy "http://proxy.example:3128";',
        'Acquire::https::m.example::Verify-Peer "false";',
        'Acquire::Check-Valid-Until "false";',
    ]
    others = [
        'Acquire::http "";',
        'Acquire::https::CaInfo "/etc/ca.pem";',
        'Acquire::GzipIndexes "true";',
        'APT::Install-Recommends "true";',
    ]
    assert fresh_debian.apt_ways("\n".join([*others, *ways, ""])) == ways


def test_files_named_in_pip_settings_are_mapped_into_the_root(tmp_path):
    bundle, links = tmp_path / "ca.pem", tmp_path / "wheels"
    bundle.touch()
    links.mkdir()
    configuration = tmp_path / ".config" / "pip" / "pip.conf"
    configuration.parent.mkdir(parents=True)
    configuration.touch()
    environment = {
        "PIP_CERT": str(bundle),
        "PIP_FIND_LINKS": str(links),
        "PIP_TIMEOUT": "9",
        "EDITOR": "vi",
    }
    variables, binds = fresh_debian.pip_settings(environment, tmp_path)
    assert variables == {
        "PIP_CERT": fresh_debian.CERTIFICATES,
        "PIP_FIND_LINKS": str(links),
        "PIP_TIMEOUT": "9",
    }
    binds.pop("/etc/pip.conf", None)  # of the machine that runs this test
    assert binds == {
        str(configuration): "/root/.config/pip/pip.conf",
        str(bundle): fresh_debian.CERTIFICATES,
        str(links): str(links),
    }


def run_here(code, log, seconds=60):
    for each in new_terminal():
        os.close(each)
    start = [sys.executable, "-c", code]
    fresh_debian.run("demo", "make demo", log, start, time.monotonic() + seconds)


def test_command_gets_a_terminal_and_its_last_line_is_printed(tmp_path, capsys):
    shown = "read 5 rows in 1 batches: every one of them once"
    run_here(
        f"import os; print({shown!r}, os.isatty(0), *os.get_terminal_size(1))", tmp_path / "log"
    )
    assert capsys.readouterr().out.endswith(f"its last line: {shown} True 80 24\n")


@pytest.mark.parametrize(
    ("code", "seconds", "why"),
    [
        ("print('words'); raise SystemExit(3)", 60, "words\nmake demo: exit code 3"),
        ("print('words')", 60, r"words\nmake demo: it has not shown 'read \["),
        (
            "import signal; print('words', flush=True); signal.pause()",
            1,
            "make demo: too little time",
        ),
    ],
    ids=["fails", "shows nothing", "does not end"],
)
def test_failed_command_is_reported_with_its_last_lines(tmp_path, code, seconds, why):
    with pytest.raises(
        fresh_debian.CommandFailed, match=f"{why}.*all of it is in {tmp_path / 'log'}"
    ):
        run_here(code, tmp_path / "log", seconds)


def test_wheel_is_installed_and_runs_the_demo_without_the_tree(tmp_path):
    wheel = tmp_path / "rocketpoll-1.2.3-py3-none-any.whl"
    wheel.touch()
    given = fresh_debian.parsed(["--wheel", str(wheel), "--also", "true"])
    commands = fresh_debian.commands_of(given)
    assert commands.keys() == {"demo", "also"}
    assert commands["demo"].endswith(
        "pip install -q './rocketpoll-1.2.3-py3-none-any.whl[spark]' && cd / && "
        "/root/venv/bin/rocketpoll demo"
    )
    bare = tmp_path / "bare"
    (bare / "root").mkdir(parents=True)
    (bare / "etc/apt/apt.conf.d").mkdir(parents=True)
    fresh_debian.make_root(bare, tmp_path / "root", given.wheel)
    tree = tmp_path / "root" / fresh_debian.TREE[1:]
    assert [path.name for path in tree.iterdir()] == [wheel.name]


@pytest.mark.parametrize(("is_required", "code"), [("", 0), ("1", 1)])
def test_missing_root_rights_are_reported(monkeypatch, capsys, is_required, code):
    monkeypatch.setenv("REQUIRE_FRESH", is_required)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert fresh_debian.main(["--releases", "bookworm"]) == code
    assert capsys.readouterr().out == "fresh: skipped: root rights are needed\n"
