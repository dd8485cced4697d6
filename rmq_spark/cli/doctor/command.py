"""``rocketpoll doctor``: every check, in the order in which one would stumble."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Final

from rmq_spark.cli.doctor.cluster import check_cluster
from rmq_spark.cli.doctor.findings import Finding, lines
from rmq_spark.cli.doctor.python import check_worker_python
from rmq_spark.cli.java import find_java, java_fault
from rmq_spark.cli.spark import INSTALL, has_pyspark

_OLDEST: Final = (4, 0)
_NEWEST: Final = (4, 3)


def run_doctor(arguments: Sequence[str]) -> int:
    """Run ``rocketpoll doctor`` and return the exit code: 1 if there is something to mend."""
    parser = argparse.ArgumentParser(
        prog="rocketpoll doctor", description="looks for what keeps a first stream from running"
    )
    parser.add_argument(
        "--namesrv", metavar="HOST:PORT", help="a name server to be asked (NAMESRV_ADDR)"
    )
    parser.add_argument("--topic", metavar="NAME", help="a topic that has to be there")
    parser.add_argument(
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help=(
            "what else a read is told: tls=true, accessKey=... (other users of the machine may see "
            "it)"
        ),
    )
    given = parser.parse_args(arguments)
    options = dict(each.partition("=")[::2] for each in given.option)
    findings = [
        _pyspark(),
        _java(),
        *check_worker_python(),
        *check_cluster(given.namesrv, given.topic, options),
    ]
    sys.stdout.writelines(f"{line}\n" for line in lines(findings))
    return 0 if all(each.is_good for each in findings) else 1


def _pyspark() -> Finding:
    if not has_pyspark():
        return Finding("pyspark", f"{sys.executable} has none", INSTALL)
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:  # that of a Spark which was unpacked, on PYTHONPATH
        return Finding("pyspark", "is there, of a version that it does not say")
    numbers = tuple(int(each) for each in re.findall(r"[0-9]+", version)[:2])
    if not _OLDEST <= numbers <= _NEWEST:
        return Finding("pyspark", f"{version}; rocketpoll is for 4.0 to 4.3", INSTALL)
    return Finding("pyspark", version)


def _java() -> Finding:
    fault = java_fault()
    if fault is not None:
        found, _, remedy = fault.partition(". ")
        return Finding("Java", found, remedy)
    java = find_java()
    return Finding("Java", f"{java.path} is Java {java.version}" if java else "is there")
