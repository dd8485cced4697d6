"""Apache RocketMQ's own classes as a fixture: built with Maven once, then asked in batches.

Where they cannot be had, the tests are skipped and say why; with ROCKETPOLL_REQUIRE_INTEROP=1 they fail.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import java_vectors
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "java" / "vectors"
BUILDS = ROOT / "build" / "vectors"
JAVA_SINCE = 17
BUILD_SECONDS_MAX = 600
ANSWER_SECONDS_MAX = 120

# A JVM that lives for a second has no use for its best compiler.
START_QUICKLY = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

# What Maven says if artifacts are out of reach, or if it runs on a JRE or an older JDK. All else is a
# failure.
CANNOT_BUILD_HERE = re.compile(
    r"\[ERROR\] .*(?:could not be resolved|Could not (?:resolve|transfer|find)|No plugin found"
    r"|No compiler is provided|release version \d+ not supported).*"
)


class Java:
    """One version of RocketMQ's classes. Each call is one process."""

    def __init__(self, version: str, executable: str, build: Path) -> None:
        self.version = version
        self._command = (executable, *START_QUICKLY, "-cp", f"{build / 'classes'}:{build / 'lib'}/*")

    def write(self, directory: Path) -> None:
        """Have the vectors of this version written."""
        self._run("write", str(directory))

    def read(
        self, kind: str, said: Mapping[str, bytes], classes: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """What Java makes of each of these, as a class where the kind needs one; or ``refused: why``."""
        of = classes or {}
        lines = [f"{name}\t{kind}\t{of.get(name, '')}\t{data.hex()}\n" for name, data in said.items()]
        answers = [json.loads(line) for line in self._run("read", text="".join(lines)).splitlines()]
        return {each["id"]: each["value"] if each["ok"] else f"refused: {each['error']}" for each in answers}

    def _run(self, *arguments: str, text: str = "") -> str:
        run = subprocess.run(
            [*self._command, "rocketpoll.vectors.Main", *arguments],
            input=text,
            capture_output=True,
            encoding="utf-8",
            timeout=ANSWER_SECONDS_MAX,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        return run.stdout


@pytest.fixture(scope="session", params=java_vectors.VERSIONS)
def java(request) -> Java:
    """RocketMQ's classes of one version, and of the other in turn."""
    version, executable = request.param, java_executable()
    build = BUILDS / version
    if not is_built(build):
        build_with_maven(version, build)
    return Java(version, executable, build)


def java_executable() -> str:
    executable = shutil.which("java")
    if executable is None:
        unavailable("no java on the path")
    run = subprocess.run([executable, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(\d+)', run.stderr)
    if version is None or int(version[1]) < JAVA_SINCE:
        unavailable(f"Java {JAVA_SINCE} is needed, found: {run.stderr.partition(chr(10))[0]}")
    return executable


def is_built(build: Path) -> bool:
    """The mark is set when everything is in place, so that half a build does not count as one."""
    mark = built_mark(build)
    sources = [PROGRAM / "pom.xml", *(PROGRAM / "src").rglob("*.*")]
    return mark.exists() and mark.stat().st_mtime > max(source.stat().st_mtime for source in sources)


def built_mark(build: Path) -> Path:
    return build / ".built"


def build_with_maven(version: str, build: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        unavailable("no mvn on the path")
    command = [
        maven,
        *("-q", "-B", "-Dstyle.color=never", "-f", str(PROGRAM / "pom.xml")),
        *(f"-Drocketmq.version={version}", f"-Dvectors.build={build}"),
        *("package", "dependency:copy-dependencies", f"-DoutputDirectory={build / 'lib'}"),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False)
    if run.returncode:
        said = run.stdout + run.stderr
        reason = CANNOT_BUILD_HERE.search(said)
        if reason:
            unavailable(f"Maven cannot build the program with RocketMQ {version}: {reason[0]}")
        pytest.fail(f"Maven failed:\n{said}")
    built_mark(build).touch()


def unavailable(why: str) -> NoReturn:
    if os.environ.get("ROCKETPOLL_REQUIRE_INTEROP") == "1":
        pytest.fail(f"ROCKETPOLL_REQUIRE_INTEROP is set, but {why}")
    pytest.skip(why)
