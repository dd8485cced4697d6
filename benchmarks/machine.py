"""Describes the conditions of a result: time, machine, versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any


def describe_machine(libraries: Iterable[str]) -> dict[str, Any]:
    """Return the machine and the versions, as the report's JSON holds them."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "libraries": {name: version(name) for name in libraries},
    }


def load_average() -> float:
    """Return the average number of processes that wanted a core, over the last minute."""
    return os.getloadavg()[0]


def _cpu_model() -> str:
    """Return the model of the processor: Linux has it in a file, Python knows it elsewhere."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
