"""Tables: read a topic as an Arrow table in one call, for notebooks.

Each function makes an `Admin`, reads with it and closes it. `arrow_reads` reads topics, and
`committed_reads` reads the rows that Spark sinks have committed.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.reading.read_bounds import EARLIEST, LATEST, Bound


def read_table(
    topic: str,
    name_servers: str | Iterable[str] | None = None,
    *,
    start: Bound = EARLIEST,
    end: Bound = LATEST,
    columns: Iterable[str] | None = None,
    tags: str | None = None,
    on_bad_record: str = "fail",
    bytes_max: int = 2 << 30,
    instance: ClientInstance | None = None,
) -> pa.Table:
    """Return the messages of a topic as a pyarrow Table; no group's offsets change.

        columns = ["body", "storeTimestamp"]
        orders = rocketpoll.read_table("orders", "localhost:9876", columns=columns)
        orders.to_pandas()

    Args:
        topic: The topic to read.
        name_servers: Addresses as ``host:port;host:port``; by default those in ``NAMESRV_ADDR``.
        start: The first messages to read: ``"earliest"``, ``"latest"``, a time (a datetime with a
            zone, or milliseconds since 1970), or ``{queue: offset}``.
        end: A bound of the same kinds, before which to end.
        columns: Names of columns; nothing else is decoded.
        tags: ``"a || b"`` for messages with one of these tags.
        on_bad_record: Handling of a message that cannot be read: ``"fail"`` ends the read,
            ``"null"`` returns a row without its body, ``"skip"`` omits it.
        bytes_max: The most bytes that the table may take, with bodies inflated.
        instance: A client to read with, as for TLS and credentials, instead of ``name_servers``.

    Raises:
        RouteNotFound: There is no such topic.
        TableTooLarge: The table would take more than ``bytes_max``.
        MessageUnreadable: A message cannot be read, and ``on_bad_record`` is ``"fail"``.
    """
    with Admin(name_servers, instance=instance) as admin:
        return admin.read_table(
            topic,
            start=start,
            end=end,
            columns=columns,
            tags=tags,
            on_bad_record=on_bad_record,
            bytes_max=bytes_max,
        )


def read_committed(
    topic: str,
    name_servers: str | Iterable[str] | None = None,
    *,
    start: Bound = EARLIEST,
    end: Bound = LATEST,
    columns: Iterable[str] | None = None,
    tags: str | None = None,
    bytes_max: int = 2 << 30,
    instance: ClientInstance | None = None,
) -> pa.Table:
    """Return the rows of a topic that Spark sinks have committed, as a pyarrow Table.

        bills = rocketpoll.read_committed("bills", "localhost:9876", columns=["body"])
        bills.to_pandas()

    Args:
        topic: The topic to read, written to with ``delivery=exactly_once``.
        name_servers: Addresses as ``host:port;host:port``; by default those in ``NAMESRV_ADDR``.
        start: The first batches to read, by when they were committed: ``"earliest"``, ``"latest"``
            or a time (a datetime with a zone, or milliseconds since 1970).
        end: A bound of the same kinds, before which to end.
        columns: Names of columns; nothing else is decoded.
        tags: ``"a || b"`` for messages with one of these tags.
        bytes_max: The most bytes that the table may take, with bodies inflated.
        instance: A client to read with, as for TLS and credentials, instead of ``name_servers``.

    Raises:
        RouteNotFound: There is no such topic, or nothing was committed to it yet.
        TableTooLarge: The table would take more than ``bytes_max``.
    """
    with Admin(name_servers, instance=instance) as admin:
        return admin.read_committed(
            topic, start=start, end=end, columns=columns, tags=tags, bytes_max=bytes_max
        )
