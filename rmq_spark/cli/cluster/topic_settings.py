"""Topic settings: plans the creation and the change of a topic on each master, and applies them.

Brokers of a cluster may have different settings of a topic, so each plan is made broker by broker.
``rocketpoll topic`` and the console share this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq_spark.cli.shell.failures import Failure
from rmq_spark.wire.bodies.configs import TopicConfig

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin

PERMS: Final = {"rw": 6, "r": 4, "w": 2, "none": 0}
"""Permissions of a topic, as ``--perm`` names them."""
DEFAULT_QUEUES: Final = 8
QUEUES_MAX: Final = 65_536
_ASKED_SINGLY_MAX: Final = 8
"""The most new topics that are looked up one by one; for more, the brokers' tables are read."""


@dataclass(frozen=True, slots=True)
class TopicEdit:
    """Changes to the settings of a topic. Fields of None change nothing; other attributes stay."""

    read_queues: int | None = None
    write_queues: int | None = None
    perm: str | None = None
    attributes: Mapping[str, str] | None = None


class TopicChange(NamedTuple):
    """The settings of a topic on one broker, before and after a change."""

    broker_name: str
    old: TopicConfig
    new: TopicConfig


def plan_creation(admin: Admin, topics: Sequence[str], cluster: str | None = None) -> list[str]:
    """Return the names of the masters on which new topics would be created."""
    masters = admin.masters(cluster)
    if len(topics) <= _ASKED_SINGLY_MAX:
        found = [each for each in topics if len(admin.find_topic(each, cluster)) == len(masters)]
    else:
        tables = admin.all_topic_configs(cluster).values()
        found = [each for each in topics if all(each in table for table in tables)]
    if found:
        first = found[0]
        more = f", and so do {len(found) - 1} more" if len(found) > 1 else ""
        raise Failure(
            f"{first} exists already{more}",
            f"Show it with rocketpoll topic describe {first}, or change it with rocketpoll "
            f"topic alter {first}",
        )
    return list(masters)


def new_topic_config(
    topic: str, queues: int, perm: str, attributes: Mapping[str, str]
) -> TopicConfig:
    """Return the settings of a new topic."""
    return TopicConfig(
        topic_name=topic,
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=PERMS[perm],
        attributes=attributes or None,
    )


def plan_edit(admin: Admin, topic: str, edit: TopicEdit) -> list[TopicChange]:
    """Return what an edit changes on each broker that has the topic."""
    return [
        TopicChange(
            broker,
            old,
            replace(
                old,
                read_queue_nums=edit.read_queues or old.read_queue_nums,
                write_queue_nums=edit.write_queues or old.write_queue_nums,
                perm=old.perm if edit.perm is None else PERMS[edit.perm],
                attributes={**(old.attributes or {}), **(edit.attributes or {})},
            ),
        )
        for broker, old in admin.topic_configs(topic).items()
    ]


def apply_edit(admin: Admin, topic: str, edit: TopicEdit, changes: Iterable[TopicChange]) -> None:
    """Make the changes, one broker after the other; brokers keep attributes that are not sent."""
    for change in changes:
        config = replace(change.new, attributes=edit.attributes or None)
        admin.create_topic(topic, broker_name=change.broker_name, config=config)


def perm_text(perm: int) -> str:
    """Return a permission in the form of ``--perm``."""
    return next((text for text, bits in PERMS.items() if bits == perm & 6), "none")
