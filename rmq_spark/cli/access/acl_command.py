"""``rocketpoll acl``: list, grant, deny and revoke what users may do.

    rocketpoll acl grant billing Topic:orders Group:billing --actions Sub

A user has one entry for each resource: grant and deny add their actions to it, and refuse to
replace an entry with another decision or other addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import click

from rmq_spark.cli.access.user_command import (
    POLICY_COLUMNS,
    access_admin,
    broker_options,
    policy_rows,
)
from rmq_spark.cli.shell.command_tree import CommandGroup, option_set
from rmq_spark.cli.shell.connection import ClusterAccess, cluster_options
from rmq_spark.cli.shell.failures import Failure, confirm
from rmq_spark.cli.shell.output import output_option, show_rows, write_text
from rmq_spark.client.admin.access_lists import ACTIONS, AclPolicy, parse_actions, parse_resource
from rmq_spark.client.errors import MessageRejected
from rmq_spark.errors import format_count

_RESOURCES: Final = "Topic:orders, 'Topic:orders*', 'Group:*', '*'"


def _actions(_: click.Context, __: click.Parameter, text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    try:
        return parse_actions([each.strip() for each in text.split(",")])
    except MessageRejected as error:
        raise click.BadParameter(f"{error.found!r} is not {error.needed}") from error


def _resources(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(dict.fromkeys(map(parse_resource, texts)))
    except MessageRejected as error:
        raise click.BadParameter(f"{error.found!r} is not {error.needed}") from error


_entry_parameters: Final = option_set(
    click.argument("user", metavar="USER"),
    click.argument(
        "resources", nargs=-1, required=True, metavar="RESOURCE...", callback=_resources
    ),
    click.option("--actions", required=True, metavar="A,B", callback=_actions,
                 help=f"Some of {', '.join(ACTIONS)}."),
    click.option("--from", "sources", multiple=True, metavar="ADDRESS",
                 help="Limit to clients at this IP address or range, as 10.0.0.0/8. Repeatable."),
    broker_options,
    cluster_options,
)  # fmt: skip


@click.group(cls=CommandGroup)
def acl() -> None:
    """List, grant, deny and revoke what users may do."""


@acl.command("list", example="rocketpoll acl list --user billing")
@click.option("--user", metavar="NAME", help="Limit to this user.")
@click.option("--resource", metavar="RESOURCE", callback=lambda _, __, text: text and
              _resources(_, __, (text,))[0], help="Limit to entries that match this resource, "
              "such as Topic:orders: who may use it.")  # fmt: skip
@output_option
@broker_options
@cluster_options
def list_acls(
    user: str | None,
    resource: str | None,
    output: str,
    where: Mapping[str, Any],
    access: ClusterAccess,
) -> None:
    """List the entries of access lists: who may do what.

    If several entries match a request, the one with the most specific resource decides: a name
    before a prefix, a longer prefix before a shorter one. Super users need no entries.
    """
    with access_admin(access) as admin:
        rows = policy_rows(admin.acls(user, **where))
    if resource is not None:
        rows = [row for row in rows if _matches(row["resource"], resource)]
    empty = "no entries. Add one with rocketpoll acl grant USER RESOURCE --actions Pub"
    show_rows(rows, POLICY_COLUMNS, output, empty_text=empty)


@acl.command(example="rocketpoll acl grant billing Topic:orders Group:billing --actions Sub")
@_entry_parameters
def grant(**entry: Any) -> None:
    """Allow a user actions on resources, in addition to what it may do already.

    A resource is a topic, a group or the cluster, as Topic:orders, 'Topic:orders*' for all whose
    names begin so, 'Group:*' for all groups, '*' for everything. A producer needs Pub on its
    topics; a consumer needs Sub on its topics and its group.
    """
    _add(**entry, is_allowed=True)


@acl.command(example="rocketpoll acl deny billing 'Topic:orders-secret*' --actions All")
@_entry_parameters
def deny(**entry: Any) -> None:
    """Deny a user actions on resources that a broader entry allows.

    What no entry allows is denied anyway. Super users are denied nothing.
    """
    _add(**entry, is_allowed=False)


@acl.command(example="rocketpoll acl revoke billing Topic:orders --yes")
@click.argument("user", metavar="USER")
@click.argument("resources", nargs=-1, metavar="[RESOURCE]...", callback=_resources)
@click.option("--actions", metavar="A,B", callback=_actions, help="Remove only these actions from "
              "the entries. [default: remove the entries]")  # fmt: skip
@click.option("--all", "is_all", is_flag=True, help="Remove all entries of the user.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@broker_options
@cluster_options
def revoke(
    user: str,
    resources: tuple[str, ...],
    actions: tuple[str, ...],
    where: Mapping[str, Any],
    access: ClusterAccess,
    *,
    is_all: bool,
    yes: bool,
) -> None:
    """Remove entries from a user's access list, or actions from entries."""
    if bool(resources) == is_all:
        raise click.UsageError(f"no entries chosen. Give resources, such as {_RESOURCES}, or --all")
    with access_admin(access) as admin:
        found = [
            (broker, policy)
            for broker, policies in admin.acls(user, **where).items()
            for policy in policies
            if is_all or policy.resource in resources
        ]
        missing = sorted(set(resources) - {policy.resource for _, policy in found})
        if missing or not found:
            raise Failure(
                f"{user} has no entry for {', '.join(missing) or 'any resource'}",
                f"List its entries with rocketpoll acl list --user {user}",
            )
        count = format_count(len({policy.resource for _, policy in found}), "entry", "entries")
        what = f"{', '.join(actions)} in {count}" if actions else count
        confirm(f"revoke {what} of {user}", yes=yes)
        for broker, policy in found:
            left = tuple(each for each in policy.actions if actions and each not in actions)
            if left:
                admin.create_acl(replace(policy, actions=left), broker_name=broker)
            else:
                admin.delete_acl(user, policy.resource, broker_name=broker)
    write_text(f"revoked {what} of {user}\n")


def _add(
    user: str,
    resources: tuple[str, ...],
    actions: tuple[str, ...],
    sources: tuple[str, ...],
    where: Mapping[str, Any],
    access: ClusterAccess,
    *,
    is_allowed: bool,
) -> None:
    with access_admin(access) as admin:
        changes = [
            (broker, _merge(policies, AclPolicy(user, resource, actions, sources, is_allowed)))
            for broker, policies in admin.acls(user, **where).items()
            for resource in resources
        ]
        for broker, changed in changes:
            admin.create_acl(changed, broker_name=broker)
    verb = "allowed" if is_allowed else "denied"
    write_text(f"{user} is {verb} {', '.join(actions)} on {', '.join(resources)}\n")


def _merge(policies: tuple[AclPolicy, ...], added: AclPolicy) -> AclPolicy:
    """Return an entry that also has the actions of the user's present entry for the resource."""
    for known in policies:
        if known.resource != added.resource or known.policy_type != added.policy_type:
            continue
        if (known.is_allowed, sorted(known.sources)) != (added.is_allowed, sorted(added.sources)):
            raise Failure(
                f"{added.user} has an entry for {known.resource} already, and can have only one: "
                f"{_entry_words(known)}",
                f"Revoke that first with rocketpoll acl revoke {added.user} {known.resource}",
            )
        return replace(added, actions=parse_actions((*known.actions, *added.actions)))
    return added


def _entry_words(policy: AclPolicy) -> str:
    verb = "allowed" if policy.is_allowed else "denied"
    origin = f" from {', '.join(policy.sources)}" if policy.sources else ""
    return f"{verb} {', '.join(policy.actions)}{origin}"


def _matches(pattern: str, resource: str) -> bool:
    """Return whether an entry's resource covers a resource, or is covered by it."""
    return any(_covers(one, other) for one, other in ((pattern, resource), (resource, pattern)))


def _covers(pattern: str, resource: str) -> bool:
    if pattern == "*":
        return True
    prefix, star, _ = pattern.partition("*")
    return resource.startswith(prefix) if star else resource == pattern
