"""Manifests: which rows of a topic a sink has committed, as messages of the topic's commits topic.

    orders            rows, as tasks have sent them: of attempts that count, and of others
    orders_COMMITS    one queue; one manifest for each batch that counts: where its rows are

    {"v": 1, "topic": "orders",
     "query": "b0c9...",    the streaming query; null for a batch write outside of queries
     "write": "",           the name of a batch write
     "batch": 7,
     "run": "5d1e...",      the run that has committed it, see `ManifestId`
     "origin": "checkpoint:9f..",   identifies a query that has lost its checkpoint
     "rows": 210, "crc": 51,                   of all spans, in the parts as well
     "spans": [["broker-a", 0, 17, 210, 9, 80000]],
                            broker, queue, first offset, rows, sum of their bodies' CRCs, bytes
     "parts": [4, 5]}       offsets of the messages with the spans before these

Spans that do not fit into one message are sent before it in parts, ``{"v": 1, "part": ..}``. These
have no effect until a manifest names their offsets.

Only the first manifest of a query's batch counts, and batch numbers of a query only grow
(`CommitState`). So a batch that is run again, a message that is stored twice, and a driver that was
replaced without noticing change nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson

from rmq_spark.client.errors import ManifestError
from rmq_spark.errors import BodyError, excerpt
from rmq_spark.wire.isa_l import crc32
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.java_numbers import INT32_MAX
from rmq_spark.wire.remoting.json_nesting import check_nesting

VERSION: Final = 1
COMMITS_SUFFIX: Final = "_COMMITS"
WRITES_KEPT: Final = 500
"""The number of latest batch writes outside of queries whose repeats are recognized."""

MANIFEST_BYTES_MAX: Final = 3 * 1024 * 1024
_SPAN_BYTES: Final = 100
"""Upper limit of the bytes of a span, without its broker's name."""

_NAME_CHARS: Final = 127
"""The assumed maximum length of a broker's name."""

_ORIGIN_CHARS: Final = 40
"""Upper limit of the length of an origin, without a write's name."""

_RUN_CHARS: Final = 48
"""Upper limit of the length of a run's id."""

_CRC_MASK: Final = 0xFFFF_FFFF
_COUNT_MAX: Final = (1 << 63) - 1
"""The largest number that a broker has for an offset."""


class ManifestId(NamedTuple):
    """The identity of a commit: a query's batch, or a batch write.

    ``query_id`` is None for a batch write that is not part of a streaming query; ``write_name`` is
    empty for the batch of a stream. ``run_id`` identifies the committer: the run of a stream, or,
    for a write of foreachBatch, ``DRIVER#CALL`` with the id of the driver's process and the number
    of the function's call in it.
    """

    query_id: str | None
    write_name: str
    batch_id: int
    run_id: str = ""

    def __str__(self) -> str:
        if self.query_id is None:
            return f"write {self.write_name}"
        name = f", write {self.write_name}" if self.write_name else ""
        return f"batch {self.batch_id} of query {self.query_id}{name}"

    @property
    def key(self) -> str:
        """The key of the manifest's message, and of its parts."""
        parts = [*filter(None, (self.query_id, self.write_name)), str(self.batch_id)]
        return ":".join(map(_strip_blanks, parts))

    @property
    def driver_id(self) -> str:
        """The part of ``run_id`` that all batches of a run, or of a foreachBatch driver, share."""
        return self.run_id.partition("#")[0]

    @property
    def query_key(self) -> str:
        """The key of all manifests of a query; empty for a batch write outside of queries."""
        return _strip_blanks(self.query_id or "")


class CommittedSpan(NamedTuple):
    """Rows at successive offsets of a queue, with the sums that a reader verifies.

    Attributes:
        queue: The queue.
        queue_offset: Offset of the first row.
        message_count: Number of rows.
        crc: Sum of the CRCs of their bodies, in 32 bits.
        body_bytes: Bytes of their bodies together.
    """

    queue: MessageQueue
    queue_offset: int
    message_count: int
    crc: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class CommitManifest:
    """The record of a commit: its identity, and where the rows are."""

    topic: str
    id: ManifestId
    spans: tuple[CommittedSpan, ...]
    parts: tuple[int, ...] = ()
    """Offsets, in the commits topic, of parts that are still to be joined by `join_parts`."""
    stated: tuple[int, int] = (0, 0)
    """The rows and the CRC of all spans, as the last message of a manifest has them."""
    origin: str = ""
    """The text that identifies a query restarted under another id: its checkpoint's location or its
    write's name, as the sink knows them; empty for none."""

    @staticmethod
    def origin_key(origin: str) -> str:
        """Return the key of all manifests with an origin; empty for none."""
        return _strip_blanks(origin)

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return sum(span.message_count for span in self.spans)

    @property
    def body_bytes(self) -> int:
        """The bytes of all bodies."""
        return sum(span.body_bytes for span in self.spans)

    def encode_parts(self, bytes_max: int) -> tuple[list[bytes], list[CommittedSpan]]:
        """Return the bodies of the parts to send first, and the spans left for the last message."""
        name_bytes = max((len(span.queue.broker_name.encode()) for span in self.spans), default=0)
        at_once = max((bytes_max // 2) // (_SPAN_BYTES + 6 * name_bytes), 1)
        groups = [self.spans[at : at + at_once] for at in range(0, len(self.spans), at_once)]
        early = [
            _encode_document({"v": VERSION, "part": _spans_to_rows(group)}) for group in groups[:-1]
        ]
        return early, list(groups[-1]) if groups else []

    def encode_final_message(self, spans: Iterable[CommittedSpan], parts: Sequence[int]) -> bytes:
        """Return the body of the message that makes the batch count, once its parts are stored."""
        return _encode_document(
            {
                "v": VERSION,
                "topic": self.topic,
                "query": self.id.query_id,
                "write": self.id.write_name,
                "batch": self.id.batch_id,
                "run": self.id.run_id,
                **({"origin": self.origin} if self.origin else {}),
                "rows": self.row_count,
                "crc": _spans_crc(self.spans),
                "spans": _spans_to_rows(spans),
                **({"parts": list(parts)} if parts else {}),
            }
        )

    def join_parts(self, part_bodies: Mapping[int, bytes]) -> CommitManifest:
        """Return the manifest with the spans of its parts, which are passed by their offsets.

        Raises:
            ManifestError: A part is missing or damaged, or is not the one that was written.
        """
        spans: list[CommittedSpan] = []
        for at in self.parts:
            if at not in part_bodies:
                raise ManifestError(f"its part at offset {at} is gone")
            document = _decode_document(part_bodies[at])
            if "part" not in document:
                raise ManifestError(f"the message at offset {at} is not its part")
            spans += _spans_from_rows(self.topic, document["part"])
        found = CommitManifest(self.topic, self.id, (*spans, *self.spans), origin=self.origin)
        if self.stated != (found.row_count, _spans_crc(found.spans)):
            raise ManifestError("its spans are not those that were written: their sum differs")
        return found


def decode_manifest(body: bytes) -> CommitManifest | None:
    """Return the manifest that a message holds, without its parts; None for a part.

    Raises:
        ManifestError: The message is not a manifest, or is of a newer release.
    """
    document = _decode_document(body)
    if "part" in document:
        return None
    query_id, write_name, batch_id = (document.get(name) for name in ("query", "write", "batch"))
    topic, run_id, parts = (document.get(name) for name in ("topic", "run", "parts"))
    origin = document.get("origin", "")
    parts = [] if parts is None else parts
    is_right = (
        isinstance(topic, str)
        and (query_id is None or isinstance(query_id, str))
        and isinstance(write_name, str)
        and isinstance(run_id, str)
        and isinstance(origin, str)
        and isinstance(parts, list)
        and _is_count(batch_id, document.get("rows"), document.get("crc"), *parts)
    )
    if not is_right:
        raise ManifestError(f"it is not a manifest: {excerpt(body)}")
    manifest = CommitManifest(
        str(topic),
        ManifestId(query_id, str(write_name), int(batch_id or 0), str(run_id)),
        tuple(_spans_from_rows(str(topic), document.get("spans"))),
        tuple(parts),
        (document["rows"], document["crc"]),
        origin,
    )
    return manifest if manifest.parts else manifest.join_parts({})


@dataclass(frozen=True, slots=True)
class CommitState:
    """The counted batches up to an offset of a commits topic; later repeats are ignored.

    ``queries`` has the last batch of each query, and the names of the writes that counted in it.
    ``writes`` has the names of the latest batch writes outside of queries.
    """

    queries: Mapping[str, tuple[int, tuple[str, ...]]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    writes: tuple[str, ...] = ()

    def apply(
        self, manifests: Iterable[tuple[int, ManifestId]]
    ) -> tuple[CommitState, tuple[int, ...]]:
        """Return the state after these manifests, and the offsets of those that count."""
        queries, writes = dict(self.queries), dict.fromkeys(self.writes)
        latest: dict[str, tuple[int, dict[str, None]]] = {}  # only of queries in these manifests
        counting: list[int] = []
        for at, (query_id, name, batch_id, _) in manifests:
            if query_id is None:
                is_new = name not in writes
                writes[name] = None
                if len(writes) > WRITES_KEPT:
                    del writes[next(iter(writes))]
            else:
                if query_id not in latest:
                    last, names = queries.get(query_id, (-1, ()))
                    latest[query_id] = last, dict.fromkeys(names)
                last, known = latest[query_id]
                is_new = batch_id > last or (batch_id == last and name not in known)
                if batch_id > last:
                    latest[query_id] = batch_id, {name: None}
                elif is_new:
                    known[name] = None
            if is_new:
                counting.append(at)
        queries |= {query_id: (last, tuple(names)) for query_id, (last, names) in latest.items()}
        return CommitState(queries, tuple(writes)), tuple(counting)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON for a checkpoint; names are sorted, because Spark compares the text."""
        queries = {name: [self.queries[name][0], *self.queries[name][1]] for name in self.queries}
        found: dict[str, Any] = {"queries": dict(sorted(queries.items()))}
        return {**found, "writes": list(self.writes)} if self.writes else found

    @classmethod
    def from_json(cls, document: Any) -> CommitState:
        """Return the state from the JSON of `to_json`."""
        try:
            queries = {
                str(name): (int(last), tuple(map(str, names)))
                for name, (last, *names) in document["queries"].items()
            }
            return cls(queries, tuple(map(str, document.get("writes", ()))))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ManifestError(
                f"it is not a saved state of commits: {excerpt(document)}"
            ) from error


def manifest_bytes_needed(topic: str, write_name: str = "") -> int:
    """Return the bytes that a message may need for the manifest of a single span."""
    count_max = _COUNT_MAX
    span = CommittedSpan(
        MessageQueue(topic, "b" * _NAME_CHARS, count_max),
        count_max,
        count_max,
        _CRC_MASK,
        count_max,
    )
    manifest = CommitManifest(
        topic,
        ManifestId("-" * 36, write_name, count_max, "-" * _RUN_CHARS),
        (span,),
        origin="-" * (_ORIGIN_CHARS + len(write_name)),
    )
    return len(manifest.encode_final_message([span], [count_max]))


def commits_topic_name(topic: str) -> str:
    """Return the name of a topic's commits topic."""
    return f"{topic}{COMMITS_SUFFIX}"


def add_crc(crc: int, other: int) -> int:
    """Return the sum of two CRCs, in 32 bits, as in spans."""
    return (crc + other) & _CRC_MASK


def _strip_blanks(text: str) -> str:
    """Return a text without blanks, because blanks separate keys."""
    return "_".join(text.split())


def _encode_document(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _decode_document(body: bytes) -> dict[str, Any]:
    try:
        check_nesting(body, "a manifest", BodyError)
        found = orjson.loads(body)
    except (BodyError, ValueError) as error:
        raise ManifestError(f"it is not a manifest, but {excerpt(body)}") from error
    if not isinstance(found, dict) or not _is_count(found.get("v")):
        raise ManifestError(f"it is not a manifest, but {excerpt(body)}")
    if found["v"] > VERSION:
        raise ManifestError(
            f"it is of version {found['v']}, and this release of rocketpoll reads {VERSION}. Read "
            "it with the release that wrote it, or a newer one",
            found["v"],
        )
    return found


def _spans_to_rows(spans: Iterable[CommittedSpan]) -> list[list[Any]]:
    return [[span.queue.broker_name, span.queue.queue_id, *span[1:]] for span in spans]


def _spans_from_rows(topic: str, rows: Any) -> list[CommittedSpan]:
    if not isinstance(rows, list):
        raise ManifestError(f"it has no list of spans, but {excerpt(rows)}")
    spans = []
    for row in rows:
        if not (
            isinstance(row, list)
            and len(row) == 6
            and isinstance(row[0], str)
            and _is_count(*row[1:])
            and row[1] <= INT32_MAX
        ):
            raise ManifestError(f"one of its spans is malformed: {excerpt(row)}")
        spans.append(CommittedSpan(MessageQueue(topic, row[0], row[1]), *row[2:]))
    return spans


def _spans_crc(spans: Iterable[CommittedSpan]) -> int:
    return crc32(_encode_document({"spans": _spans_to_rows(spans)}))


def _is_count(*values: Any) -> bool:
    return all(
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _COUNT_MAX
        for value in values
    )
