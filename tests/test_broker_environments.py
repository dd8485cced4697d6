"""A broker process in odd but legal environments starts, stores a message, returns it and ends.

Each row is a way in which daemons, cron, containers or shells start programs. In each, a clean stop
must exit with code 0: supervisors count anything else as a crash.
"""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path

import pytest
from support.brokers.fork_server import ROOT
from support.suite.selection import spread

from rmq_spark.errors import RocketPollError
from rocketpoll import Message, Producer, read_table

ENTRIES = {
    "module": ["-m", "rocketpoll.broker"],
    "program": [str(ROOT / "rocketpoll" / "start_broker.py")],
    "command": ["-m", "rocketpoll", "broker"],
}
"""The ways to start a broker, as arguments of Python."""
_PATIENCE_SECONDS = 60.0
_SMALL = (
    "vipChannelEnable=false",
    "mappedFileSizeCommitLog=1048576",
    "maxMessageSize=65536",
    "maxHashSlotNum=1000",
    "maxIndexNum=1000",
)


def closed(numbers):
    return {"preexec_fn": lambda: [os.close(number) for number in numbers]}


opened = []
"""Descriptors for processes; the test closes them at its end."""


@pytest.fixture(autouse=True)
def closed_again():
    yield
    while opened:
        os.close(opened.pop())


def full():
    opened.append(os.open("/dev/full", os.O_WRONLY))
    return opened[-1]


def pipe_without_reader():
    reader, writer = os.pipe()
    os.close(reader)
    opened.append(writer)
    return writer


def environment(**changes):
    """Return the environment with other variables; None removes one."""
    changed = {**os.environ, **changes}
    return {"env": {name: value for name, value in changed.items() if value is not None}}


def in_directory_that_is_gone():
    Path("gone").mkdir()
    os.chdir("gone")
    Path("../gone").rmdir()


def in_directory_that_is_read_only():
    Path("read-only").mkdir(0o500)
    os.chdir("read-only")


SITUATIONS = {
    **{
        f"closed {', '.join(map(str, numbers))}": lambda numbers=numbers: closed(numbers)
        for size in (1, 2, 3)
        for numbers in combinations(range(3), size)
    },
    "stdout full": lambda: {"stdout": full()},
    "stderr full": lambda: {"stderr": full()},
    "both full": lambda: dict.fromkeys(("stdout", "stderr"), full()),
    "stdout without reader": lambda: {"stdout": pipe_without_reader()},
    "both without reader": lambda: dict.fromkeys(("stdout", "stderr"), pipe_without_reader()),
    "locale C": lambda: environment(LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0"),
    "locale POSIX": lambda: environment(LC_ALL="POSIX"),
    "no locale": lambda: environment(LC_ALL=None, LANG=None, LC_CTYPE=None),
    "no time zone, no PATH, no HOME": lambda: environment(TZ=None, PATH=None, HOME=None),
    "PYTHONOPTIMIZE": lambda: environment(PYTHONOPTIMIZE="2"),
    "TMPDIR missing": lambda: environment(TMPDIR="/nowhere"),
    "TERM dumb": lambda: environment(TERM="dumb"),
    "HOME missing": lambda: environment(HOME="/nowhere"),
    "umask 0777": lambda: {"preexec_fn": lambda: os.umask(0o777)},
    "umask 0": lambda: {"preexec_fn": lambda: os.umask(0)},
    "64 descriptors": lambda: {
        "preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    },
    "working directory gone": lambda: {"preexec_fn": in_directory_that_is_gone},
    "working directory read-only": lambda: {"preexec_fn": in_directory_that_is_read_only},
    "signals ignored": lambda: {
        "preexec_fn": lambda: [signal.signal(each, signal.SIG_IGN) for each in (1, 2, 13)]
    },
}
"""Odd environments by name: functions that return arguments of `subprocess.Popen`."""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def started(entry, directory, port, words=(), **how):
    """Start a broker process; its output may be discarded."""
    usual = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    place = f"storePathRootDir={directory / 'store'}"
    how = {**usual, "cwd": directory, **how}
    return subprocess.Popen(
        [sys.executable, *ENTRIES[entry], *words, *_SMALL, f"listenPort={port}", place],
        **how,
    )


def used(process, port):
    """Send a message and read it, once the broker answers."""
    address, until = f"127.0.0.1:{port}", time.monotonic() + _PATIENCE_SECONDS
    while True:
        assert process.poll() is None, "it has ended"
        try:
            with Producer("P", address) as producer:
                producer.send(Message("T", b"one"))
            break
        except RocketPollError:
            assert time.monotonic() < until
            time.sleep(0.05)
    assert read_table("T", address, columns=["body"])["body"].to_pylist() == [b"one"]


ROWS = [
    (situation, entry)
    for number, situation in enumerate(SITUATIONS)
    for entry in ([*ENTRIES] if "closed" in situation else [[*ENTRIES][number % len(ENTRIES)]])
]


@pytest.mark.parametrize(("situation", "entry"), spread(8, ROWS))
def test_broker_process_serves_and_stops_in_an_unusual_environment(tmp_path, situation, entry):
    port, how = free_port(), SITUATIONS[situation]()
    variables = {**how.pop("env", os.environ), "PYTHONPATH": str(ROOT)}
    process = started(entry, tmp_path, port, env=variables, **how)
    try:
        used(process, port)
        process.send_signal(signal.SIGTERM)
        assert process.wait(_PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
    assert not (tmp_path / "store/abort").exists(), "it has not stopped in order"


@pytest.mark.parametrize("entry", spread(2, ENTRIES))
def test_broker_with_a_settings_file_survives_sighup_at_any_time(tmp_path, entry):
    """A service manager may send SIGHUP at any time, also during the start and the stop."""
    (tmp_path / "broker.conf").write_text("maxTopics=100\n")
    port = free_port()
    how = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    process = started(entry, tmp_path, port, ["-c", "broker.conf"], **how)
    try:
        until = time.monotonic() + _PATIENCE_SECONDS
        while not is_hup_settled(process.pid):  # the interpreter takes a moment to start
            assert time.monotonic() < until
        assert not any("asyncio" in each for each in files_of(process.pid)), "it came too late"
        while not listens(port):
            assert process.poll() is None
            process.send_signal(signal.SIGHUP)
            assert time.monotonic() < until
            time.sleep(0.002)
        used(process, port)
        process.send_signal(signal.SIGTERM)
        while process.poll() is None:
            process.send_signal(signal.SIGHUP)
            time.sleep(0.0005)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


def is_hup_settled(pid):
    """Return whether a process ignores SIGHUP, or has a handler for it."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [line.split()[1] for line in status if line.startswith(("SigIgn", "SigCgt"))]
    return any(int(mask, 16) & 1 for mask in masks)


def files_of(pid):
    """Return the libraries that a process has loaded."""
    return [line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
