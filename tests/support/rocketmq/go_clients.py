"""Apache's Go client: producers and consumers run the program in tests/go/clients, built once.

Without a Go toolchain or its modules, tests are skipped with the reason.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.access.signed_client import Key
from support.rocketmq.java_programs import ROOT, unavailable

_BUILD_SECONDS_MAX = 900
_ANSWER_SECONDS_MAX = 120
_OUT_OF_REACH = ("dial tcp", "403 Forbidden", "no such host", "missing go.sum entry", "i/o timeout")


def go_program() -> Path:
    """Return the built program."""
    source, built = ROOT / "tests" / "go" / "clients", ROOT / "build" / "go" / "clients"
    go = shutil.which("go")
    if go is None:
        unavailable("no go on the path")
    run = subprocess.run(
        [go, "build", "-o", str(built), "."],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS_MAX,
        check=False,
    )
    if run.returncode:
        if any(reason in run.stderr for reason in _OUT_OF_REACH):
            unavailable(f"go cannot build {source}: {run.stderr[-300:]}")
        pytest.fail(f"go failed:\n{run.stderr}")
    return built


class GoClients:
    """Producers and consumers, each in its own process."""

    def __init__(self, program: Path, name_server: str) -> None:
        self._program = program
        self._name_server = name_server

    def _command(self, what: str, key: Key, topic: str, group: str) -> list[str]:
        return [str(self._program), what, self._name_server, key.name, key.secret, topic, group]

    def send(self, key: Key, topic: str, bodies: Iterable[str]) -> list[dict[str, Any]]:
        """Send each text with each send method; return the results."""
        run = subprocess.run(
            self._command("send", key, topic, "senders"),
            input="".join(f"{body}\n" for body in bodies),
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS_MAX,
            check=False,
        )
        return _results(run.stdout.splitlines(), run.stderr)

    @contextmanager
    def consumer(self, key: Key, topic: str, group: str) -> Iterator[Iterator[dict[str, Any]]]:
        """Run a consumer; yield its output lines."""
        consumer = subprocess.Popen(
            self._command("consume", key, topic, group),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert consumer.stdout is not None
            yield (json.loads(line) for line in consumer.stdout if line.startswith("{"))
        finally:
            consumer.kill()
            consumer.communicate()


def _results(lines: Iterable[str], said: str) -> list[dict[str, Any]]:
    """Return the lines that are results, without those of the library."""
    results = [json.loads(line) for line in lines if line.startswith("{")]
    assert results, said
    return results
