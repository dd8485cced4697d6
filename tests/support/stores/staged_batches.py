"""Staged and committed rows in a store, without a broker.

Jobs of the broker's other threads run immediately.
"""

import zlib
from concurrent.futures import Future
from contextlib import suppress

import pytest
from support.stores.small_store import encoded, message

from rmq_spark.wire.bodies.staged_batches import StagedAttempt
from rmq_spark.wire.chunk.sized_chunk import encode_sizes
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers.members import BatchRequestHeader, StageChunkRequestHeader
from rocketpoll.broker.store.errors import BatchRefused
from rocketpoll.broker.store.staging.staging_area import StagedName

SINK, OWNER = "query-T", "query"
COMMIT_TIMEOUT_MS = 30_000


def at_once(job, then):
    """Run a job immediately instead of in another thread, and report its end."""
    try:
        job()
    except BaseException as error:
        then(error)
    else:
        then(None)


def no_pause():
    """Return a pause that has already ended."""
    over = Future()
    over.set_result(None)
    return over


def admitted(_):
    """Accept messages for every topic."""


def result_of(steps, between=lambda: None):
    """Run a generator of steps to its end; call ``between`` after each step."""
    while True:
        try:
            awaited = next(steps)
        except StopIteration as end:
            return end.value
        if awaited is not None:
            with suppress(Exception):
                awaited.result(5)
        between()


def sized(texts, topic="T", queue_id=0):
    """Return sizes, records, and both in the form of a request."""
    records = [encoded(message(text, topic, queue_id)) for text in texts]
    sizes = [len(each) for each in records]
    return sizes, b"".join(records), encode_sizes(sizes) + b"".join(records)


class Sink:
    """A sink that writes batches into a store, as tasks and a driver do."""

    def __init__(self, store, sink=SINK, owner=OWNER):
        self.store, self.sink, self.owner = store, sink, owner

    def stage(self, batch_id, chunks, attempt="a"):
        """Stage (topic, queue, texts); return the entries that a commit has to list."""
        crc = rows = 0
        for number, (topic, queue_id, texts) in enumerate(chunks):
            sizes, records, body = sized(texts, topic, queue_id)
            name = StagedName(self.sink, batch_id, attempt, number)
            result_of(self.store.staged_batches.stage(name, body, sizes, records, at_once))
            crc, rows = zlib.crc32(body, crc), rows + len(texts)
        return StagedAttempt(attempt=attempt, chunks=len(chunks), rows=rows, crc=crc)

    def commit(self, batch_id, *attempts, between=lambda: None, admit=admitted, pause=no_pause):
        return result_of(
            self.store.staged_batches.commit(
                self.sink, batch_id, self.owner, attempts, admit, at_once, pause
            ),
            between,
        )

    def abort(self, batch_id):
        result_of(self.store.staged_batches.abort(self.sink, batch_id, self.owner, at_once))

    def forget(self):
        return result_of(self.store.staged_batches.forget_sink(self.sink, at_once))

    @property
    def last(self):
        last = self.store.staged_batches.table.last(self.sink)
        return None if last is None else last.batch_id


def roll_back(store, before=1):
    """Roll back a batch with three rows in queue 0 of T, after messages of other producers."""
    for number in range(before):
        store.wait_until_stored(store.put_message(message(f"other {number}", "T", 0)))
    roll_back_between(store, before=0, while_others_send=False)


def roll_back_between(store, before=1, *, topic="T", while_others_send=True):
    """Roll back a batch with rows in queue 0 of a topic while other producers send to it; return
    their messages.

    The queue has a gap afterwards.
    """
    sent = []

    def put():
        sent.append(f"other {len(sent)}")
        store.wait_until_stored(store.put_message(message(sent[-1], topic, 0)))

    def refuse_u(queue):
        if queue[0] == "U":
            raise BatchRefused("gone")

    for _ in range(before):
        put()
    sink = Sink(store)
    attempt = sink.stage(0, [(topic, 0, ["row"] * 3), ("U", 0, ["row"])])

    def between():
        """Send a message before the first rows."""
        if while_others_send and (before or store._appender.next_offset((topic, 0))):
            put()

    with pytest.raises(BatchRefused):
        sink.commit(0, attempt, between=between, admit=refuse_u)
    return sent


class RemoteSink:
    """A sink with the interface of `Sink`, for a running broker."""

    def __init__(self, api, address, sink=SINK):
        __tracebackhide__ = True
        assert Extension.STAGED_BATCHES in api.agreement(address).extensions
        self._staging, self._address, self._sink = api.staging, address, sink

    def stage(self, batch_id, chunks, attempt="a"):
        """Stage (topic, queue, texts); return the entries that a commit has to list."""
        crc = rows = 0
        for number, (topic, queue_id, texts) in enumerate(chunks):
            *_, body = sized(texts, topic, queue_id)
            header = StageChunkRequestHeader(
                self._sink, batch_id, OWNER, attempt, number, topic, queue_id
            )
            self._staging.stage_chunk(self._address, header, body).result()
            crc, rows = zlib.crc32(body, crc), rows + len(texts)
        return StagedAttempt(attempt=attempt, chunks=len(chunks), rows=rows, crc=crc)

    def commit(self, batch_id, *attempts):
        batch = BatchRequestHeader(self._sink, batch_id, OWNER)
        return self._staging.commit_batch(self._address, batch, attempts, COMMIT_TIMEOUT_MS)

    def abort(self, batch_id, *attempts):
        batch = BatchRequestHeader(self._sink, batch_id, OWNER)
        self._staging.abort_batch(self._address, batch, attempts)


def commit_batch(api, address, sink, batch_id, topic):
    """Stage two rows in a running broker and commit them."""
    remote = RemoteSink(api, address, sink)
    remote.commit(batch_id, remote.stage(batch_id, [(topic, 0, ["a", "b"])]))
