"""``rocketpoll profile``: creates, lists, shows, chooses and deletes profiles.

A profile is a section of the INI file that the client, Spark and all commands read
(`rmq_spark.client.profiles`). Its text is edited by lines, so that comments and the order of the
file stay; each new text is parsed before it replaces the file, which only its user can read. No
command prints secrets.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from rmq_spark.cli.shell.command_tree import CommandGroup
from rmq_spark.cli.shell.connection import profile_options
from rmq_spark.cli.shell.failures import Failure, ask_secret, confirm
from rmq_spark.cli.shell.output import output_option, show_document, show_rows, write_text
from rmq_spark.client.errors import ProfileRejected
from rmq_spark.client.profiles import (
    PROFILE_KEYS,
    PROFILES_VARIABLE,
    SECRETS,
    Profile,
    current_profile_name,
    current_profile_path,
    parse_profile,
    profiles_path,
    read_profile,
    read_profiles,
)
from rmq_spark.errors import nearest_name

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_HEADER: Final = re.compile(r"\[(?P<name>[^\]]+)\]")
_FILE_MODE: Final = 0o600
_HIDDEN: Final = "(hidden)"


@click.group(cls=CommandGroup)
def profile() -> None:
    """Create, choose and list profiles: named connection settings.

    All commands use the chosen profile, unless an address is given by --namesrv, --profile or
    NAMESRV_ADDR.
    """


@profile.command("list", example="rocketpoll profile list")
@output_option
def list_profiles(output: str) -> None:
    """List all profiles; the one in use has a mark."""
    current = current_profile_name()
    rows = [
        {
            "profile": each.name,
            "current": each.name == current,
            "namesrv": each.settings.get("namesrv"),
            "access_key": each.settings.get("access-key"),
            "tls": _uses_tls(each),
        }
        for each in _read_all()
    ]
    show_rows(
        rows,
        ("profile", "current", "namesrv", "access_key", "tls"),
        output,
        empty_text="no profiles. Create one with rocketpoll profile create NAME --namesrv "
        "HOST:PORT",
    )


@profile.command(example="rocketpoll profile show prod")
@click.argument("name", metavar="[PROFILE]", required=False)
@output_option
def show(name: str | None, output: str) -> None:
    """Show the settings of a profile, by default of the one in use, without secrets."""
    chosen = _read(name or _current())
    shown: dict[str, object] = {"profile": chosen.name, "file": str(chosen.path)}
    for key, value in chosen.settings.items():
        shown[key] = _HIDDEN if key in SECRETS else value
    show_document(shown, output)


@profile.command(
    example="rocketpoll profile create prod --namesrv 'mq-1:9876;mq-2:9876' --use\n"
    "rocketpoll profile create secured --namesrv mq-1:9876 --access-key operator "
    "--secret-key-stdin < key.txt"
)
@click.argument("name", metavar="PROFILE")
@click.option("--secret-key-stdin", is_flag=True,
              help="Read the secret key from the first line of stdin.")  # fmt: skip
@click.option("--replace", is_flag=True, help="Replace the profile if it exists.")
@click.option("--use", "is_used", is_flag=True, help="Use the profile from now on.")
@profile_options
def create(
    name: str,
    settings: dict[str, Any],
    *,
    secret_key_stdin: bool,
    replace: bool,
    is_used: bool,
) -> None:
    """Create a profile.

    With --access-key, the command asks for the secret key. Passwords of TLS keys and of schema
    registries have no option: add tls-key-password, registry-user and registry-password to the
    file. Comments of the file are kept; other users cannot read it.
    """
    _check_name(name)
    if "namesrv" not in settings:
        raise click.UsageError("--namesrv is missing. Give the address of a name server, HOST:PORT")
    if "access-key" in settings and "secret-key" not in settings:
        settings["secret-key"] = ask_secret(
            "secret key", name, "--secret-key-stdin", from_stdin=secret_key_stdin
        )
    elif "access-key" not in settings and (secret_key_stdin or "secret-key" in settings):
        raise click.UsageError("--access-key is missing. Give the name of the account")
    path, text = profiles_path(), _read_text()
    if _has_section(text, name) and not replace:
        raise Failure(f"{path} has a profile {name} already", "Add --replace, or choose a name")
    changed = with_section(text, name, _to_texts(settings))
    try:
        parse_profile(name, changed, path)
    except ProfileRejected as error:
        raise Failure(error.problem) from error
    _write_text(path, changed)
    if is_used:
        _write_text(current_profile_path(), f"{name}\n")
    write_text(f"created {name} in {path}{', and using it' if is_used else ''}\n")


@profile.command(example="rocketpoll profile use prod")
@click.argument("name", metavar="[PROFILE]", required=False)
@click.option("--none", "is_none", is_flag=True, help="Use no profile from now on.")
def use(name: str | None, *, is_none: bool) -> None:
    """Choose the profile that all commands use from now on."""
    if is_none == (name is not None):
        raise click.UsageError("give the name of a PROFILE, or --none")
    if name is None:
        with suppress(FileNotFoundError):
            current_profile_path().unlink()
        write_text("using no profile\n")
        return
    chosen = _read(name)
    _write_text(current_profile_path(), f"{name}\n")
    write_text(f"using {name}: {chosen.settings.get('namesrv', 'no namesrv')}\n")
    if os.environ.get("NAMESRV_ADDR"):
        sys.stderr.write("rocketpoll: NAMESRV_ADDR is set and has precedence. Unset it\n")


@profile.command(example="rocketpoll profile delete test --yes")
@click.argument("name", metavar="PROFILE")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(name: str, *, yes: bool) -> None:
    """Delete a profile from the file. Its comments stay."""
    text = _read_text()
    if not _has_section(text, name):
        _read(name)  # the error lists the profiles
    confirm(f"delete the profile {name} with its keys", yes=yes)
    _write_text(profiles_path(), without_section(text, name))
    if current_profile_name() == name:
        current_profile_path().unlink()
    write_text(f"deleted {name}\n")


# ---- The text of the file.


def with_section(text: str, name: str, settings: Mapping[str, str]) -> str:
    """Return the text of an INI file with a section added, or replaced at its place."""
    lines = [f"[{name}]\n", *(f"{key} = {value}\n" for key, value in settings.items())]
    kept = text.splitlines(keepends=True)
    found = _section_range(kept, name)
    if found is not None:
        begin, end = found
        comments = [line for line in kept[begin:end] if _is_comment(line)]
        return "".join((*kept[:begin], lines[0], *comments, *lines[1:], *kept[end:]))
    if kept and not kept[-1].endswith("\n"):
        kept[-1] += "\n"
    gap = ["\n"] if kept and kept[-1].strip() else []
    return "".join((*kept, *gap, *lines))


def without_section(text: str, name: str) -> str:
    """Return the text of an INI file without a section; its comments stay."""
    kept = text.splitlines(keepends=True)
    found = _section_range(kept, name)
    if found is None:
        return text
    begin, end = found
    comments = [line for line in kept[begin:end] if _is_comment(line)]
    return "".join((*kept[:begin], *comments, *kept[end:]))


def _section_range(lines: list[str], name: str) -> tuple[int, int] | None:
    """Return the first line of a section, and the line after its last setting."""
    begin = next((at for at, line in enumerate(lines) if _section_name(line) == name), None)
    if begin is None:
        return None
    end = begin + 1
    for at in range(begin + 1, len(lines)):
        if _section_name(lines[at]) is not None:
            break
        if lines[at].strip() and not _is_comment(lines[at]):
            end = at + 1
    return begin, end


def _section_name(line: str) -> str | None:
    found = _HEADER.match(line)
    return None if found is None else found["name"]


def _is_comment(line: str) -> bool:
    return line.strip()[:1] in ("#", ";")


def _has_section(text: str, name: str) -> bool:
    return _section_range(text.splitlines(keepends=True), name) is not None


def _to_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    texts = {}
    for key in PROFILE_KEYS:
        value = settings.get(key)
        if value is None:
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if not text.strip() or text != text.strip() or not text.isprintable():
            raise click.UsageError(
                f"--{key} is empty, or has blanks around it or control characters. Correct it"
            )
        texts[key] = text
    return texts


# ---- Files.


def _read_text() -> str:
    path = profiles_path()
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise Failure(
            f"cannot read {path}: {reason}", f"Fix it, or set {PROFILES_VARIABLE}"
        ) from error


def _write_text(path: Path, text: str) -> None:
    """Replace a file atomically; only its user can read it."""
    path = path.resolve()  # a symbolic link stays
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                os.chmod(name, _FILE_MODE)  # noqa: PTH101  # mkstemp returns a str
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)  # noqa: PTH105  # mkstemp returns a str
        except BaseException:
            with suppress(OSError):
                os.unlink(name)  # noqa: PTH108  # mkstemp returns a str
            raise
    except OSError as error:
        raise Failure(
            f"cannot write {path}: {error.strerror}", f"Set {PROFILES_VARIABLE} to another file"
        ) from error


def _read(name: str) -> Profile:
    try:
        return read_profile(name)
    except ProfileRejected as error:
        names = [each.name for each in _read_all()]
        near = nearest_name(name, names)
        if names and name not in names:
            hint = f"Did you mean {near}? " if near else ""
            raise Failure(
                f"there is no profile {name}", f"{hint}List all with rocketpoll profile list"
            ) from error
        raise Failure(error.problem) from error


def _read_all() -> list[Profile]:
    try:
        return read_profiles()
    except ProfileRejected as error:
        raise Failure(error.problem) from error


def _current() -> str:
    name = current_profile_name()
    if name is None:
        raise click.UsageError(
            "no profile is in use. Name one, or choose one with rocketpoll profile use PROFILE"
        )
    return name


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or name == "DEFAULT":
        raise click.UsageError(
            f"{name!r} cannot name a profile. Use letters, digits, - _ and ., but not DEFAULT"
        )


def _uses_tls(found: Profile) -> bool:
    certificates = any(key.startswith("tls-") for key in found.settings)
    return bool(found.settings.get("tls", certificates))
