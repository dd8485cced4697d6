"""``rocketpoll doctor``: runs every check, in the order in which a newcomer meets the problems.

A finding is the result of one check. The doctor runs the Python that Spark would start for its
workers to check its packages, and queries name server, topic and brokers as the source does.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import click

from rmq_spark import __version__
from rmq_spark.cli.access.connection_checks import check_connection, check_topic_rights
from rmq_spark.cli.debug_bundle import bundle_lines, write_bundle
from rmq_spark.cli.shell.command_tree import CommandWithExample
from rmq_spark.cli.shell.connection import access_of
from rmq_spark.cli.shell.health_check import HealthCheck, report_lines
from rmq_spark.cli.shell.output import terminal_width, wrap_text, write_text
from rmq_spark.cli.spark.spark_runtime import INSTALL_PYSPARK, find_java, has_pyspark, java_fault
from rmq_spark.client.errors import AccessDenied, BrokerRefused
from rmq_spark.client.instance.instance import NAME_SERVER_VARIABLE
from rmq_spark.client.profiles import current_profile_name
from rmq_spark.errors import RocketPollError, format_count
from rmq_spark.spark.brokers.fan_out import instance_for
from rmq_spark.spark.brokers.queue_client import QueueClient
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options.options import read_options, write_options
from rmq_spark.spark.options.table import OPTIONS, Use
from rmq_spark.spark.preflight import check_with_brokers

_PYSPARK_VERSION_MIN: Final = (4, 0)
_PYSPARK_VERSION_MAX: Final = (4, 3)


# ---- The Python of Spark's workers.

PYTHON_VARIABLE: Final = "PYSPARK_PYTHON"
_DEFAULT_PYTHON: Final = "python3"
_REQUIRED_PACKAGES: Final = ("numpy", "pyarrow", "orjson")
_TIMEOUT_SECONDS: Final = 60

# Spark runs workers as modules, so that the working directory comes first on their path, as with
# -c.
_PROBE: Final = """
import importlib.util, json, pkgutil, sys
def version():
    try:
        import rmq_spark
        return rmq_spark.__version__
    except ImportError:
        return None
print(json.dumps({
    "version": list(sys.version_info[:2]),
    "missing": [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None],
    "is_found": any(each.name == "pyspark_rocketpoll" for each in pkgutil.iter_modules()),
    "is_importable": importlib.util.find_spec("pyspark_rocketpoll") is not None,
    "rocketpoll": version(),
}))
"""


def check_worker_python() -> list[HealthCheck]:
    """Check which Python the workers would run, and, if it starts, which packages it has."""
    named = os.environ.get(PYTHON_VARIABLE)
    path = shutil.which(named or _DEFAULT_PYTHON)
    remedy = f"run export {PYTHON_VARIABLE}={shlex.quote(sys.executable)}"
    origin = (
        f"from {PYTHON_VARIABLE}"
        if named
        else f"{_DEFAULT_PYTHON} on PATH, because {PYTHON_VARIABLE} is not set"
    )
    if path is None:
        return [
            HealthCheck(
                "worker Python", f"there is no {named or _DEFAULT_PYTHON} ({origin})", remedy
            )
        ]
    seen = _probe(path)
    if isinstance(seen, str):
        return [HealthCheck("worker Python", f"{path} fails: {seen}", remedy)]
    version = tuple(seen["version"])
    text = ".".join(map(str, version))
    if version != sys.version_info[:2]:
        driver = ".".join(map(str, sys.version_info[:2]))
        found = (
            f"{path} is Python {text}, this one {driver}: Spark needs the same version on driver "
            "and workers"
        )
        return [HealthCheck("worker Python", found, remedy)]
    found = f"{path}, Python {text} ({origin})"
    return [
        HealthCheck("worker Python", found),
        _check_packages(path, seen, remedy),
        _check_format(path, seen, remedy),
    ]


def _check_packages(path: str, report: dict[str, Any], remedy: str) -> HealthCheck:
    missing = report["missing"]
    if missing:
        names = " ".join(missing)
        found = f"{path} has no {', '.join(missing)}"
        install = f"run {shlex.quote(path)} -m pip install {names}"
        is_other_python = Path(path).parent != Path(sys.executable).parent
        return HealthCheck(
            "its packages", found, f"{remedy}, or {install}" if is_other_python else install
        )
    return HealthCheck("its packages", ", ".join(_REQUIRED_PACKAGES))


def _check_format(path: str, report: dict[str, Any], remedy: str) -> HealthCheck:
    what = "the format"
    if not report["is_importable"]:
        return HealthCheck(what, f"{path} has no rocketpoll: Spark cannot find the format", remedy)
    if not report["is_found"]:
        found = (
            f"{path} can import pyspark_rocketpoll, but Spark does not find it in a list of "
            "modules: it is an editable install"
        )
        reinstall = f"run {shlex.quote(path)} -m pip install -e DIRECTORY without --config-settings"
        return HealthCheck(what, found, f"{reinstall}, or put the directory on PYTHONPATH")
    if report["rocketpoll"] != __version__:
        found = f"{path} has rocketpoll {report['rocketpoll']}, this Python {__version__}"
        return HealthCheck(what, found, f"{remedy}, or install the same release in both")
    return HealthCheck(what, f"rocketpoll {__version__} is found")


def _probe(path: str) -> dict[str, Any] | str:
    """Return the report of the program run by ``path``, or the reason why there is none."""
    try:
        done = subprocess.run(  # noqa: S603  # the user's own Python
            [path, "-c", _PROBE, *_REQUIRED_PACKAGES],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
        report: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    except ValueError:
        return (
            (done.stderr or done.stdout or f"exit code {done.returncode}").strip().splitlines()[-1]
        )
    return report


# ---- The cluster.

_RETRY_TIMEOUT_MS: Final = "3000"
_NAME_SERVER_REMEDY: Final = "give the address of a name server, for example localhost:9876"


def check_cluster(
    namesrv: str | None, topic: str | None, options: Mapping[str, str] = MappingProxyType({})
) -> list[HealthCheck]:
    """Check name server, certificates, credentials, topic and brokers, as far as they are given.

    ``options`` are options of source or sink, for the connections.
    """
    if namesrv is None and not options.get("profile") and not os.environ.get(NAME_SERVER_VARIABLE):
        hint = f"give --namesrv HOST:PORT or --profile NAME, or set {NAME_SERVER_VARIABLE}"
        return [_skipped("name server", hint)]
    given = {"retryTimeoutMs": _RETRY_TIMEOUT_MS, **options}
    if namesrv is not None:
        given["namesrvAddr"] = namesrv
    try:
        access = write_options(_without_read_options(given)).access
    except OptionError as wrong:
        return [HealthCheck("name server", str(wrong), _remedy_of(wrong))]
    found = check_connection(access)
    if not all(each.is_ok for each in found):
        return found
    if topic is None:
        return [*found, _skipped("topic", "give --topic NAME")]
    fault = _error_of(lambda: check_with_brokers(read_options({**given, "topic": topic})))
    if fault is not None:
        denied = check_topic_rights(access, topic)
        remedy = f"check the name, or run rocketpoll topic create {topic}"
        return [*found, denied or HealthCheck("topic", str(fault), remedy)]
    return [
        *found,
        HealthCheck("topic", f"{topic} exists"),
        _check_brokers({**given, "topic": topic}),
    ]


def _remedy_of(wrong: OptionError) -> str:
    if wrong.option.startswith("profile"):
        return "correct the profile"
    return _NAME_SERVER_REMEDY if wrong.option == "namesrvAddr" else "correct this --option"


def _without_read_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options without those for reads only; unknown ones stay, to be refused."""
    of_reads = {name.lower() for name, option in OPTIONS.items() if Use.SINK not in option.uses}
    return {name: text for name, text in given.items() if name.lower() not in of_reads}


def _error_of(check: Callable[[], object]) -> RocketPollError | None:
    try:
        check()
    except RocketPollError as error:
        return error
    return None


def _check_brokers(given: Mapping[str, str]) -> HealthCheck:
    """Check that this machine can reach the addresses that the brokers advertise."""
    options = read_options(given)
    instance = instance_for(options.access)
    try:
        queues = QueueClient(options, instance)
        ends = queues.ends(sorted(queues.discover(is_forced=True)))
        for queue in sorted({queue.broker_name: queue for queue in ends}.values()):
            address = instance.routes.address_for_read(queue.broker_name)
            instance.api.peek(address, options.group, queue, 0)  # needs the right to read
    except AccessDenied as error:
        return HealthCheck("rights", BrokerRefused.__str__(error), error.remedy)
    except RocketPollError as error:
        return HealthCheck(
            "brokers",
            str(error),
            "set brokerIP1 of the broker to an address that this machine can reach",
        )
    finally:
        instance.shutdown()
    names = sorted({queue.broker_name for queue in ends})
    return HealthCheck(
        "brokers",
        f"{', '.join(names)}: {format_count(len(ends), 'queue')}, "
        f"{format_count(sum(ends.values()), 'message')} stored in all",
    )


def _skipped(subject: str, hint: str) -> HealthCheck:
    return HealthCheck(subject, f"not checked: {hint}", is_skipped=True)


# ---- The command.


@click.command(
    cls=CommandWithExample,
    example="rocketpoll doctor\nrocketpoll doctor --bundle rocketpoll-debug.zip",
)
@click.option("--namesrv", metavar="HOST:PORT", help="Name server to check. "
              "[default: $NAMESRV_ADDR]")  # fmt: skip
@click.option("--profile", metavar="NAME", help="Section of the profiles file with addresses, keys "
              "and TLS settings.")  # fmt: skip
@click.option("--topic", metavar="NAME", help="Topic that must exist and be readable.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE",
              help="Option of the Spark source, for example tls=true. Repeatable. Other users can "
              "see command lines.")  # fmt: skip
@click.option("--bundle", metavar="FILE", type=click.Path(path_type=Path),
              help="Write a debug bundle, .zip or .tar.gz: versions, settings, findings, brokers, "
              "topics, groups and logs, without secrets and message bodies.")  # fmt: skip
@click.option("--log", "logs", metavar="FILE", multiple=True,
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Add the last lines of this log to the bundle. Repeatable. [default: those in "
              "~/logs/rocketmqlogs]")  # fmt: skip
def doctor(
    namesrv: str | None,
    profile: str | None,
    topic: str | None,
    options: tuple[str, ...],
    bundle: Path | None,
    logs: tuple[Path, ...],
) -> int:
    """Check what a first Spark stream needs, and say how to fix what is missing.

    With TLS, it says what is wrong with certificates; with keys, which rights are missing. If a
    cluster is checked, a missing PySpark is only a warning: clients and brokers do without it.

    The exit code is 1 if a check failed.
    """
    if logs and bundle is None:
        raise click.UsageError("--log needs --bundle FILE. Give the file to write")
    of_read = dict(each.partition("=")[::2] for each in options)
    if profile is None and namesrv is None and not os.environ.get(NAME_SERVER_VARIABLE):
        profile = current_profile_name()
    if profile is not None:
        of_read["profile"] = profile
    of_cluster = check_cluster(namesrv, topic, of_read)
    has_cluster = not of_cluster[0].is_skipped
    findings = [*_check_spark(is_needed=not has_cluster), *of_cluster]
    columns = terminal_width() if sys.stdout.isatty() else None
    write_text("".join(f"{line}\n" for line in report_lines(findings, columns=columns)))
    if bundle is not None:
        access = access_of({"namesrv": namesrv, "profile": profile})
        files = write_bundle(bundle, access, findings, of_read, logs)
        write_text("".join(f"{wrap_text(line)}\n" for line in ("", *bundle_lines(bundle, files))))
    return 0 if all(each.is_ok for each in findings) else 1


def _check_spark(*, is_needed: bool) -> list[HealthCheck]:
    pyspark = _check_pyspark()
    if not is_needed and not has_pyspark():
        hint = "only Spark needs them"
        return [pyspark._replace(is_warning=True), _skipped("Java and workers", hint)]
    return [pyspark, _check_java(), *check_worker_python()]


def _check_pyspark() -> HealthCheck:
    if not has_pyspark():
        return HealthCheck("pyspark", f"{sys.executable} has none", f"run {INSTALL_PYSPARK}")
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:  # an unpacked Spark on PYTHONPATH
        return HealthCheck("pyspark", "installed, unknown version")
    numbers = tuple(int(each) for each in re.findall(r"[0-9]+", version)[:2])
    if not _PYSPARK_VERSION_MIN <= numbers <= _PYSPARK_VERSION_MAX:
        return HealthCheck(
            "pyspark", f"{version}; rocketpoll needs 4.0 to 4.3", f"run {INSTALL_PYSPARK}"
        )
    return HealthCheck("pyspark", version)


def _check_java() -> HealthCheck:
    fault = java_fault()
    if fault is not None:
        found, _, remedy = fault.partition(". ")
        return HealthCheck("Java", found, remedy)
    java = find_java()
    return HealthCheck("Java", f"{java.path} is Java {java.version}" if java else "found")
