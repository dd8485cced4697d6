"""A machine of the real world: a directory that is its disk, and one broker process after the other
on it.

The recorded operations of the processes on the disk (`system_calls`) are passed to a model of power
losses. After a kill the next process finds the disk unchanged; after a power loss, as the model
draws it.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict

from support.brokers.in_process import SMALL
from support.brokers.processes import ROOT
from support.disks.faulty_disk import materialise, tree_in
from support.disks.file_versions import Choices
from support.disks.power_loss import PowerLossModel
from system_calls.recording import Recording
from system_calls.replay import Replay
from world.tasks import Promise

STORE = "var/rocketpoll"
"""Path of the store on the disk. Neither directory exists at the start."""

_READY = re.compile(rb"rocketpoll \S+ listens on \S+:(\d+)\n")
_PATIENCE_SECONDS = 60


class Machine:
    """A disk that outlives its processes."""

    def __init__(self, base, tracer=()):
        """``tracer`` is a command that runs another one, and has its process id."""
        self._base = base
        self.tracer = tracer
        self.disk = base / "disk"
        self.disk.mkdir(parents=True)
        self._model = PowerLossModel()
        self.lives = 0

    def start(self, loop, settings, rules=(), seed=0):
        """Start a broker whose calls fail according to the rules."""
        self.lives += 1
        return RecordedBroker(self, loop, self._base / f"life-{self.lives}", settings, rules, seed)

    def log_min_offset(self):
        """Return the first offset of the log, from its files' names."""
        log = self.disk / STORE / "commitlog"
        return min((int(path.name) for path in log.glob("*[0-9]")), default=0)

    def take_up(self, recording):
        """Apply a dead process's calls to the model; return their number."""
        replay = Replay(self._model)
        for call in recording.new_calls():
            replay.take(*call)
        on_disk, recorded = (_contents(tree) for tree in (tree_in(self.disk), self._model.seen()))
        differing = [str(path) for path, _ in dict(on_disk.items() ^ recorded.items()).items()]
        assert not differing, f"the recording does not say what is on the disk: {differing}"
        return replay.calls

    def lose_power(self, dice, odds_of_names, odds_of_content):
        """Apply a power loss: each unflushed change survives with these odds."""
        tree = self._model.draw(Choices(dice, odds_of_names), Choices(dice, odds_of_content))
        shutil.rmtree(self.disk)
        self.disk.mkdir()
        materialise(tree, self.disk)
        self._model = PowerLossModel(tree)


def _contents(tree):
    return {path: image and image.content for path, image in tree.items()}


class RecordedBroker:
    """One broker process, from its start to its end."""

    def __init__(self, machine, loop, base, settings, rules, seed):
        self._machine = machine
        self._loop = loop
        self._said = b""
        self._may_die = any(rule.what in ("die", "die behind") for rule in rules)
        self._log_path = base.with_suffix(".log")
        self._recording = Recording(base.with_suffix(".recording"))
        self.started = Promise()  # its port; None if it has ended before
        self.ended = Promise()
        orders = {
            "disk": str(machine.disk),
            "recording": str(base.with_suffix(".recording")),
            "rules": [asdict(rule) for rule in rules],
            "seed": seed,
        }
        texts = {**SMALL, **settings, "storePathRootDir": str(machine.disk / STORE)}
        with self._log_path.open("w") as log:
            self._process = subprocess.Popen(
                [
                    *(*machine.tracer, sys.executable, "-m", "system_calls", json.dumps(orders)),
                    *(f"{name}={value}" for name, value in texts.items()),
                ],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._pipe = self._process.stdout.fileno()
        os.set_blocking(self._pipe, False)
        loop.add_reader(self._pipe, self._hear)

    def _hear(self):
        data = os.read(self._pipe, 1 << 12)
        self._said += data
        if ready := _READY.fullmatch(self._said):
            self.started.keep(int(ready[1]))
        if not data:
            self._loop.remove_reader(self._pipe)
            self.started.keep(None)
            self.ended.keep()

    def kill(self):
        """Kill the process between two calls, and apply its calls to the model."""
        with self._recording.held():
            self._process.kill()
            self._process.wait(_PATIENCE_SECONDS)
        return self._close()

    def stop(self):
        """Stop the process cleanly."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the broker has not stopped within {_PATIENCE_SECONDS} s"
            ) from None
        return self._close()

    def _close(self):
        with ExitStack() as closing:
            closing.callback(self._recording.close)
            closing.callback(self._process.stdout.close)
            if not self.ended.is_kept:
                self._loop.remove_reader(self._pipe)
                self.ended.keep()
            return self._machine.take_up(self._recording)

    @property
    def is_alive(self):
        """Return whether the process runs."""
        return self._process.poll() is None

    @property
    def was_killed(self):
        """Return whether SIGKILL ended the process; a rule may kill it while it stops."""
        return self._process.returncode == -signal.SIGKILL

    def fault(self, *, is_to_stop):
        """Return a description of forbidden behaviour, or an empty text."""
        has_died_as_it_may = self.was_killed and (self._may_die or not is_to_stop)
        logged = self._log_path.read_text(errors="replace")
        if not has_died_as_it_may and (self._process.returncode or not is_to_stop):
            return (
                f"the broker has ended by itself, with {self._process.returncode}: {logged[-4000:]}"
            )
        return f"the broker has logged {logged[-4000:]}" if "Traceback" in logged else ""
