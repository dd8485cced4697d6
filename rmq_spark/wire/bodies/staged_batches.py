"""Staged-batch bodies: the attempts that a commit names, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedAttempt:
    """The attempt of a task that is to be committed, and what it has staged.

    ``crc`` is the CRC-32 of the concatenated bodies of all its STAGE_CHUNK requests.
    """

    attempt: str
    chunks: int
    rows: int
    crc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitBatchRequestBody:
    """The body of COMMIT_BATCH."""

    attempts: tuple[StagedAttempt, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortBatchRequestBody:
    """The body of ABORT_BATCH: the attempts to abort; if empty, the whole batch is aborted."""

    attempts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpan:
    """Messages of a batch with successive offsets of one queue.

    ``crc`` is the sum of the body CRCs in their records, modulo 2**32.
    """

    topic: str
    queue_id: int
    queue_offset: int
    count: int
    crc: int
    body_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedBatch:
    """The last batch that a sink has committed: the response to COMMIT_BATCH and LAST_BATCH."""

    batch_id: int
    owner: str
    rows: int
    spans: tuple[BatchSpan, ...] = ()
    committed_ms: int = 0
    """The time of the commit, in ms since the epoch."""
    user: str | None = None
    """The user to whom the sink belongs; None if nobody has signed its batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkState:
    """The last batch that a sink has committed, and the query that owns the sink.

    ``topics`` are the topics of the batch's rows, ``committed_ms`` is the time in ms since the
    epoch, ``body_bytes`` the size of all bodies.
    """

    batch_id: int
    owner: str
    rows: int
    topics: tuple[str, ...] = ()
    committed_ms: int = 0
    body_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SinksBody:
    """The sinks that have committed batches, by name: the response to ALL_SINKS."""

    sinks: Mapping[str, SinkState] = field(default_factory=dict)
