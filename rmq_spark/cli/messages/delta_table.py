"""TopicTable: a Delta table whose commits record which messages of a topic it holds.

A commit adds the files of its rows and, for each queue, application transactions of Delta (`txn`):

    rocketpoll/orders/broker-a/0/first     the offset of the first message that the table holds
    rocketpoll/orders/broker-a/0/next      the offset after the last one
    rocketpoll/orders/broker-a/0/stored    the store time of the last one in ms; -1 if unknown
    rocketpoll/orders                      the number of commits

Rows and offsets are committed together, so that a process that is killed at any time leaves either
both or neither. Delta refuses a commit if another one has changed the same transaction since the
table was read: of two writers, one fails. Checkpoints of the table keep the transactions when old
log files are deleted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq_spark.cli.shell.failures import Failure
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable, Field

UNKNOWN_TIME: Final = -1


class HeldRange(NamedTuple):
    """The offsets of one queue that a table holds, from ``first`` to before ``next_offset``.

    ``stored_ms`` is the store time of the last message, by which the queue is recognized.
    """

    first: int
    next_offset: int
    stored_ms: int = UNKNOWN_TIME


class TopicTable:
    """A Delta table as the target of one topic."""

    def __init__(self, location: str, topic: str, columns: tuple[str, ...] | None) -> None:
        """Open a table, or create it with these columns, by default those of `read_table`.

        Raises:
            Failure: The package deltalake is missing, or the table cannot be used.
        """
        from rmq_spark.client.admin.arrow_reads import COLUMN_NAMES  # noqa: PLC0415  # --help does not need it

        self.location = location
        self._app = f"rocketpoll/{topic}"
        self._topic = topic
        with self._explain_errors():
            self._table = _open_or_create(location, columns)
        names = tuple(field.name for field in self._table.schema().fields)
        unknown = [name for name in names if name not in COLUMN_NAMES]
        if unknown:
            raise Failure(
                f"the table {location} has the column {unknown[0]}, which messages do not have",
                "Write to another table",
            )
        if columns is not None and set(columns) != set(names):
            raise Failure(
                f"the table {location} has the columns {','.join(names)}, not {','.join(columns)}",
                "Leave out --columns, or write to another table",
            )
        self._check_types(names)
        self.columns = names

    def _check_types(self, names: tuple[str, ...]) -> None:
        from deltalake import Schema  # noqa: PLC0415  # an extra

        from rmq_spark.client.admin.arrow_reads import build_schema  # noqa: PLC0415  # --help does not need it

        needed = Schema.from_arrow(build_schema(names))
        for field, other in zip(self._table.schema().fields, needed.fields, strict=True):
            if field.type != other.type:
                raise Failure(
                    f"the table {self.location} has the column {field.name} with the type "
                    f"{_type_name(field)}, and messages have {_type_name(other)}",
                    "Write to another table",
                )

    @property
    def has_commits(self) -> bool:
        """True if the table has commits of this topic."""
        return self._version_of(self._app) is not None

    def refresh(self) -> None:
        """Read the newest version, on which the next commit is based."""
        with self._explain_errors():
            self._table.update_incremental()

    def held(self, queue: MessageQueue) -> HeldRange | None:
        """Return the offsets of a queue that the table holds; None if it never had any."""
        first, next_offset, stored_ms = map(self._version_of, self._app_ids(queue))
        if first is None or next_offset is None:
            return None
        return HeldRange(first, next_offset, UNKNOWN_TIME if stored_ms is None else stored_ms)

    def append(self, rows: pa.Table, held: Mapping[MessageQueue, HeldRange]) -> int:
        """Commit rows together with the new ranges of their queues; return the table's version.

        Raises:
            Failure: Another process has committed messages of the topic since the last `refresh`;
                or the table cannot be written.
        """
        from deltalake import CommitProperties, Transaction, write_deltalake  # noqa: PLC0415  # an extra

        commits = (self._version_of(self._app) or 0) + 1
        transactions = [Transaction(self._app, commits)]
        for queue, values in held.items():
            transactions += map(Transaction, self._app_ids(queue), values)
        with self._explain_errors():
            write_deltalake(
                self._table,
                rows.select(self.columns),
                mode="append",
                commit_properties=CommitProperties(app_transactions=transactions),
            )
        return self._table.version()

    def _version_of(self, app: str) -> int | None:
        with self._explain_errors():
            return self._table.transaction_version(app)

    def _app_ids(self, queue: MessageQueue) -> tuple[str, str, str]:
        base = f"{self._app}/{queue.broker_name}/{queue.queue_id}"
        return f"{base}/first", f"{base}/next", f"{base}/stored"

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            from deltalake.exceptions import CommitFailedError, DeltaError  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise Failure(
                "rocketpoll lake needs the package deltalake",
                f"Run {sys.executable} -m pip install deltalake",
            ) from error
        try:
            yield
        except CommitFailedError as error:
            raise Failure(
                f"cannot commit to {self.location}: {error} Another process has written "
                f"{self._topic} to this table at the same time, and the rows of this process are "
                "not in it",
                "Run one rocketpoll lake for each topic and table, then run this one again",
            ) from error
        except (DeltaError, OSError, ValueError) as error:
            raise Failure(f"cannot use the Delta table {self.location}: {error}") from error


def _type_name(field: Field) -> str:
    return str(getattr(field.type, "type", field.type))  # a nested type has no short name


def _open_or_create(location: str, columns: tuple[str, ...] | None) -> DeltaTable:
    from deltalake import DeltaTable  # noqa: PLC0415  # an extra
    from deltalake.exceptions import DeltaError, TableNotFoundError  # noqa: PLC0415  # an extra

    from rmq_spark.client.admin.arrow_reads import DEFAULT_COLUMNS, build_schema  # noqa: PLC0415  # --help does not need it

    try:
        return DeltaTable(location)
    except TableNotFoundError:
        pass
    try:
        return DeltaTable.create(location, build_schema(columns or DEFAULT_COLUMNS))
    except DeltaError:  # another process may have created it just now
        return DeltaTable(location)
