"""``rocketpoll user``: list, show, create, update and delete the users of brokers.

A password comes from a prompt, from stdin or from an environment variable. Each broker has its own
users; each row of a table names the brokers on which the user has these properties.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click

from rmq_spark.cli.shell.command_tree import CommandGroup
from rmq_spark.cli.shell.connection import ClusterAccess, cluster_options
from rmq_spark.cli.shell.failures import Failure, ask_secret, confirm
from rmq_spark.cli.shell.output import Row, output_option, show_document, show_rows, write_text
from rmq_spark.client.admin.access_lists import AclPolicy, ClusterUser
from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.errors import NotFound, NotSupported

PASSWORD_VARIABLE: Final = "ROCKETPOLL_USER_PASSWORD"  # noqa: S105  # the name of a variable
POLICY_COLUMNS: Final = ("user", "resource", "actions", "sources", "decision", "brokers")
_USER_COLUMNS: Final = ("user", "type", "status", "brokers")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Entry = TypeVar("_Entry", ClusterUser, AclPolicy)


def broker_options(function: _Function) -> _Function:
    """Add ``--cluster`` and ``--broker``, which a command gets as its argument ``where``."""

    @click.option("--cluster", metavar="NAME", help="Limit to the brokers of this cluster.")
    @click.option("--broker", metavar="NAME", help="Limit to this broker and its slaves.")
    @functools.wraps(function)
    def run(*arguments: Any, cluster: str | None, broker: str | None, **given: Any) -> Any:
        where = {"cluster": cluster, "broker_name": broker}
        return function(*arguments, where=where, **given)

    return run  # type: ignore[return-value]  # called as the function was


@contextmanager
def access_admin(access: ClusterAccess) -> Iterator[Admin]:
    """Yield an `Admin`; raise a Failure with the remedy if a broker has no users (RocketMQ 4.9)."""
    try:
        with access.admin() as admin:
            yield admin
    except NotSupported as error:
        raise Failure(
            f"the broker at {error.address} has no users and access lists of RocketMQ 5",
            "Edit the accounts of RocketMQ 4.9 in its conf/plain_acl.yml, which it reloads",
        ) from error


@click.group(cls=CommandGroup)
def user() -> None:
    """List, show, create, update and delete users of brokers."""


@user.command("list", example="rocketpoll user list")
@output_option
@broker_options
@cluster_options
def list_users(output: str, where: Mapping[str, Any], access: ClusterAccess) -> None:
    """List all users.

    Super users may do everything. rocketpoll acl list shows what other users may do.
    """
    with access_admin(access) as admin:
        by_broker = admin.users(**where)
    empty = "no users. Create one with rocketpoll user create NAME"
    show_rows(user_rows(by_broker), _USER_COLUMNS, output, empty_text=empty)


@user.command(example="rocketpoll user show billing")
@click.argument("name", metavar="NAME")
@output_option
@broker_options
@cluster_options
def show(name: str, output: str, where: Mapping[str, Any], access: ClusterAccess) -> None:
    """Show a user with its access list."""
    with access_admin(access) as admin:
        rows = user_rows(
            {broker: {name: found} for broker, found in _user(admin, name, where).items()}
        )
        policies = policy_rows(admin.acls(name, **where))
    document: dict[str, object] = {"user": name}
    if len(rows) == 1:
        document |= {key: rows[0][key] for key in _USER_COLUMNS[1:]}
    else:
        document["accounts"] = rows
    shown = [{key: row[key] for key in POLICY_COLUMNS if key != "user"} for row in policies]
    show_document({**document, "access_list": shown}, output)


@user.command(example="rocketpoll user create billing --password-stdin < password.txt")
@click.argument("name", metavar="NAME")
@click.option("--super", "is_super", is_flag=True, help="Allow the user everything.")
@click.option("--password-stdin", is_flag=True, help="Read the password from the first line of "
              "stdin.")  # fmt: skip
@click.option("--password", metavar="TEXT", help="Password. Other users can see command lines: "
              f"prefer the prompt, --password-stdin or ${PASSWORD_VARIABLE}.")  # fmt: skip
@broker_options
@cluster_options
def create(
    name: str,
    password: str | None,
    where: Mapping[str, Any],
    access: ClusterAccess,
    *,
    is_super: bool,
    password_stdin: bool,
) -> None:
    """Create a user on all brokers.

    Without an option, the password comes from $ROCKETPOLL_USER_PASSWORD, or from a prompt. Clients
    use the name as access key, and the password as secret key. A user may do nothing at first: see
    rocketpoll acl grant.
    """
    with access_admin(access) as admin:
        users_by_broker = admin.users(**where)
        if users_by_broker and all(name in users for users in users_by_broker.values()):
            raise Failure(
                f"there is a user {name} already",
                f"Show it with rocketpoll user show {name}, or change it with rocketpoll user "
                "update",
            )
        secret = _read_password(name, password, from_stdin=password_stdin)
        admin.create_user(name, secret, is_super=is_super, **where)
    kind = "super user" if is_super else "user"
    hint = "" if is_super else f". Grant it rights with rocketpoll acl grant {name}"
    write_text(f"created {kind} {name} on {', '.join(users_by_broker)}{hint}\n")


@user.command(example="rocketpoll user update billing --disable")
@click.argument("name", metavar="NAME")
@click.option("--new-password", is_flag=True, help="Change the password, which comes from "
              f"${PASSWORD_VARIABLE} or a prompt.")  # fmt: skip
@click.option("--password-stdin", is_flag=True, help="Change the password to the first line of "
              "stdin.")  # fmt: skip
@click.option("--password", metavar="TEXT", help="Change the password to this. Other users can see "
              "command lines.")  # fmt: skip
@click.option("--super/--normal", "is_super", default=None, help="Allow the user everything, or "
              "what its access list allows.")  # fmt: skip
@click.option("--enable/--disable", "is_enabled", default=None, help="Accept or refuse the user.")
@broker_options
@cluster_options
def update(
    name: str,
    password: str | None,
    where: Mapping[str, Any],
    access: ClusterAccess,
    *,
    new_password: bool,
    password_stdin: bool,
    is_super: bool | None,
    is_enabled: bool | None,
) -> None:
    """Change a user's password, type or status on all brokers.

    Clients that use the old password, or a disabled user, are refused from then on.
    """
    has_password = new_password or password_stdin or password is not None
    if not has_password and is_super is None and is_enabled is None:
        raise click.UsageError("nothing to change. Give --new-password, --disable or --super")
    with access_admin(access) as admin:
        _user(admin, name, where)
        secret = None
        if has_password:
            secret = _read_password(name, password, from_stdin=password_stdin)
        admin.update_user(name, password=secret, is_super=is_super, is_enabled=is_enabled, **where)
        rows = user_rows({each: {name: now} for each, now in _user(admin, name, where).items()})
    if has_password:
        write_text(f"changed the password of {name}\n")
    for row in rows:
        brokers = ", ".join(row["brokers"])
        write_text(f"{name} is a {row['type'].lower()} user, {row['status']}, on {brokers}\n")


@user.command(example="rocketpoll user delete billing --yes")
@click.argument("name", metavar="NAME")
@click.option("--yes", is_flag=True, help="Do not ask.")
@broker_options
@cluster_options
def delete(name: str, where: Mapping[str, Any], access: ClusterAccess, *, yes: bool) -> None:
    """Delete a user with its access list, on all brokers."""
    with access_admin(access) as admin:
        brokers = _user(admin, name, where)
        confirm(f"delete user {name} on {', '.join(brokers)}", yes=yes)
        admin.delete_user(name, **where)
    write_text(f"deleted user {name} on {', '.join(brokers)}\n")


def user_rows(by_broker: Mapping[str, Mapping[str, ClusterUser]]) -> list[dict[str, Any]]:
    """Return the rows of users by name; a user that differs between brokers has several."""
    brokers = _brokers_of({broker: users.values() for broker, users in by_broker.items()})
    return [
        {
            "user": each.name,
            "type": "Super" if each.is_super else "Normal",
            "status": "enabled" if each.is_enabled else "disabled",
            "brokers": where,
        }
        for each, where in sorted(brokers.items(), key=lambda pair: (pair[0].name, pair[1]))
    ]


def policy_rows(by_broker: Mapping[str, tuple[AclPolicy, ...]]) -> list[dict[str, Any]]:
    """Return a row for each entry of access lists, with the brokers that have it."""
    brokers = _brokers_of(by_broker)
    return [
        {
            "user": each.user,
            "resource": each.resource,
            "actions": list(each.actions),
            "sources": list(each.sources),
            "decision": "Allow" if each.is_allowed else "Deny",
            "brokers": where,
        }
        for each, where in sorted(
            brokers.items(), key=lambda pair: (pair[0].user, pair[0].resource, pair[1])
        )
    ]


def _brokers_of(by_broker: Mapping[str, Iterable[_Entry]]) -> dict[_Entry, list[str]]:
    brokers: dict[_Entry, list[str]] = {}
    for broker, entries in by_broker.items():
        for each in entries:
            brokers.setdefault(each, []).append(broker)
    return brokers


def _user(admin: Admin, name: str, where: Row) -> Mapping[str, ClusterUser]:
    try:
        return admin.user(name, **where)  # type: ignore[arg-type]  # made by broker_options
    except NotFound as error:
        raise Failure(f"there is no user {name}", "List all with rocketpoll user list") from error


def _read_password(name: str, given: str | None, *, from_stdin: bool) -> str:
    """Return the password from the option, stdin, the variable or a prompt."""
    if given is not None:
        if from_stdin:
            raise click.UsageError("--password and --password-stdin exclude each other")
        sys.stderr.write(
            "rocketpoll: other users of this machine can see --password. Prefer --password-stdin "
            f"or {PASSWORD_VARIABLE}\n"
        )
        return given
    if not from_stdin and (variable := os.environ.get(PASSWORD_VARIABLE)):
        return variable
    ways = f"--password-stdin, or set {PASSWORD_VARIABLE}"
    return ask_secret("password", name, ways, from_stdin=from_stdin, is_confirmed=True)
