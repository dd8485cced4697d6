"""Small Java programs that use RocketMQ's classes, built with Maven once per version.

If Maven cannot build them, tests are skipped with the reason; with ROCKETPOLL_REQUIRE_INTEROP=1
they fail.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[3]
JAVA_SINCE = 17
BUILD_SECONDS_MAX = 600

# JVMs that live for seconds are slower with the optimizing compiler.
START_QUICKLY = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

# What Maven prints if artifacts are out of reach, or on a JRE or an older JDK. Any other error is a
# failure.
CANNOT_BUILD_HERE = re.compile(
    r"\[ERROR\] .*(?:could not be resolved|Could not (?:resolve|transfer|find)|No plugin found"
    r"|No compiler is provided|release version \d+ not supported).*"
)


class JavaProgram(NamedTuple):
    """A built program and the classes of RocketMQ."""

    executable: str
    class_path: str

    def command(self, main_class: str, *options: str) -> list[str]:
        """Return the command that runs a main class; append its arguments."""
        return [self.executable, *START_QUICKLY, *options, "-cp", self.class_path, main_class]


class JavaError(Exception):
    """An exception of a Java client, with its response code, if any."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def java_program(name: str, version: str) -> JavaProgram:
    """Build tests/java/<name> against a version of RocketMQ."""
    executable = _java_executable()
    source, build = ROOT / "tests" / "java" / name, ROOT / "build" / name / version
    with _alone(build):
        if not _is_built(source, build):
            _build_with_maven(name, version, source, build)
    return JavaProgram(executable, f"{build / 'classes'}:{build / 'lib'}/*")


@contextmanager
def _alone(build: Path) -> Iterator[None]:
    """Lock the build, so that one of several test processes builds and the others wait."""
    build.mkdir(parents=True, exist_ok=True)
    with (build / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _java_executable() -> str:
    executable = shutil.which("java")
    if executable is None:
        unavailable("no java on the path")
    run = subprocess.run([executable, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(\d+)', run.stderr)
    if version is None or int(version[1]) < JAVA_SINCE:
        unavailable(f"Java {JAVA_SINCE} is needed, found: {run.stderr.partition(chr(10))[0]}")
    return executable


def _is_built(source: Path, build: Path) -> bool:
    """Return whether the marker file is newer than the sources; it is created last, after a
    complete build."""
    mark = _built_mark(build)
    sources = [source / "pom.xml", *(source / "src").rglob("*.*")]
    return mark.exists() and mark.stat().st_mtime > max(
        source.stat().st_mtime for source in sources
    )


def _built_mark(build: Path) -> Path:
    return build / ".built"


def _build_with_maven(name: str, version: str, source: Path, build: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        unavailable("no mvn on the path")
    command = [
        maven,
        *("-q", "-B", "-Dstyle.color=never", "-f", str(source / "pom.xml")),
        *(f"-Drocketmq.version={version}", f"-D{name}.build={build}"),
        *("package", "dependency:copy-dependencies", f"-DoutputDirectory={build / 'lib'}"),
    ]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False
    )
    if run.returncode:
        said = run.stdout + run.stderr
        reason = CANNOT_BUILD_HERE.search(said)
        if reason:
            unavailable(f"Maven cannot build {name} with RocketMQ {version}: {reason[0]}")
        pytest.fail(f"Maven failed:\n{said}")
    _built_mark(build).touch()


def unavailable(why: str) -> NoReturn:
    if os.environ.get("ROCKETPOLL_REQUIRE_INTEROP") == "1":
        pytest.fail(f"ROCKETPOLL_REQUIRE_INTEROP is set, but {why}")
    pytest.skip(why)
