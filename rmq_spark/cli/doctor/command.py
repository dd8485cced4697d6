"""``rocketpoll doctor``: runs every check, in the order in which a newcomer meets the problems."""

from __future__ import annotations

import re
import shutil
import sys
from importlib import metadata
from typing import Final

import click

from rmq_spark.cli.doctor.cluster import check_cluster
from rmq_spark.cli.doctor.findings import Diagnosis, report_lines
from rmq_spark.cli.doctor.worker_python import check_worker_python
from rmq_spark.cli.shell.command_tree import CommandWithExample
from rmq_spark.cli.shell.output import write_text
from rmq_spark.cli.spark.spark_runtime import INSTALL_PYSPARK, find_java, has_pyspark, java_fault

_PYSPARK_VERSION_MIN: Final = (4, 0)
_PYSPARK_VERSION_MAX: Final = (4, 3)


@click.command(cls=CommandWithExample, example="rocketpoll doctor")
@click.option("--namesrv", metavar="HOST:PORT", help="Name server to check. "
              "[default: $NAMESRV_ADDR]")  # fmt: skip
@click.option("--topic", metavar="NAME", help="Topic that must exist.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE",
              help="Option of the Spark source, for example tls=true. Repeatable. Other users can "
              "see command lines.")  # fmt: skip
def doctor(namesrv: str | None, topic: str | None, options: tuple[str, ...]) -> int:
    """Check what a first Spark stream needs, and say how to fix what is missing.

    The exit code is 1 if there is something to fix.
    """
    of_read = dict(each.partition("=")[::2] for each in options)
    findings = [
        _check_pyspark(),
        _check_java(),
        *check_worker_python(),
        *check_cluster(namesrv, topic, of_read),
    ]
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    write_text("".join(f"{line}\n" for line in report_lines(findings, columns)))
    return 0 if all(each.is_ok for each in findings) else 1


def _check_pyspark() -> Diagnosis:
    if not has_pyspark():
        return Diagnosis("pyspark", f"{sys.executable} has none", f"run {INSTALL_PYSPARK}")
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:  # that of a Spark which was unpacked, on PYTHONPATH
        return Diagnosis("pyspark", "installed, unknown version")
    numbers = tuple(int(each) for each in re.findall(r"[0-9]+", version)[:2])
    if not _PYSPARK_VERSION_MIN <= numbers <= _PYSPARK_VERSION_MAX:
        return Diagnosis(
            "pyspark", f"{version}; rocketpoll needs 4.0 to 4.3", f"run {INSTALL_PYSPARK}"
        )
    return Diagnosis("pyspark", version)


def _check_java() -> Diagnosis:
    fault = java_fault()
    if fault is not None:
        found, _, remedy = fault.partition(". ")
        return Diagnosis("Java", found, remedy)
    java = find_java()
    return Diagnosis("Java", f"{java.path} is Java {java.version}" if java else "found")
