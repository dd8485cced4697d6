"""Small programs whose calls on files are recorded, for the tests of the recorder."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from textwrap import dedent

from support.disks.power_loss import PowerLossModel
from system_calls.recording import Recording
from system_calls.replay import Replay

TESTS = Path(__file__).parents[1]
_PATIENCE_SECONDS = 30
_BEGIN = """
import json, os, sys
from pathlib import Path
from system_calls.recorder import Recorder
from system_calls.recording import RecordingWriter
from system_calls.rules import Rule, Rules
orders = json.loads(sys.argv[1])
disk = Path(orders["disk"])
rules = Rules([Rule(**each) for each in orders["rules"]])
Recorder(orders["disk"], RecordingWriter(orders["recording"]), rules, seed=1).install()
"""


class RecordedProgram:
    """A program with a disk, and the recorded operations."""

    def __init__(self, base, program, *rules):
        self.disk = base / "disk"
        self.disk.mkdir()
        self._path = base / "recording"
        orders = {
            "disk": str(self.disk),
            "recording": str(self._path),
            "rules": [asdict(rule) for rule in rules],
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BEGIN + dedent(program), json.dumps(orders)],
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.communicate()

    def ended(self):
        """Wait for its end; return its output and exit code."""
        said, _ = self._process.communicate(timeout=_PATIENCE_SECONDS)
        return said, self._process.returncode

    def heard(self):
        """Return its next output line; it then waits for input if it reads any."""
        return self._process.stdout.readline()

    def calls(self):
        """Return the calls recorded so far."""
        recording = Recording(self._path)
        calls = list(recording.new_calls())
        recording.close()
        return calls

    def kinds(self):
        return [kind for kind, *_ in self.calls()]

    def model(self):
        """Return a model of the states after a power loss now."""
        model = PowerLossModel()
        replay = Replay(model)
        for call in self.calls():
            replay.take(*call)
        return model
