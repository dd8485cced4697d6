"""Debug bundle: what to attach to a question about a cluster, in one file, without secrets.

    versions, settings, findings, brokers, topics, groups, logs ──> redact ──> FILE.zip or .tar.gz

Each text passes through `Redactor`. It hides the secrets that this machine's profiles, variables
and options have, wherever they occur and however they are quoted, and values whose names say that
they are secret, such as those of a broker's settings. Message bodies are never read.
"""

from __future__ import annotations

import base64
import io
import json
import os
import platform
import re
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, quote_plus

from rmq_spark import __version__
from rmq_spark.cli.cluster.cluster_command import query_brokers
from rmq_spark.cli.groups.group_state import summarize_group
from rmq_spark.cli.shell.connection import ClusterAccess
from rmq_spark.cli.shell.failures import Failure, describe_error
from rmq_spark.cli.shell.health_check import HealthCheck, report_lines
from rmq_spark.cli.shell.output import ByteSize
from rmq_spark.client.admin.lookups import ADMIN_TIMEOUT_MS
from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.errors import ProfileRejected
from rmq_spark.client.profiles import (
    CREDENTIAL_VARIABLES,
    SECRETS,
    current_profile_name,
    profiles_path,
    read_profiles,
)
from rmq_spark.errors import RocketPollError, format_count
from rmq_spark.wire.names import is_system_group, is_system_topic

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin

HIDDEN: Final = "(hidden)"
TOPICS_MAX: Final = 1_000
GROUPS_MAX: Final = 500
LOG_LINES_MAX: Final = 2_000
_LOG_BYTES_MAX: Final = 1 << 20
_SECRET_LENGTH_MIN: Final = 4
_NOTE: Final = (
    "The bundle has names of hosts, topics, groups and clients, but no message bodies. Secrets are "
    "hidden; check the bundle before you send it to somebody."
)
_SUFFIXES: Final = (".zip", ".tar.gz", ".tgz")
_ROCKETMQ_LOGS: Final = Path("logs") / "rocketmqlogs"
_VARIABLE_PREFIXES: Final = ("NAMESRV_ADDR", "ROCKETPOLL_", "PYSPARK_", "SPARK_", "JAVA_HOME")
_PACKAGES: Final = (
    *("numpy", "pyarrow", "orjson", "click", "rich", "PyYAML", "isal", "uvloop", "cryptography"),
    *("prometheus-client", "pyspark", "pandas", "polars", "deltalake", "setproctitle"),
)

_NO_SECRETS: Final = ("", "none", "true", "false")
"""Values that are no secrets, although their settings have a secret's name."""
_SECRET_NAME: Final = re.compile(
    r"secret|passw|passphrase|token|credential|private.?key|access.?key|api.?key|authorization",
    re.IGNORECASE,
)
_ASSIGNMENT: Final = re.compile(
    r"""(?P<name>["']?[\w.-]*(?:secret|passw|passphrase|token|credential|private.?key|access.?key"""
    r"""|api.?key|authorization)[\w.-]*["']?\s*(?:[=:]+|is\b)\s*|--[\w-]*(?:secret|passw|token)[\w-]*\s+)"""
    r"""(?P<value>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|(?:Bearer\s+|Basic\s+)?[^\s,;&}\])]+)""",
    re.IGNORECASE,
)
_USER_INFO: Final = re.compile(r"(?P<scheme>\w+://)[^\s/@]+:[^\s/@]+@")
_PRIVATE_KEY: Final = re.compile(
    r"(?:-----BEGIN [A-Z ]*PRIVATE KEY-----|\A)(?:(?!-----BEGIN).)*?"
    r"-----END [A-Z ]*PRIVATE KEY-----"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*",
    re.DOTALL,
)
"""A private key, or a part of one at the beginning or the end of a text."""


class Redactor:
    """Removes secrets from texts and documents."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """Remember secrets, each in the forms in which it may be quoted.

        A secret of less than four characters is hidden only where its setting's name precedes it.
        """
        forms = {
            form
            for secret in secrets
            if len(secret) >= _SECRET_LENGTH_MIN
            for form in _quoted_forms(secret)
        }
        longest_first = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        text = self._hide_known(text)
        text = _PRIVATE_KEY.sub(HIDDEN, text)
        text = _USER_INFO.sub(rf"\g<scheme>{HIDDEN}@", text)
        return _ASSIGNMENT.sub(rf"\g<name>{HIDDEN}", text)

    def document(self, value: Any) -> Any:
        """Return a document of mappings, lists and texts without secrets."""
        if isinstance(value, Mapping):
            return {
                self._hide_known(str(name)): HIDDEN
                if _SECRET_NAME.search(str(name)) and str(each).lower() not in _NO_SECRETS
                else self.document(each)
                for name, each in value.items()
            }
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self.document(each) for each in value]
        return self.text(value) if isinstance(value, str) else value

    def _hide_known(self, text: str) -> str:
        return text if self._known is None else self._known.sub(HIDDEN, text)


def _quoted_forms(secret: str) -> set[str]:
    encoded = base64.b64encode(secret.encode(errors="surrogateescape")).decode()
    return {
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
        quote(secret, errors="replace"),
        quote(secret, safe="", errors="replace"),
        quote_plus(secret, errors="replace"),
        encoded,
    }


def known_secrets(access: ClusterAccess, options: Mapping[str, str]) -> list[str]:
    """Return the secrets that this machine's settings have: profiles, variables and options."""
    found = [str(access.settings[name]) for name in SECRETS & access.settings.keys()]
    found += [os.environ[each] for each in CREDENTIAL_VARIABLES.values() if os.environ.get(each)]
    found += [text for name, text in os.environ.items() if _SECRET_NAME.search(name)]
    found += [text for name, text in options.items() if _SECRET_NAME.search(name)]
    with suppress(ProfileRejected):
        for profile in read_profiles():
            found += [str(profile.settings[name]) for name in SECRETS & profile.settings.keys()]
    return [each for each in found if each]


class BundledFile(NamedTuple):
    """A file of a bundle: its name, a line about it, and its text."""

    name: str
    about: str
    text: str


def write_bundle(
    path: Path,
    access: ClusterAccess,
    findings: Sequence[HealthCheck],
    options: Mapping[str, str],
    logs: Sequence[Path],
) -> list[BundledFile]:
    """Write a bundle to a new file, which only its user can read; return what is in it."""
    if not path.name.endswith(_SUFFIXES):
        raise Failure(f"{path} cannot be the name of a bundle", "End it with .zip or .tar.gz")
    redactor = Redactor(known_secrets(access, options))
    files = [
        _file(redactor, "versions.json", "versions of programs and packages", _versions),
        _file(
            redactor,
            "findings.txt",
            "what the doctor found",
            lambda: "\n".join([*report_lines(findings), ""]),
        ),
        _file(
            redactor,
            "settings.json",
            "variables, profiles and options, without secrets",
            lambda: _settings(access, options),
        ),
        *_cluster_files(redactor, access),
        *(_log_file(redactor, each) for each in (*logs, *_local_logs())),
    ]
    _write(path, files)
    return files


def _file(redactor: Redactor, name: str, about: str, read: Callable[[], object]) -> BundledFile:
    """Return a file with the result of a function, or with the reason why it failed."""
    try:
        found = read()
    except RocketPollError as error:
        found = {"error": describe_error(error)}
    except OSError as error:
        found = {"error": str(error)}
    if isinstance(found, str):
        return BundledFile(name, about, redactor.text(found))
    document = json.dumps(redactor.document(found), indent=2, ensure_ascii=False, default=str)
    return BundledFile(name, about, document + "\n")


def _versions() -> Mapping[str, object]:
    packages = {}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
    return {
        "rocketpoll": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "packages": packages,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _settings(access: ClusterAccess, options: Mapping[str, str]) -> Mapping[str, object]:
    profiles: object
    try:
        profiles = {each.name: dict(each.settings) for each in read_profiles()}
    except ProfileRejected as error:
        profiles = {"error": error.problem}
    return {
        "variables": {
            name: text
            for name, text in sorted(os.environ.items())
            if name.startswith(_VARIABLE_PREFIXES)
        },
        "profiles_file": str(profiles_path()),
        "profiles": profiles,
        "current_profile": current_profile_name(),
        "options": dict(options),
        "connection": dict(access.settings),
        "arguments": sys.argv[1:],
    }


def _cluster_files(redactor: Redactor, access: ClusterAccess) -> list[BundledFile]:
    def ask(read: Callable[[Admin], object]) -> Callable[[], object]:
        def asked() -> object:
            with access.admin() as admin:
                return read(admin)

        return asked

    return [
        _file(redactor, "brokers.json", "brokers, their figures and settings", ask(_brokers)),
        _file(redactor, "topics.json", f"queues of up to {TOPICS_MAX:,} topics", ask(_topics)),
        _file(redactor, "groups.json", f"lag and members of up to {GROUPS_MAX:,} groups",
              ask(_groups)),
    ]  # fmt: skip


def _brokers(admin: Admin) -> object:
    api = BrokerApi(admin.instance.connections, ADMIN_TIMEOUT_MS)
    found = []
    for broker in query_brokers(admin):
        row: dict[str, object] = {
            "cluster": broker.cluster,
            "broker": broker.title,
            "address": broker.address,
            "fault": broker.fault,
            "runtime": broker.info,
        }
        try:
            row["settings"] = api.admin.broker_config(broker.address)
        except RocketPollError as error:
            row["settings"] = {"error": describe_error(error)}
        found.append(row)
    return found


def _topics(admin: Admin) -> object:
    tables = admin.all_topic_configs()
    names = sorted({name for table in tables.values() for name in table})
    shown = [name for name in names if not is_system_topic(name)][:TOPICS_MAX]
    return {
        "topics": len(names),
        "shown": {
            name: {
                broker: {
                    "read_queues": table[name].read_queue_nums,
                    "write_queues": table[name].write_queue_nums,
                    "perm": table[name].perm,
                    "attributes": dict(table[name].attributes or {}),
                }
                for broker, table in tables.items()
                if name in table
            }
            for name in shown
        },
    }


def _groups(admin: Admin) -> object:
    names = sorted(each for each in admin.groups() if not is_system_group(each))
    found: dict[str, object] = {}
    for name in names[:GROUPS_MAX]:
        try:
            summary = summarize_group(admin, name)
        except RocketPollError as error:
            found[name] = {"error": describe_error(error)}
            continue
        found[name] = {
            "members": summary.member_count,
            "topics": summary.topics,
            "behind": summary.behind,
            "last_consumed_ms": summary.last_consumed_ms,
        }
    return {"groups": len(names), "shown": found}


def _local_logs() -> list[Path]:
    """Return the logs of a RocketMQ on this machine; rocketpoll's broker logs to stderr."""
    with suppress(RuntimeError, OSError):  # an account without a home
        directory = Path.home() / _ROCKETMQ_LOGS
        return [
            path for name in ("broker", "namesrv") if (path := directory / f"{name}.log").is_file()
        ]
    return []


def _log_file(redactor: Redactor, path: Path) -> BundledFile:
    def read() -> str:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _LOG_BYTES_MAX, 0))
            lines = (
                file.read(_LOG_BYTES_MAX)
                .decode(errors="backslashreplace")
                .splitlines(keepends=True)
            )
        if size > _LOG_BYTES_MAX:
            lines = lines[1:]  # half a line may have half a secret
        return "".join(lines[-LOG_LINES_MAX:])

    about = f"the last {LOG_LINES_MAX:,} lines of {path}"
    found = _file(redactor, f"logs/{path.name}.txt", about, read)
    return found._replace(about=redactor.text(about))


def _write(path: Path, files: Sequence[BundledFile]) -> None:
    listed = "".join(f"{each.name}: {each.about}\n" for each in files)
    readme = BundledFile("README.txt", "this list", f"Written by rocketpoll doctor.\n\n{listed}")
    root = path.name.removesuffix(".zip").removesuffix(".gz").removesuffix(".tar")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            pack = _write_zip if path.name.endswith(".zip") else _write_tar
            pack(file, [(f"{root}/{each.name}", each.text.encode("utf-8", "backslashreplace"))
                        for each in (readme, *files)])  # fmt: skip
    except FileExistsError:
        raise Failure(f"{path} exists already", "Choose another name") from None
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}", "Choose another path") from error


def _write_zip(file: Any, members: Iterable[tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)


def _write_tar(file: Any, members: Iterable[tuple[str, bytes]]) -> None:
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(content))


def bundle_lines(path: Path, files: Sequence[BundledFile]) -> list[str]:
    """Return the lines that say what is in a bundle."""
    width = max(len(each.name) for each in files)
    size = ByteSize(path.stat().st_size)
    return [
        f"wrote {path} ({size}) with {format_count(len(files), 'file')}:",
        *(f"  {each.name:{width}}  {each.about}" for each in files),
        _NOTE,
    ]
