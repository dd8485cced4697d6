"""Profiles: named connection settings of a cluster, in a file of the user's.

A profile is a section of an INI file, with the names of the command line's options as keys. (INI,
because Python 3.10 cannot parse TOML.) The command line and Spark's source and sink read the same
profiles, so that keys and certificates are written down once, in a file that others cannot read.
"""

from __future__ import annotations

import configparser
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rmq_spark.client.errors import ProfileRejected
from rmq_spark.errors import nearest_name
from rmq_spark.wire.compression import PLAIN_BYTES_LIMIT_MAX
from rmq_spark.wire.names import is_namespace

PROFILES_VARIABLE: Final = "ROCKETPOLL_PROFILES"
PROFILES_FILE: Final = Path("rocketpoll") / "profiles.ini"
"""The file of profiles, below the directory of a user's settings."""

SECRETS: Final = frozenset({"secret-key", "tls-key-password", "registry-password"})
FLAGS: Final = frozenset({"tls", "tls-verify"})
FILES: Final = frozenset({"tls-ca-file", "tls-cert-file", "tls-key-file"})
PROFILE_KEYS: Final = (
    *("namesrv", "access-key", "secret-key", "tls", "tls-ca-file", "tls-cert-file", "tls-key-file"),
    *("tls-key-password", "tls-verify", "tls-server-name", "max-body-bytes", "namespace"),
    *("registry-user", "registry-password"),
)
"""The keys of a profile: names of options, and settings of TLS and registries without an option."""

CURRENT_SUFFIX: Final = ".current"
"""Suffix of the file beside the profiles that has the name of the current profile."""

CREDENTIAL_VARIABLES: Final = {
    "access-key": "ROCKETPOLL_ACCESS_KEY",
    "secret-key": "ROCKETPOLL_SECRET_KEY",
    "tls-key-password": "ROCKETPOLL_TLS_KEY_PASSWORD",
    "registry-user": "ROCKETPOLL_REGISTRY_USER",
    "registry-password": "ROCKETPOLL_REGISTRY_PASSWORD",
}
"""Environment variables for credentials, which should not be on a command line or in a program."""

_BOOLEANS: Final = {each: each in ("true", "yes", "on") for each in
                    ("true", "yes", "on", "false", "no", "off")}  # fmt: skip
_READABLE_BY_OTHERS: Final = stat.S_IRGRP | stat.S_IROTH
_SIZE_MAX: Final = 1 << 20
_NAME_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings of one profile.

    Attributes:
        name: Its name.
        path: The file.
        settings: Its values, by the names of the command line's options: text, whether a flag is
            set, or a number of bytes.
        has_exposed_secrets: Whether it has secrets, and other users can read the file.
    """

    name: str
    path: Path
    settings: Mapping[str, str | bool | int] = field(repr=False)  # secrets are among them
    has_exposed_secrets: bool = False

    @property
    def warning(self) -> str | None:
        """The text of a warning about the file; None if there is none."""
        if not self.has_exposed_secrets:
            return None
        return f"other users can read the secrets in {self.path}. Run chmod 600 {self.path}"


def read_profile(name: str) -> Profile:
    """Return the profile of a name in the file of profiles."""
    path = profiles_path(name)
    text, others_may_read = _read_file(name, path)
    return parse_profile(name, text, path, others_may_read=others_may_read)


def read_profiles() -> list[Profile]:
    """Read all profiles of the file, in its order; none if there is no file."""
    path = profiles_path()
    if not path.exists():
        return []
    text, others_may_read = _read_file("", path)
    return [
        parse_profile(name, text, path, others_may_read=others_may_read)
        for name in _sections(text, "", path).sections()
    ]


def profiles_path(name: str = "") -> Path:
    """Return the path of the file of profiles, which need not exist; ``name`` is for errors."""
    named, configured = os.environ.get(PROFILES_VARIABLE), os.environ.get("XDG_CONFIG_HOME")
    if named:
        return Path(named)
    try:
        return Path(configured or Path.home() / ".config") / PROFILES_FILE
    except RuntimeError as error:  # a user id without an account, as in containers
        raise ProfileRejected(
            name,
            f"this account has no home directory. Set {PROFILES_VARIABLE} to the path of the "
            "profiles file",
        ) from error


def current_profile_name() -> str | None:
    """Return the name of the profile that was chosen last, if any."""
    try:
        path = current_profile_path()
        return path.read_text(encoding="utf-8")[:_NAME_MAX].strip() or None
    except (OSError, UnicodeDecodeError, ProfileRejected):
        return None


def current_profile_path() -> Path:
    """Return the path of the file with the name of the current profile."""
    path = profiles_path()
    return path.with_name(path.name + CURRENT_SUFFIX)


def parse_profile(name: str, text: str, path: Path, *, others_may_read: bool = False) -> Profile:
    """Return a profile in the text of a file; ``path`` is for errors."""
    parser = _sections(text, name, path)
    if not parser.has_section(name):
        there = ", ".join(parser.sections()) or "none"
        raise ProfileRejected(
            name, f"{path} has no section [{name}]. Add it, or use one of: {there}"
        )
    section = dict(parser.items(name))
    found: dict[str, str | bool | int] = {}
    for key, value in section.items():
        if not value:
            raise ProfileRejected(name, f"{path}: [{name}] has no value for {key}. Give one")
        if key not in PROFILE_KEYS:
            near = nearest_name(key, PROFILE_KEYS)
            hint = f"Did you mean {near}?" if near else f"Use one of {', '.join(PROFILE_KEYS)}"
            raise ProfileRejected(name, f'{path}: [{name}] has the unknown setting "{key}". {hint}')
        if key in FLAGS:
            if value.lower() not in _BOOLEANS:
                raise ProfileRejected(
                    name, f"{path}: [{name}] {key} = {value}. Write true or false"
                )
            found[key] = _BOOLEANS[value.lower()]
        elif key == "max-body-bytes":
            if not (
                value.isascii() and value.isdigit() and 0 < int(value) <= PLAIN_BYTES_LIMIT_MAX
            ):
                raise ProfileRejected(
                    name,
                    f"{path}: [{name}] {key} = {value}. Write a number from 1 to "
                    f"{PLAIN_BYTES_LIMIT_MAX}",
                )
            found[key] = int(value)
        elif key == "namespace" and not is_namespace(value):
            needed = "Write a name of letters, digits and _ - |"
            raise ProfileRejected(name, f"{path}: [{name}] {key} = {value}. {needed}")
        else:
            found[key] = os.path.expanduser(value) if key in FILES else value  # noqa: PTH111  # without a home, ~ stays
    return Profile(name, path, found, others_may_read and not SECRETS.isdisjoint(found))


def _read_file(name: str, path: Path) -> tuple[str, bool]:
    """Return the text of the file of profiles, and whether other users can read the file."""
    try:
        with path.open(encoding="utf-8-sig") as file:  # editors may write a byte order mark
            text = file.read(_SIZE_MAX)
            mode = os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise ProfileRejected(
            name,
            f"cannot read {path}: {error.strerror}. Create it with rocketpoll profile create "
            f"{name or 'NAME'} --namesrv HOST:PORT",
        ) from error
    except UnicodeDecodeError as error:
        raise ProfileRejected(name, f"{path} is not an INI file: {error.reason}") from None
    if len(text) == _SIZE_MAX:
        raise ProfileRejected(
            name,
            f"{path} has more than {_SIZE_MAX} characters. Point {PROFILES_VARIABLE} at a "
            "file of profiles",
        )
    return text, bool(mode & _READABLE_BY_OTHERS)


def _sections(text: str, name: str, path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text, str(path))
    except configparser.Error as error:
        raise ProfileRejected(name, f"{path} is not an INI file: {_without_lines(error)}") from None
    return parser


def _without_lines(error: configparser.Error) -> str:
    """Return what is wrong with a file, without its lines, which may have secrets."""
    if isinstance(error, configparser.MissingSectionHeaderError):
        return f"line {error.lineno} stands before any section, such as [prod]"
    if isinstance(error, configparser.ParsingError):
        numbers = ", ".join(str(number) for number, _ in error.errors)
        return f"line {numbers} has no ="
    return str(error)
