"""A broker in its own process ends with its parent, and runs our package from any directory."""

import signal
from pathlib import Path

import pytest
from support.programs.python_programs import ROOT, started_python_program

from rmq_spark.cli.cluster.broker_launcher import broker_command
from rmq_spark.errors import RocketPollError
from rocketpoll.broker.embedded import EmbeddedBroker, EmbeddedBrokerError
from rocketpoll.broker.embedded.broker_process import BrokerProcess
from rocketpoll.broker.testing import wait_until

KILLED = """
    import os, sys
    from rocketpoll.broker.embedded import EmbeddedBroker
    broker = EmbeddedBroker(sys.argv[1], own_process=True).start()
    broker.send("orders", "one")
    if not os.fork():
        sys.stdin.read()  # a fork that goes on does not keep the broker alive
        os._exit(0)
    print(broker._runner._process.pid, flush=True)
    sys.stdin.read()
"""


def is_running(pid):
    """Return whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_broker_process_ends_in_order_when_its_parent_is_killed(tmp_path):
    with started_python_program(KILLED, tmp_path / "store", cwd=tmp_path) as program:
        pid = int(program.stdout.readline())
        assert is_running(pid)
        program.send_signal(signal.SIGKILL)
        assert program.wait(30) == -signal.SIGKILL
        wait_until(lambda: not is_running(pid), 30, "the end of the broker")
    assert not (tmp_path / "store" / "abort").exists()


def test_stray_rocketpoll_module_does_not_become_the_broker_process(tmp_path, monkeypatch):
    (tmp_path / "rocketpoll.py").write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with EmbeddedBroker(own_process=True) as broker:
        broker.send("orders", "one")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(
        EmbeddedBrokerError, match=f"'import rocketpoll' finds {tmp_path}: rename that"
    ):
        EmbeddedBroker(own_process=True).start()


def test_broker_process_finds_its_package_without_installation(tmp_path):
    """For example from an archive that Spark distributes: the broker's process gets this one's
    sys.path."""
    command = broker_command([f"storePathRootDir={tmp_path}", "listenPort=0"])
    assert command[1].startswith(f"{ROOT}/")
    uninstalled = [
        command[0],
        "-S",
        *command[1:],
    ]  # -S leaves out site-packages, and so the broker's dependencies
    with pytest.raises(RocketPollError, match=r"No module named '(?!rocketpoll|rmq_spark)"):
        BrokerProcess(uninstalled).start()


def test_input_to_a_broker_process_does_not_end_it():
    with EmbeddedBroker(own_process=True) as broker:
        stdin = broker._runner._process.stdin
        stdin.write(b"something\n")
        stdin.flush()
        broker.send("orders", "one")
        assert len(broker.messages("orders")) == 1


def test_broker_process_that_exits_silently_is_an_error():
    for program in ("pass", "print('hello')"):
        with pytest.raises(RocketPollError, match="it printed nothing"):
            BrokerProcess(["python3", "-c", program]).start()


def test_broker_process_that_does_not_stop_is_killed(monkeypatch):
    monkeypatch.setattr("rocketpoll.broker.embedded.broker_process._STOP_SECONDS", 0.1)
    deaf = "import sys, time; print('listens on 127.0.0.1:1', flush=True); time.sleep(600)"
    process = BrokerProcess(["python3", "-c", deaf])
    assert process.start() == 1
    with pytest.raises(RocketPollError, match="did not stop within 0 s, and was killed"):
        process.stop()
    assert not is_running(process._process.pid)
