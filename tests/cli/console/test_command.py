"""``rocketpoll console`` as a command: its start and its errors for wrong arguments."""

import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from rmq_spark.cli.main import main
from rocketpoll import EmbeddedBroker


@pytest.fixture(autouse=True)
def nothing_is_named(monkeypatch):
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


@contextmanager
def running(*arguments):
    """Start a console; return its process and its output lines."""
    command = [sys.executable, "-m", "rocketpoll", "console", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as console:
        try:
            yield console, console.stdout
        finally:
            console.kill()


def url_in(line):
    (url,) = re.findall(r"^console at (http://127.0.0.1:\d+/) \(", line)
    return url


def get(url):
    with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310  # the test's own server
        return answer.read().decode()


def test_console_serves_read_only_until_sigterm():
    with EmbeddedBroker() as broker, running("--namesrv", broker.address) as (console, said):
        line = said.readline()
        assert line.endswith("(read-only)\n")
        assert "Every broker answers" in get(url_in(line))
        console.send_signal(signal.SIGTERM)
        assert console.wait(20) == 0
        assert said.read() == ""


def test_console_with_writes_prints_a_token_and_serves_without_a_broker():
    with running("--namesrv", "127.0.0.1:1", "--writes") as (console, said):
        url = url_in(said.readline())
        (token,) = re.findall(r"^token (\S{20,})$", said.readline())
        with pytest.raises(urllib.error.HTTPError, match="502") as refused:
            get(url)
        with refused.value as answer:
            assert token not in answer.read().decode()
        assert "Sign in" in get(f"{url}sign-in")
        console.send_signal(signal.SIGINT)
        assert console.wait(20) == 0


def test_console_on_a_public_address_requires_the_token():
    with running("--namesrv", "127.0.0.1:1", "--host", "0.0.0.0") as (_, said):  # noqa: S104  # the test needs this host
        port = re.findall(r":(\d+)/", said.readline())[0]
        assert said.readline().startswith("token ")
        assert "Token" in get(f"http://127.0.0.1:{port}/groups")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--port", "70000"], 2, "not a whole number from 0 to 65,535"),
        (["--access-key", "k"], 2, "--access-key and --secret-key together"),
        (["--namesrv", "http://x"], 2, "http://x"),
    ],
)
def test_wrong_console_arguments_are_refused_in_one_line(arguments, code, said, capsys):
    assert main(["console", *arguments]) == code
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_console_on_a_port_in_use_fails_in_one_line(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert main(["console", "--namesrv", "127.0.0.1:1", "--port", port]) == 1
    err = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1:{port}" in err
    assert err.count("\n") == 1
