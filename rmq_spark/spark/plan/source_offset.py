"""SourceOffset: the position of a query, as Spark stores it in the checkpoint.

    {"v": 1,
     "offsets": {"orders": {"broker-a": {"0": 23, "1": 100}}},          the next offset to read
     "stored":  {"orders": {"broker-a": {"0": 1767225600000, ...}}},
                store time of the message before it, in ms
     "marks":   {"orders": {"broker-a": {"0": 2781030264, ...}}},
                mark of that message (`mark_of`)
     "began":   {"orders": {"broker-a": {"2": 7}}},
                where queues start within this batch
     "gone":    ["broker-b"],    brokers that no name server knows any more
     "committed": {"before": .., "behind": ..}}
                with isolation=committed: the state of commits before and after a batch; the
                position is then one in the commits topic

``stored`` shows a restarted query that a topic is still the same, and not another of the same name
that has grown past the offset: the broker's own clock is compared with itself. ``marks`` tell
messages apart for which that clock stood still; offsets of earlier releases have none. ``began``
(`initial_offsets`) has queues that are new or start again after a discontinuity, and all queues of
a query's first batch, so that a retried batch reads the same messages. The query does not wait for
brokers in ``gone`` (`missing_brokers`); their queues keep their positions in case the brokers
return. ``offsets`` can be used as startingOffsets as it is.

Names are sorted and keys are strings, because Spark compares offsets as text.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from rmq_spark.client.errors import ManifestError
from rmq_spark.client.manifest import CommitState
from rmq_spark.spark.errors import CheckpointError
from rmq_spark.wire.message_queue import MessageQueue

_Value = TypeVar("_Value")

VERSION: Final = 1
SIZES: Final = "recordBytes"
"""The mean size of a message by queue, in bytes, for monitoring a query's progress."""
_NEWER_VERSION: Final = (
    "the checkpoint's offset has version {found}, and this release of rocketpoll reads {known}. "
    "Run the query with the release that wrote it, or a newer one"
)
_FOREIGN_OFFSET: Final = (
    "the checkpoint has an offset that is not rocketpoll's ({why}): {found}. Give the query its "
    "own checkpointLocation, or start again with a new one"
)


class QueuePosition(NamedTuple):
    """The next offset to read; if known, the store time and mark of the message before it."""

    next_offset: int
    stored_ms: int | None = None
    mark: int | None = None

    def may_follow(self, stored_ms: int, mark: int) -> bool:
        """Return whether a message of this time and mark may be the one before this position."""
        return stored_ms == self.stored_ms and self.mark in (None, mark)


class CommitStates(NamedTuple):
    """The states of commits, in the commits topic, after a batch and before it.

    ``before`` is None if it equals the state after the previous batch.
    """

    after: CommitState
    before: CommitState | None = None


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """The position of a query in each of its queues, as Spark keeps it in the checkpoint."""

    positions: Mapping[MessageQueue, QueuePosition]
    initial_offsets: Mapping[MessageQueue, int] = field(
        default_factory=lambda: MappingProxyType({})
    )
    missing_brokers: tuple[str, ...] = ()
    committed: CommitStates | None = None

    @property
    def topics(self) -> frozenset[str]:
        """The topics of all queues."""
        return frozenset(queue.topic for queue in self.positions)

    @property
    def is_unverifiable(self) -> bool:
        """True if a position has no known message before it by which to recognize its queue."""
        return any(at.next_offset and at.stored_ms is None for at in self.positions.values())

    def without_brokers(self, names: Iterable[str]) -> SourceOffset:
        """Return the end of an empty batch, after which a query does not wait for these brokers."""
        return SourceOffset(
            self.positions, missing_brokers=tuple(sorted({*self.missing_brokers, *names}))
        )

    def with_brokers(self, names: Container[str]) -> SourceOffset:
        """Return a copy that waits for these brokers again."""
        if not any(name in names for name in self.missing_brokers):
            return self
        return SourceOffset(
            self.positions,
            missing_brokers=tuple(name for name in self.missing_brokers if name not in names),
        )

    def without_queues(self, queues: Container[MessageQueue]) -> SourceOffset:
        """Return a copy without these queues."""
        left = {
            queue: position for queue, position in self.positions.items() if queue not in queues
        }
        return SourceOffset(left, missing_brokers=self.missing_brokers)

    def renamed(self, names: Mapping[str, str]) -> SourceOffset:
        """Return the positions with brokers renamed.

        If a queue was already read under its broker's new name, that position is kept.
        """
        if not names:
            return self
        return SourceOffset(
            _with_renamed_brokers(self.positions, names),
            MappingProxyType(_with_renamed_brokers(self.initial_offsets, names)),
            tuple(name for name in self.missing_brokers if name not in names),
            self.committed,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that Spark stores."""
        positions = self.positions
        stored = {
            queue: each.stored_ms for queue, each in positions.items() if each.stored_ms is not None
        }
        marks = {queue: each.mark for queue, each in positions.items() if each.mark is not None}
        document: dict[str, Any] = {
            "v": VERSION,
            "offsets": _to_tree({queue: each.next_offset for queue, each in positions.items()}),
        }
        if stored:
            document["stored"] = _to_tree(stored)
        if marks:
            document["marks"] = _to_tree(marks)
        if self.initial_offsets:
            document["began"] = _to_tree(self.initial_offsets)
        if self.missing_brokers:
            document["gone"] = list(self.missing_brokers)
        if self.committed is not None:
            behind, before = self.committed
            document["committed"] = {
                **({} if before is None else {"before": before.to_json()}),
                "behind": behind.to_json(),
            }
        return document

    @classmethod
    def from_json(cls, document: Any) -> SourceOffset:
        """Parse the JSON that Spark returns."""
        if not isinstance(document, dict) or not isinstance(document.get("v"), int):
            raise _foreign_offset("it has no version", document)
        if document["v"] > VERSION:
            raise CheckpointError(_NEWER_VERSION.format(found=document["v"], known=VERSION))
        offsets = _parse_tree(document, "offsets")
        stored, marks = _parse_tree(document, "stored"), _parse_tree(document, "marks")
        positions = {
            queue: QueuePosition(each, stored.get(queue), marks.get(queue))
            for queue, each in offsets.items()
        }
        gone = document.get("gone", [])
        if not isinstance(gone, list) or not all(isinstance(name, str) for name in gone):
            raise _foreign_offset("gone is not a list of names", document)
        committed = _parse_commit_states(document) if "committed" in document else None
        return cls(positions, _parse_tree(document, "began"), tuple(gone), committed)


def with_sizes(document: dict[str, Any], sizes: Mapping[MessageQueue, float]) -> dict[str, Any]:
    """Return an offset with mean message sizes added: for observers, never for a checkpoint."""
    return {**document, SIZES: _to_tree({queue: round(size) for queue, size in sizes.items()})}


def sizes_in(document: Mapping[str, Any]) -> dict[MessageQueue, int]:
    """Return the mean message sizes by queue that `with_sizes` has added to a document."""
    return _parse_tree(document, SIZES)


def _parse_commit_states(document: Mapping[str, Any]) -> CommitStates:
    try:
        found = dict(document["committed"])
        before = CommitState.from_json(found["before"]) if "before" in found else None
        return CommitStates(CommitState.from_json(found.get("behind")), before)
    except (ManifestError, TypeError, ValueError) as error:
        raise _foreign_offset(str(error), document) from error


def with_renamed_broker(queue: MessageQueue, names: Mapping[str, str]) -> MessageQueue:
    """Return a queue with its broker renamed, if ``names`` has a new name for it."""
    name = names.get(queue.broker_name)
    return queue if name is None else replace(queue, broker_name=name)


def _with_renamed_brokers(
    values: Mapping[MessageQueue, _Value], names: Mapping[str, str]
) -> dict[MessageQueue, _Value]:
    new = {with_renamed_broker(queue, names): value for queue, value in values.items()}
    return {
        **new,
        **{queue: value for queue, value in values.items() if queue.broker_name not in names},
    }


def _to_tree(values: Mapping[MessageQueue, int]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for queue in sorted(values):
        broker = tree.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})
        broker[str(queue.queue_id)] = values[queue]
    return tree


def _parse_tree(document: Mapping[str, Any], part: str) -> dict[MessageQueue, int]:
    try:
        found = {
            MessageQueue(topic, broker, int(number)): offset
            for topic, brokers in document.get(part, {}).items()
            for broker, queues in brokers.items()
            for number, offset in queues.items()
        }
    except (AttributeError, ValueError) as error:
        raise _foreign_offset(
            f"{part} does not map topics to brokers and queues", document
        ) from error
    for queue, offset in found.items():
        if (
            isinstance(offset, bool)
            or not isinstance(offset, int)
            or offset < 0
            or queue.queue_id < 0
        ):
            raise _foreign_offset(f"{part} of queue {queue.queue_id} is {offset!r}", document)
    return found


def _foreign_offset(why: str, document: object) -> CheckpointError:
    text = repr(document)
    found = text if len(text) < 200 else f"{text[:200]}..."
    return CheckpointError(_FOREIGN_OFFSET.format(why=why, found=found))
