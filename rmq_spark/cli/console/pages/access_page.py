"""Access page: the users of the brokers, and who may do what with which topics and groups.

The page changes nothing; it shows the commands that change users and lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rmq_spark.cli.access.user_command import policy_rows, user_rows
from rmq_spark.cli.console.layout import Page
from rmq_spark.cli.console.markup import components as ui
from rmq_spark.cli.console.markup.html import Child, Html, el, join
from rmq_spark.cli.console.visit import Visit, group_path, topic_path
from rmq_spark.client.errors import (
    AccessDenied,
    AuthenticationFailed,
    BrokerRefused,
    NoPermission,
    NotSupported,
)
from rmq_spark.wire.codes import ResponseCode

_USER_COLUMNS: Final = ("User.grow", "Type", "State", "Entries.number", "Brokers.wide")
_POLICY_COLUMNS: Final = ("User", "Resource.grow", "May", "Brokers.wide")


def users_and_lists(visit: Visit) -> Page:
    """Return the page with users and access lists."""
    try:
        by_broker = visit.admin.users()
    except NotSupported as error:
        missing = ui.empty_state(
            "No users and access lists",
            f"The broker at {error.address} has none of RocketMQ 5. RocketMQ 4.9 has its accounts "
            "in conf/plain_acl.yml, on its own machine.",
        )
        return Page("Access", missing, "access")
    except (AccessDenied, AuthenticationFailed):
        raise
    except NoPermission as error:  # the broker authenticates nobody, or has accounts in a file
        reason = f"The broker at {error.address} says: {error.remark or 'no reason'}."
        return Page("Access", ui.empty_state("No users", reason), "access")
    except BrokerRefused as error:
        if error.code != ResponseCode.SYSTEM_ERROR:
            raise
        text = (
            f"The broker at {error.address} says: {(error.remark or 'no reason').rstrip('.')}. "
            "RocketMQ 5 answers this if it stores no users. To store users, set "
            "authenticationMetadataProvider in its configuration."
        )
        return Page("Access", ui.empty_state("Users cannot be listed", text), "access")
    users = user_rows(by_broker)
    policies = policy_rows(visit.admin.acls())
    if not users and not policies:
        nobody = ui.empty_state(
            "No users",
            "The brokers have no users. If they authenticate clients, nobody gets in. Create one:",
            command=visit.command("user create", "NAME", options=("--super",)),
        )
        return Page("Access", nobody, "access")
    content = ui.live_region(
        "access",
        ui.figures(
            [
                ("Users", len({row["user"] for row in users})),
                ("Super users", len({row["user"] for row in users if row["type"] == "Super"})),
                ("Entries", len(policies)),
            ]
        ),
        ui.card("Users", ui.table(_USER_COLUMNS, [_user_row(row, policies) for row in users])),
        _policy_table(policies),
    )
    own = str(visit.access.settings.get("access-key") or "")
    text = f"This console acts as user {own}." if own else "This console has no credentials."
    hint = el("p.hint", f"{text} To let a user consume a topic:")
    command = visit.command(
        "acl grant", "USER", "Topic:TOPIC", "Group:GROUP", options=("--actions", "Sub")
    )
    return Page("Access", join(content, hint, command), "access")


def _user_row(row: Mapping[str, Any], policies: Sequence[Mapping[str, Any]]) -> ui.HtmlTableRow:
    is_super, is_enabled = row["type"] == "Super", row["status"] == "enabled"
    count = sum(policy["user"] == row["user"] for policy in policies)
    return ui.HtmlTableRow(
        (
            ui.truncated(row["user"]),
            ui.badge("super", "warn") if is_super else ui.badge("normal"),
            ui.badge("enabled", "good") if is_enabled else ui.badge("disabled", "bad"),
            count,
            ", ".join(row["brokers"]),
        )
    )


def _policy_table(policies: Sequence[Mapping[str, Any]]) -> Html:
    if not policies:
        return ui.card(
            "Who may do what",
            ui.empty_state("No entries", "Only super users may do something."),
        )
    return ui.card("Who may do what", ui.table(_POLICY_COLUMNS, map(_policy_row, policies)))


def _policy_row(row: Mapping[str, Any]) -> ui.HtmlTableRow:
    may: Child = ", ".join(row["actions"])
    if row["decision"] == "Deny":
        may = join(el("div", ui.badge("denied", "bad")), may)
    if row["sources"]:
        may = join(may, el("div.sub", f"from {', '.join(row['sources'])}"))
    resource = _resource(row["resource"])
    return ui.HtmlTableRow((ui.truncated(row["user"]), resource, may, ", ".join(row["brokers"])))


def _resource(text: str) -> Html:
    """Return a resource, with a link to the page of its topic or group if it names one."""
    kind, _, name = text.partition(":")
    if name and "*" not in name and kind in ("Topic", "Group"):
        href = topic_path(name) if kind == "Topic" else group_path(name)
        return el("a", ui.truncated(text), href=href)
    return ui.truncated(text)
