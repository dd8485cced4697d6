"""Apache RocketMQ's own classes, built once per version with Maven, and a JVM of clients.

The Java program in benchmarks/java generates the load, and starts a real name server and broker.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.broker.process import Process

VERSIONS = ("4.9.7", "5.5.0")
ROOT = Path(__file__).resolve().parents[2]
_SOURCE = ROOT / "benchmarks" / "java"
_BUILD_SECONDS_MAX = 600
_JAVA_SINCE = 17


class JavaUnavailable(Exception):
    """Java is missing, or Maven cannot build with it."""


class JavaClasses:
    """The classes of one version of RocketMQ, and our own program."""

    def __init__(self, version: str) -> None:
        """Build the classes, unless they were built since their sources changed."""
        self.version = version
        self._executable = java_executable()
        self._build = ROOT / "build" / "load" / version
        if not self._is_built():
            self._build_with_maven()

    def command(self, main_class: str, *options: str) -> list[str]:
        """Return the command that starts a main class; append the arguments of that class."""
        class_path = f"{self._build / 'classes'}:{self._build / 'lib'}/*"
        return [self._executable, *options, "-cp", class_path, main_class]

    @property
    def _mark(self) -> Path:
        """Return a file created after the build, so that an incomplete build does not count."""
        return self._build / ".built"

    def _is_built(self) -> bool:
        sources = [_SOURCE / "pom.xml", *(_SOURCE / "src").rglob("*.java")]
        return self._mark.exists() and self._mark.stat().st_mtime > max(
            source.stat().st_mtime for source in sources
        )

    def _build_with_maven(self) -> None:
        maven = shutil.which("mvn")
        if maven is None:
            raise JavaUnavailable("no mvn on the path")
        command = [
            maven,
            *("-q", "-B", "-Dstyle.color=never", "-f", str(_SOURCE / "pom.xml")),
            *(f"-Drocketmq.version={self.version}", f"-Dload.build={self._build}"),
            *(
                "package",
                "dependency:copy-dependencies",
                f"-DoutputDirectory={self._build / 'lib'}",
            ),
        ]
        run = subprocess.run(  # noqa: S603  # what we have put together ourselves
            command, capture_output=True, text=True, timeout=_BUILD_SECONDS_MAX, check=False
        )
        if run.returncode:
            raise JavaUnavailable(f"Maven cannot build {_SOURCE}:\n{run.stdout}{run.stderr}")
        self._mark.touch()


def java_executable() -> str:
    """Return the path of a Java that is new enough."""
    executable = shutil.which("java")
    if executable is None:
        raise JavaUnavailable("no java on the path")
    run = subprocess.run([executable, "-version"], capture_output=True, text=True, check=False)  # noqa: S603  # found on the path
    version = re.search(r'version "(\d+)', run.stderr)
    if version is None or int(version[1]) < _JAVA_SINCE:
        raise JavaUnavailable(
            f"Java {_JAVA_SINCE} is needed, found: {run.stderr.partition(chr(10))[0]}"
        )
    return executable


class JavaLoad:
    """One JVM of clients for all brokers that are compared: see rocketpoll.load.Main."""

    def __init__(self, classes: JavaClasses, home: Path) -> None:
        """Start the JVM with Java's default compilers and collectors, as for the brokers."""
        home.mkdir()
        options = (
            *("-Xms512m", "-Xmx512m", f"-Duser.home={home}"),
            *(f"-Drocketmq.client.logRoot={home}", "-Drocketmq.client.logLevel=ERROR"),
        )
        self._process = Process(
            classes.command("rocketpoll.load.Main", *options),
            home / "load.log",
            home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )

    def ask(self, load: str, **fields: Any) -> Any:
        """Run this load on a broker and return what was measured."""
        self._process.write_line(json.dumps({"load": load, **fields}))
        answer = json.loads(self._process.read_line())
        if "error" in answer:
            raise self._process.failure(f"failed with {load!r}: {answer['error']}")
        return answer["answer"]

    def stop(self) -> None:
        """End the JVM and all its clients."""
        self._process.stop()
