import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.brokers.broker_kinds import wait_until

from benchmarks.client import stalled

ROOT = Path(__file__).parents[2]


@pytest.mark.wide
def test_stalled_benchmark_reports_memory_and_pending_sends(monkeypatch, capsys):
    monkeypatch.setattr(stalled, "SENDS", 80)
    monkeypatch.setattr(stalled, "TIMEOUT_MS", 300)
    monkeypatch.setattr(stalled, "PLAIN_SENDS", 30)
    monkeypatch.setattr(stalled, "ROOM_MIB", 20)
    monkeypatch.setattr(stalled, "SLOW_SECONDS", 2.0)
    stalled.main()
    lines = capsys.readouterr().out.splitlines()
    heads = [number for number, line in enumerate(lines) if " sends of " in line]
    assert lines[0].startswith("80 sends of 1,048,576 bytes")
    assert lines[heads[1]].startswith("30 sends of 1,048,576 bytes")
    assert lines[heads[2]].split(" of ")[1].startswith("60,000 bytes")
    for head, end, room in zip(heads, (*heads[1:], len(lines)), (64, 20, 64), strict=True):
        *ends, memory, pending = lines[head + 1 : end]
        assert sum(int(line.split()[0]) for line in ends) == int(lines[head].split()[0])
        assert memory.startswith("memory ")
        assert int(pending.split()[1]) <= room
    assert lines[heads[1] - 1].endswith("behind it 0 sends, 0 and 0 bytes")


def state_of(pid):
    """The letter of a process' state; None if it is no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


ENDS = {
    "it alone": lambda pid: os.kill(pid, signal.SIGKILL),
    "all of its group": lambda pid: os.killpg(pid, signal.SIGTERM),
}


@pytest.mark.wide
@pytest.mark.parametrize("ends", ENDS.values(), ids=list(ENDS))
def test_killed_stalled_benchmark_leaves_no_broker(ends):
    program = [sys.executable, "-m", "benchmarks.client.stalled"]
    with subprocess.Popen(program, cwd=ROOT, start_new_session=True) as running:
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        pids = wait_until(
            "a broker that is stopped",
            lambda: [pid for pid in children.read_text().split() if state_of(pid) == "T"],
        )
        ends(running.pid)
    wait_until("the broker is gone", lambda: state_of(pids[0]) in {None, "Z"})
