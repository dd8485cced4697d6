"""CommittedBatches: the batches of a query that reads what sinks have committed.

    orders_COMMITS    | m | m | m | m |      a place in it is where the query stands
                          └───────┘
                      a batch: the manifests between two places, whole, of which those count that
                      are the first of their query's batch (`CommitState`)
    orders            their spans ──> pieces for tasks

Places are planned by `MicroBatches` over the commits topic, as for any topic: what brokers have
lost, checkpoints, groups and waiting are its business. Here it becomes rows: limits count those. A
manifest that was stored never changes, and the state at its beginning is in a batch's offsets: so a
batch that is run again has the same rows, to the last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rmq_spark.client.errors import ManifestError
from rmq_spark.client.manifest import CommitState, CommittedSpan, Manifest, decoded
from rmq_spark.spark.brokers.queue_client import Queues
from rmq_spark.spark.errors import (
    CheckpointError,
    DataLoss,
    OptionError,
    named,
    other_isolation,
    report_losses,
)
from rmq_spark.spark.exactly_once.committed_reader import SpanPiece, span_pieces
from rmq_spark.spark.options.options import Limits, ReadOptions, commits_options
from rmq_spark.spark.plan.micro_batch_planner import NO_LIMITS, MicroBatches
from rmq_spark.spark.plan.next_batch import BatchPace
from rmq_spark.spark.plan.rate_limit import Piece
from rmq_spark.spark.plan.source_offset import Committed, SourceOffset
from rmq_spark.spark.read.partition_reader import read_piece
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

_OFFSET: Final = "queueOffset"
_BODY: Final = "body"

_NO_STATE: Final = CommitState()


class CommittedBatches:
    """The planner of the batches of one query that reads committed rows; for use by one thread."""

    def __init__(
        self,
        options: ReadOptions,
        queues_of: Callable[[ReadOptions], Queues],
        clock: Callable[[], float],
    ) -> None:
        """Take the options of the source, and what asks brokers by the options given to it."""
        self._options = options
        self._commits_options = commits_options(options)
        self._queues = queues_of(self._commits_options)
        self._places = MicroBatches(self._commits_options, self._queues, clock)
        self._commits = CommitsReader(self._commits_options, self._queues)
        self._pace = BatchPace(clock)
        self._initial: SourceOffset | None = None
        self._is_closed = False
        self._planned: tuple[SourceOffset, tuple[Manifest, ...]] | None = None

    def initial(self) -> SourceOffset:
        """Return the start of a query that has no checkpoint yet."""
        if self._initial is None:
            place = self._places.initial()
            check_one_queue(place.positions)
            state = _NO_STATE
            for queue, position in place.positions.items():
                first = self._commits.first_whole(queue, position.next_offset)
                state = self._commits.state_at(queue, first)
                if first != position.next_offset:
                    place = self._places.begin_at(queue, first)
            self._initial = replace(place, committed=Committed(state))
        return self._initial

    def prepare_available_now(self) -> None:
        """Let nothing count from now on that is committed later."""
        self._is_closed = True
        self._places.prepare_available_now()

    @property
    def newest(self) -> SourceOffset | None:
        """The end of the commits topic as `latest` last saw it."""
        return self._places.newest

    @property
    def sizes(self) -> Mapping[MessageQueue, float]:
        """The mean size of a manifest in bytes."""
        return self._places.sizes

    def latest(self, start: SourceOffset, limits: Limits) -> SourceOffset:
        """Return the end of the next batch; ``start`` itself if there is none yet.

        Raises:
            DataLoss: Manifests behind the start are gone or damaged.
            CheckpointError: The start is of another topic, or of a query that read uncommitted.
            BrokersAway: The commits topic's broker has not answered for too long.
        """
        place, state = _taken_apart(start)
        end = self._places.latest(place, NO_LIMITS)
        if end == place:
            return start
        check_one_queue(end.positions)
        found = self._commits.between(self._places.pieces(place, end))
        behind, counting = _counting(state, found)
        rows = sum(manifest.row_count for _, manifest in counting)
        if not self._pace.is_enough(rows, limits, is_closed=self._is_closed):
            ends = {queue: position.next_offset for queue, position in end.positions.items()}
            self._queues.wait(ends, self._options.suspend_ms)
            return start
        cut = _cut(counting, limits)
        if len(cut) < len(counting):
            first = min(end.began.get(queue, _next(place, queue)) for queue in end.positions)
            end = self._places.latest(place, Limits(rows=cut[-1][0] + 1 - first))
            found = [(at, each) for at, each in found if at <= cut[-1][0]]
            behind, counting = _counting(state, found)
        self._pace.planned()
        made = replace(end, committed=Committed(behind, state if end.began else None))
        self._planned = made, tuple(manifest for _, manifest in counting)
        return made

    def pieces(self, start: SourceOffset, end: SourceOffset) -> list[SpanPiece]:
        """Return what tasks read between two offsets; equal offsets give equal pieces."""
        if start == end:
            return []
        if self._planned is None or self._planned[0] != end:
            (place, state), (place_end, _) = _taken_apart(start), _taken_apart(end)
            if end.committed is not None and end.committed.before is not None:
                state = end.committed.before
            found = self._commits.between(self._places.pieces(place, place_end))
            self._planned = end, tuple(manifest for _, manifest in _counting(state, found)[1])
        return pieces_of(self._options, self._planned[1])

    def reached(self, start: SourceOffset) -> None:
        """Note that everything before the start of the next batch has been written."""
        self._places.reached(replace(start, committed=None))

    def batch_ended(self, end: SourceOffset) -> None:
        """Note that a batch of the query has been written, be it of other sources."""
        self._places.batch_ended(replace(end, committed=None))


class CommitsReader:
    """The reading of manifests between places of a commits topic."""

    def __init__(self, options: ReadOptions, queues: Queues) -> None:
        """Take the options by which the commits topic is read."""
        self._options = options
        self._queues = queues

    def between(self, pieces: Iterable[Piece]) -> list[tuple[int, Manifest]]:
        """Return the whole manifests in these pieces of the commits topic, with their offsets.

        Raises:
            DataLoss: A message is no manifest, or parts of one are gone, and that is to end the
                query.
            CheckpointError: A manifest is of a newer release.
        """
        found = []
        for piece in pieces:
            for at, body in self._messages(piece):
                try:
                    manifest = self._whole(piece.queue, body)
                except ManifestError as error:  # noqa: PERF203  # the others are to be read
                    _refuse(self._options, piece.queue, at, error)
                else:
                    if manifest is not None:
                        found.append((at, manifest))
        return found

    def first_whole(self, queue: MessageQueue, queue_offset: int) -> int:
        """Return the offset from which on retention has taken no row of a batch, for a new read.

        A place that a user names by its offset is left as it is.
        """
        starting = self._options.starting
        if starting is not None and starting.everywhere is None:
            return queue_offset
        (end,) = self._queues.ends([queue]).values()
        for at, body in self._messages(Piece(queue, queue_offset, end)):
            try:
                manifest = self._whole(queue, body)
            except ManifestError:  # whoever reads it will be told
                return queue_offset
            if manifest is None:
                continue
            spans = [_renamed(span, self._options.broker_names) for span in manifest.spans]
            starts = self._queues.starts({span.queue for span in spans})
            if all(span.queue_offset >= starts[span.queue] for span in spans):
                return queue_offset
            _log.info("%s is not read: retention has taken rows of it", manifest.id)
            queue_offset = at + 1
        return queue_offset

    def state_at(self, queue: MessageQueue, queue_offset: int) -> CommitState:
        """Return what counts before an offset of the commits topic, by all that it still holds.

        A repeat behind that place is known by it. What is damaged counts for nothing here.
        """
        (first,) = self._queues.starts([queue]).values()
        ids = []
        for at, body in self._messages(Piece(queue, first, queue_offset)):
            try:
                manifest = decoded(body)
            except ManifestError:  # whoever reads it will be told
                continue
            if manifest is not None:
                ids.append((at, manifest.id))
        return _NO_STATE.take(ids)[0]

    def _whole(self, queue: MessageQueue, body: bytes) -> Manifest | None:
        """Return the manifest of a message with all of its parts; None for what is one of these.

        Raises:
            ManifestError: It is no manifest, or parts of it are gone.
        """
        manifest = decoded(body)
        if manifest is None or not manifest.parts:
            return manifest
        return manifest.whole(self._parts(queue, manifest))

    def _parts(self, queue: MessageQueue, manifest: Manifest) -> dict[int, bytes]:
        first, last = min(manifest.parts), max(manifest.parts)
        try:
            return dict(self._messages(Piece(queue, first, last + 1)))
        except DataLoss:
            return {}

    def _messages(self, piece: Piece) -> Iterator[tuple[int, bytes]]:
        if piece.start < piece.end:
            for batch in read_piece(self._options, _schema(), piece):
                offsets, bodies = (batch.column(name).to_pylist() for name in (_OFFSET, _BODY))
                yield from zip(offsets, bodies, strict=True)


def batch_pieces(
    options: ReadOptions, commits: CommitsReader, places: Iterable[Piece]
) -> list[SpanPiece]:
    """Return what the tasks of a batch read have to read, of these places of the commits topic."""
    places = list(places)
    check_one_queue({piece.queue for piece in places})
    found = []
    for piece in places:
        first = min(commits.first_whole(piece.queue, piece.start), piece.end)
        left = piece._replace(start=first)
        state = commits.state_at(piece.queue, first)
        found += [manifest for _, manifest in _counting(state, commits.between([left]))[1]]
    return pieces_of(options, found)


def pieces_of(options: ReadOptions, manifests: Iterable[Manifest]) -> list[SpanPiece]:
    """Return the pieces of the rows that manifests name, with brokers by their present names."""
    names = options.broker_names
    spans = (_renamed(span, names) for manifest in manifests for span in manifest.spans)
    return span_pieces(spans, options.pieces_min, options.piece_rows_max)


def check_one_queue(queues: Iterable[MessageQueue]) -> None:
    """Refuse a commits topic of several queues, in which nothing would be in order.

    Raises:
        OptionError: It has several.
    """
    there = sorted(queues)
    if len(there) > 1:
        raise OptionError(
            "isolation",
            f"topic {there[0].topic} has {len(there)} queues, from {named(there[0])} to "
            f"{named(there[-1])}: batches are in order in one only. Delete those that no sink "
            "writes to",
        )


def _counting(
    state: CommitState, found: Sequence[tuple[int, Manifest]]
) -> tuple[CommitState, list[tuple[int, Manifest]]]:
    """Return the state behind manifests, and those that count."""
    behind, offsets = state.take((at, manifest.id) for at, manifest in found)
    counting = frozenset(offsets)
    return behind, [(at, manifest) for at, manifest in found if at in counting]


def _cut(counting: list[tuple[int, Manifest]], limits: Limits) -> list[tuple[int, Manifest]]:
    """Return the manifests that are within the limits; the first one always is."""
    rows = size = taken = 0
    for _, manifest in counting:
        rows, size = rows + manifest.row_count, size + manifest.body_bytes
        is_beyond = (limits.rows is not None and rows > limits.rows) or (
            limits.bytes is not None and size > limits.bytes
        )
        if taken and is_beyond:
            break
        taken += 1
    return counting[:taken]


def _taken_apart(offset: SourceOffset) -> tuple[SourceOffset, CommitState]:
    """Return the place of an offset, and what counts before it."""
    if offset.committed is None:
        raise other_isolation(offset.topics, "uncommitted")
    return replace(offset, committed=None), offset.committed.behind


def _next(place: SourceOffset, queue: MessageQueue) -> int:
    return place.positions[queue].next_offset if queue in place.positions else 0


def _renamed(span: CommittedSpan, names: Mapping[str, str]) -> CommittedSpan:
    name = span.queue.broker_name
    return (
        span
        if name not in names
        else span._replace(queue=replace(span.queue, broker_name=names[name]))
    )


def _refuse(options: ReadOptions, queue: MessageQueue, at: int, error: ManifestError) -> None:
    problem = f"the message at offset {at} of {named(queue)} is no manifest that counts: {error}"
    if error.version:
        raise CheckpointError(problem) from error
    report_losses([problem], is_failure=options.fail_on_data_loss)


def _schema() -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415  # for those only who read committed rows

    return pa.schema([(_OFFSET, pa.int64()), (_BODY, pa.binary())])
