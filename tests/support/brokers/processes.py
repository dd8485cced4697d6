"""Broker processes as users run them: with settings, a line when ready, and a clean stop."""

import re
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from support.brokers.fork_server import ROOT, can_be_forked
from support.brokers.fork_server import start as start_forked
from support.brokers.in_process import SMALL

_READY = re.compile(r"rocketpoll \S+ listens on \S+:(\d+)\n")
_PATIENCE_SECONDS = 30


def run_broker(*arguments, seconds=_PATIENCE_SECONDS, by=()):
    """Run a broker that should end by itself; return its exit code, stdout and stderr.

    ``by`` is the command that starts it, such as `setpriv`.
    """
    if not by and can_be_forked():
        with tempfile.TemporaryFile("w+") as complaints:
            forked = start_forked(arguments, complaints)
            with forked.stdout:
                try:
                    code = forked.wait(seconds)
                except subprocess.TimeoutExpired:
                    forked.kill()
                    raise
                printed = forked.stdout.read()
            complaints.seek(0)
            return code, printed, complaints.read()
    ended = subprocess.run(
        [*by, sys.executable, "-m", "rocketpoll.broker", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr


class BrokerProcess:
    """A broker in a directory, with its log in a file there.

    ``by`` is a command that starts the broker by exec, such as `unshare`. Without it, the broker is
    forked: see `fork_server`.
    """

    def __init__(self, root, *arguments, descriptors_max=None, by=(), **settings):
        self._log_path = root / "broker.log"
        texts = {**SMALL, "storePathRootDir": str(root / "store"), **settings}
        words = [*arguments, *(f"{name}={value}" for name, value in texts.items())]
        with self._log_path.open("w") as log:
            if not by and descriptors_max is None and can_be_forked():
                self._process = start_forked(words, log)
                return
            self._process = subprocess.Popen(
                [*by, sys.executable, "-m", "rocketpoll.broker", *words],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            if descriptors_max is not None:  # before Python starts
                self.limit_descriptors(descriptors_max, descriptors_max)

    def __enter__(self):
        self.ready_line = self._process.stdout.readline()
        ready = _READY.fullmatch(self.ready_line)
        if ready is None:
            self.__exit__()
            raise AssertionError(f"{self.ready_line!r}; {self.log()}")
        self.port = int(ready[1])
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(_PATIENCE_SECONDS)
        self._process.stdout.close()

    def stop(self, number=signal.SIGTERM):
        """Stop the broker cleanly; return its exit code."""
        self._process.send_signal(number)
        return self._process.wait(_PATIENCE_SECONDS)

    def signal(self, number):
        """Send a signal that does not end the broker."""
        self._process.send_signal(number)

    def title(self):
        return Path(f"/proc/{self._process.pid}/comm").read_text().strip()

    def kill(self):
        self._process.kill()
        self._process.wait(_PATIENCE_SECONDS)

    def limit_descriptors(self, soft, hard):
        """Limit the broker's open descriptors, as `ulimit -n` does."""
        resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, (soft, hard))

    def as_it_sees(self, path):
        """Translate a path in the broker's mount namespace to one that this process can open."""
        return Path(f"/proc/{self._process.pid}/root{path}")

    def in_its_mounts(self, *command):
        """Run a command in the broker's mount namespace."""
        enter = ["nsenter", "--mount", "--target", str(self._process.pid)]
        subprocess.run([*enter, *command], check=True, timeout=_PATIENCE_SECONDS)

    def descriptors(self):
        return [int(path.name) for path in Path(f"/proc/{self._process.pid}/fd").iterdir()]

    def said(self):
        """Return all log lines."""
        return self._log_path.read_text().splitlines()

    def log(self):
        """Return the log lines, without those of a healthy broker."""
        return [line for line in self.said() if " INFO operator_log: " not in line]

    def rss_bytes(self):
        """Return the resident memory in bytes."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) << 10
