"""Staged batches: all rows become visible at once or never, whatever fails or is killed."""

import errno
import itertools
import os
import random
import shutil
import tempfile
import threading
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.disks.faulty_disk import Fault, FaultIn, FaultyDisk, RecordingDisk, power_loss_states
from support.stores.small_store import (
    Listener,
    bodies,
    components_of,
    crash,
    encoded,
    message,
    open_store,
    put_later,
    read_all,
)
from support.stores.staged_batches import OWNER, SINK, Sink, admitted, at_once, no_pause, result_of
from support.suite.log_records import lines_of
from support.suite.selection import some

from rmq_spark.wire.bodies.staged_batches import BatchSpan
from rmq_spark.wire.message.record import decode_record
from rocketpoll.broker.store.append import chunk_appender
from rocketpoll.broker.store.append.message_appender import MessageAppender
from rocketpoll.broker.store.batch_commit import coordinator
from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.errors import (
    BatchRefused,
    FlushFailed,
    StoreError,
    StoreFailed,
    TransientFailure,
    is_transient,
)
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.queues.consume_queue import ENTRY_BYTES, ConsumeQueue
from rocketpoll.broker.store.results import PutMessageStatus
from rocketpoll.broker.store.staging import commit_table

SYNC = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
ROWS = {("T", 0): ["a", "b", "c" * 900], ("T", 1): ["d"], ("U", 0): ["e", "f" * 1500, "g"]}
CHUNKS = [(*queue, texts) for queue, texts in ROWS.items()]


@pytest.fixture(autouse=True)
def _small_journal(monkeypatch):
    """Give the journal few pages, so that it is soon full, and small for a disk that keeps all
    versions."""
    monkeypatch.setattr(commit_table, "JOURNAL_BYTES", 4 * 4_096)


@pytest.fixture
def two_records_at_a_time(monkeypatch):
    """Let a step of reput dispatch two records."""
    for name in ("RUN_RECORDS_MAX", "ONE_BY_ONE_MAX"):
        monkeypatch.setattr(f"rocketpoll.broker.store.dispatch.reput.{name}", 2)


@pytest.fixture(params=["SYNC_FLUSH", "ASYNC_FLUSH"])
def store(tmp_path, request):
    store = open_store(tmp_path / "s", flush_disk_type=FlushDiskType(request.param))
    yield store
    store.shutdown()


def rows_seen(store):
    """Return the rows that a consumer sees, by queue, without empty queues."""
    known = {text for texts in ROWS.values() for text in texts}
    found = {queue: [text for text in bodies(store, *queue) if text in known] for queue in ROWS}
    return {queue: texts for queue, texts in found.items() if texts}


def of_others(store, *queues):
    return [text for queue in queues or ROWS for text in bodies(store, *queue) if "other" in text]


def put(store, text, *queue):
    result = store.wait_until_stored(store.put_message(message(text, *queue)))
    assert result.status is PutMessageStatus.PUT_OK


def test_staged_rows_are_invisible_until_committed(store):
    sink = Sink(store)
    attempt = sink.stage(0, CHUNKS)
    assert rows_seen(store) == {}
    committed = sink.commit(0, attempt)
    assert rows_seen(store) == ROWS
    assert (committed.batch_id, committed.rows) == (0, 7)
    assert committed.spans == tuple(
        BatchSpan(
            topic=topic,
            queue_id=queue_id,
            queue_offset=0,
            count=len(texts),
            crc=sum(crc32(text.encode()) & 0x7FFFFFFF for text in texts) & 0xFFFFFFFF,
            body_bytes=sum(map(len, texts)),
        )
        for topic, queue_id, texts in CHUNKS
    )


def test_adjoining_spans_are_merged_up_to_a_row_limit(store, monkeypatch):
    monkeypatch.setattr(coordinator, "_ROWS_MAX", 3)
    sink, one = Sink(store), ("T", 0, ["a", "b"])
    committed = sink.commit(0, sink.stage(0, [one, ("T", 0, ["c"]), one, ("T", 1, ["d"])]))
    found = [(each.queue_id, each.queue_offset, each.count) for each in committed.spans]
    assert found == [(0, 0, 3), (0, 3, 2), (1, 0, 1)]


@pytest.fixture
def many_rows(monkeypatch):
    """Return rows of a few queues; a step appends or dispatches at most five."""
    monkeypatch.setattr(chunk_appender, "_PART_RECORDS", 3)
    monkeypatch.setattr(chunk_appender, "RECORDS_PER_STEP", 5)
    monkeypatch.setattr("rocketpoll.broker.store.dispatch.reput.RUN_RECORDS_MAX", 5)
    monkeypatch.setattr("rocketpoll.broker.store.dispatch.reput.ONE_BY_ONE_MAX", 5)
    return {("T", n % 2): [f"{n} {row}" for row in range(17)] for n in range(2)}


def test_commit_and_reput_of_a_staged_batch_proceed_in_small_steps(
    tmp_path, many_rows, monkeypatch
):
    appended, entries, listener = [], [], Listener()
    append, write = MessageAppender.append_in_order, ConsumeQueue._write

    def counting(appender, queue, put, rows):
        appended.append(rows)
        return append(appender, queue, put, rows)

    def counting_write(queue, queue_offset, data):
        entries[-1] += len(data) // ENTRY_BYTES
        write(queue, queue_offset, data)

    store = open_store(tmp_path, listener=listener, wake_reput=lambda: None)
    monkeypatch.setattr(MessageAppender, "append_in_order", counting)
    monkeypatch.setattr(ConsumeQueue, "_write", counting_write)
    sink = Sink(store)
    committed = sink.commit(0, sink.stage(0, [(*key, rows) for key, rows in many_rows.items()]))
    assert [(each.queue_id, each.count) for each in committed.spans] == [(0, 17), (1, 17)]
    assert sum(appended) == 34
    assert max(appended) <= 5
    while not listener.arrivals:
        assert not bodies(store, "T", 0)
        entries.append(0)
        store.reput(lambda: True)
    assert sum(entries) == 34
    assert max(entries) <= 5
    assert {key: bodies(store, *key) for key in many_rows} == many_rows
    assert [each[:3] for each in listener.arrivals] == [("T", 0, 17), ("T", 1, 17)]
    store.shutdown()


def test_chunks_staged_under_a_higher_limit_are_committed(store, monkeypatch):
    sink = Sink(store)
    attempt = sink.stage(0, CHUNKS)
    monkeypatch.setattr(chunk_appender, "RECORDS_MAX", 2)
    with pytest.raises(BatchRefused, match="a chunk of 3 messages is over 2"):
        sink.stage(1, CHUNKS)
    sink.commit(0, attempt)
    assert rows_seen(store) == ROWS


@pytest.mark.parametrize("rows", [1, 40])
def test_commit_shows_no_rows_while_one_queue_cannot_be_written(tmp_path, rows, monkeypatch):
    monkeypatch.setattr("rocketpoll.broker.store.dispatch.reput.ONE_BY_ONE_MAX", 16)
    disk, listener = FaultyDisk(), Listener()
    store = open_store(tmp_path, disk, listener=listener, wake_reput=lambda: None)
    sink = Sink(store)
    sink.commit(0, sink.stage(0, [("V", 0, ["the log's first file is left"])]))
    store.reput()
    listener.arrivals.clear()
    texts = [str(row) for row in range(rows)]
    sink.commit(1, sink.stage(1, [("T", queue_id, texts) for queue_id in range(3)]))
    for spared in range(4):
        disk.lack(errno.ENOSPC, spared)
        store.reput()
        if not disk.is_lacking:
            break
        assert [bodies(store, "T", queue_id) for queue_id in range(3)] == [[]] * 3
        assert not listener.arrivals
    disk.lack(None)
    store.reput()
    assert [bodies(store, "T", queue_id) for queue_id in range(3)] == [texts] * 3
    assert [each[:3] for each in listener.arrivals] == [("T", n, rows) for n in range(3)]
    store.shutdown()


def test_commit_is_atomic_for_readers_at_each_step(store):
    sink = Sink(store)
    attempt = sink.stage(0, CHUNKS)
    seen, sent = [], []

    def look():
        sent.append(f"other {len(sent)}")
        put(store, sent[-1], "T", 0)
        seen.append(rows_seen(store))

    sink.commit(0, attempt, between=look)
    assert rows_seen(store) == ROWS
    assert len(seen) > 5
    assert all(each in ({}, ROWS) for each in seen)
    assert {} in seen
    assert of_others(store) == sent


@pytest.mark.usefixtures("two_records_at_a_time")
@pytest.mark.parametrize("pieces", [1, 2, 100])
def test_reput_in_steps_shows_all_rows_of_a_batch_in_its_last_step(tmp_path, pieces):
    listener, calls = Listener(), []
    store = open_store(tmp_path, listener=listener, wake_reput=lambda: calls.append(1))
    sink = Sink(store)
    sink.commit(0, sink.stage(0, CHUNKS))
    assert rows_seen(store) == {}
    turns = 0
    while not store.reput(lambda: True):
        turns += 1
        assert rows_seen(store) in ({}, ROWS)
    store.reput()
    assert rows_seen(store) == ROWS
    assert turns >= 2
    assert sorted(each[:3] for each in listener.arrivals) == [
        ("T", 0, 3),
        ("T", 1, 1),
        ("U", 0, 3),
    ]
    store.shutdown()


def refuse(_):
    raise BatchRefused("no queue takes messages")


@pytest.mark.usefixtures("two_records_at_a_time")
def test_rollback_during_reput_of_a_committed_batch_shows_no_part_of_it(tmp_path):
    store = open_store(tmp_path, listener=Listener(), wake_reput=lambda: None)
    committed, other = Sink(store), Sink(store, "other", "other")
    committed.commit(0, committed.stage(0, CHUNKS))
    assert not store.reput(lambda: True)
    attempt = other.stage(0, [("T", 0, ["rolled back"])])
    with pytest.raises(BatchRefused):
        other.commit(0, attempt, admit=refuse_after(1))
    while not store.reput(lambda: True):
        assert rows_seen(store) in ({}, ROWS)
    assert rows_seen(store) == ROWS
    store.shutdown()


def refuse_after(count):
    """Return a function that admits a number of chunks, and then refuses."""
    admissions = itertools.count()
    return lambda _: refuse(_) if next(admissions) >= count else None


class BatchMachine(RuleBasedStateMachine):
    """Random batches, messages and partial reputs: readers see whole batches, in order.

    Each queue shows a prefix of what the log has for it, and all rows of a batch or none.
    """

    queues = st.sampled_from([("T", 0), ("T", 1), ("U", 0)])
    batches = st.dictionaries(queues, st.integers(1, 5), min_size=1)
    steps = st.integers(0, 3)

    @initialize(flush=st.sampled_from(FlushDiskType))
    def start(self, flush):
        self.patches = pytest.MonkeyPatch()
        for name in ("RUN_RECORDS_MAX", "ONE_BY_ONE_MAX"):
            self.patches.setattr(f"rocketpoll.broker.store.dispatch.reput.{name}", 2)
        self.patches.setattr(commit_table, "JOURNAL_BYTES", 4 * 4_096)
        self.root = Path(tempfile.mkdtemp(prefix="batch-machine-"))
        self.flush = flush
        self.numbers = itertools.count()
        self.batch_id = 0
        self.log = []  # appended messages by queue
        self.open()

    def open(self):
        self.store = open_store(
            self.root, listener=Listener(), flush_disk_type=self.flush, wake_reput=lambda: None
        )

    def staged(self, sizes):
        rows = {key: [f"{next(self.numbers)}" for _ in range(size)] for key, size in sizes.items()}
        sink = Sink(self.store)
        chunks = [(*key, texts) for key, texts in rows.items()]
        return sink, sink.stage(self.batch_id, chunks, f"{next(self.numbers)}"), rows

    @rule(queue=queues, count=st.integers(1, 4))
    def put(self, queue, count):
        for _ in range(count):
            text = f"{next(self.numbers)}"
            put(self.store, text, *queue)
            self.log.append({queue: [text]})

    @rule(sizes=batches, steps=steps)
    def commit(self, sizes, steps):
        sink, attempt, rows = self.staged(sizes)
        sink.commit(self.batch_id, attempt)
        self.batch_id += 1
        self.log.append(rows)
        self.reput_some(steps)

    @rule(sizes=batches, chunks=st.integers(0, 3), steps=steps)
    def rollback_rows(self, sizes, chunks, steps):
        sink, attempt, rows = self.staged(sizes)
        with pytest.raises(BatchRefused):
            sink.commit(self.batch_id, attempt, admit=refuse_after(min(chunks, len(rows))))
        self.reput_some(steps)

    @rule(steps=steps)
    def reput_some(self, steps):
        for _ in range(steps):
            self.store.reput(lambda: True)
            self.all_or_nothing()

    @rule()
    def reput(self):
        self.store.reput()
        assert sum(self.seen().values()) == sum(
            len(rows) for put in self.log for rows in put.values()
        )

    @rule()
    def checkpoint(self):
        self.store.save_checkpoint()

    @rule(is_killed=st.booleans())
    def restart(self, is_killed):
        if is_killed:
            crash(self.store)
        else:
            self.store.shutdown()
        self.open()
        self.reput()

    def seen(self):
        """Return the number of visible messages of each queue; they are the first ones
        in the log."""
        counts = {}
        for queue in {queue for put in self.log for queue in put}:
            expected = [text for put in self.log for text in put.get(queue, ())]
            found = bodies(self.store, *queue)
            counts[queue] = len(found)
            assert found == expected[: len(found)]
        return counts

    @invariant()
    def all_or_nothing(self):
        seen, place = self.seen(), Counter()
        for each in self.log:
            shown = {queue: seen[queue] - place[queue] for queue in each}
            is_whole = all(shown[queue] >= len(texts) for queue, texts in each.items())
            assert is_whole or all(count <= 0 for count in shown.values())
            place.update({queue: len(texts) for queue, texts in each.items()})

    def teardown(self):
        if hasattr(self, "store"):
            self.store.shutdown()
            shutil.rmtree(self.root)
            self.patches.undo()


BatchMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("ROCKETPOLL_STORIES", "20")), stateful_step_count=20
)
TestBatchMachine = BatchMachine.TestCase


class Killed(BaseException):
    """Raised when the broker is killed within a commit."""


@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("end", [Killed, BatchRefused])
def test_committed_rows_are_visible_after_refused_appends(tmp_path, step, end):
    full = FaultIn(0, persistent=True, kinds={"write"}, error=errno.ENOSPC, directory="commitlog")
    disk, steps, admitted_rows = FaultyDisk(LocalDisk()), itertools.count(), itertools.count(1)
    store = open_store(tmp_path, disk)
    for number in range(6):  # rows have no place in the log's first file
        put(store, f"other {number}" + "x" * 900, "T", 0)
    sink, seen = Sink(store), []
    attempt = sink.stage(0, CHUNKS)

    def beside():
        at = next(steps)
        if at == step:
            disk.plan = (full,)
            put_later(store, *[message("refused" + "x" * 300, "T", 1)] * 4)
        elif at == step + 1:
            store.write_buffered()
            disk.plan = ()
        store.reput()
        seen.append(rows_seen(store))

    def admit(_):
        if next(admitted_rows) > len(CHUNKS):
            raise end("behind the copy")

    with pytest.raises((end, StoreError)):
        sink.commit(0, attempt, between=beside, admit=admit)
    disk.plan = ()
    if end is Killed:
        crash(store)
        store = open_store(tmp_path)
    assert [each for each in [*seen, rows_seen(store)] if each] == []
    assert len(of_others(store)) == 6
    store.shutdown()


@pytest.mark.usefixtures("two_records_at_a_time")
@pytest.mark.parametrize("pieces", range(1, 6))
def test_topic_deleted_during_a_stepwise_reput_takes_only_its_own_rows_along(tmp_path, pieces):
    store = open_store(tmp_path, wake_reput=lambda: None)
    sink = Sink(store)
    sink.commit(0, sink.stage(0, CHUNKS))
    for _ in range(pieces):
        store.reput(lambda: True)
    store.delete_topic("T")
    store.reput()
    assert rows_seen(store) == {("U", 0): ROWS["U", 0]}
    assert store.put_message(message("new")).queue_offset == 0
    store.reput()
    assert bodies(store) == ["new"]
    store.shutdown()


@pytest.mark.parametrize("between", [None, 3, 5, 7, 9])
def test_rolled_back_batch_leaves_offset_gaps_only_before_messages_of_others(store, between):
    """The offsets go to the next messages, unless others have been appended after them."""
    sink, steps, admissions = Sink(store), itertools.count(), itertools.count(1)
    chunks = [("T", 0, [f"{number}", "row"]) for number in range(4)]
    attempt = sink.stage(0, chunks)

    def beside():
        if next(steps) == between:
            put(store, "other", "T", 0)

    def admit(_):
        if next(admissions) > len(chunks):
            raise BatchRefused("behind the copy")

    with pytest.raises(BatchRefused):
        sink.commit(0, attempt, between=beside, admit=admit)
    put(store, "next", "T", 0)
    others = ["other"] * (between is not None)
    assert bodies(store) == [*others, "next"]
    first, *behind = (each.queue_offset for each in read_all(store, "T", 0))
    assert (first == 0) or others
    assert [each - first for each in behind] == [1] * len(others)


def test_repeated_commit_answers_the_same_and_appends_nothing(store):
    sink = Sink(store)
    attempt = sink.stage(0, CHUNKS)
    first = sink.commit(0, attempt)
    assert sink.commit(0, attempt) == first
    assert store.staged_batches.table.is_committed(sink.sink, 0, sink.owner)
    assert rows_seen(store) == ROWS


def at_the_same_time(dice, *requests):
    """Interleave the steps of several requests at random; return the result or the
    error of each."""
    under_way, awaited, ends = dict(enumerate(requests)), {}, {}
    while under_way:
        ready = [number for number in under_way if awaited.get(number, no_pause()).done()]
        if not ready:
            wait([awaited[number] for number in under_way], 5, FIRST_COMPLETED)
            continue
        number = dice.choice(ready)
        try:
            awaited[number] = next(under_way[number]) or no_pause()
        except StopIteration as end:
            ends[number] = end.value
        except StoreError as error:
            ends[number] = error
        if number in ends:
            del under_way[number]
    return [ends[number] for number in range(len(requests))]


def where_nothing_goes(job, then):
    """Run a job immediately; deletion of staged files fails on this disk."""
    if not isinstance(job, partial):  # only the deletion is a job whose end nobody awaits
        at_once(job, then)


@pytest.mark.parametrize("aside", [at_once, where_nothing_goes])
@pytest.mark.parametrize("seed", range(4))
def test_concurrent_commits_of_a_batch_append_it_once(store, seed, aside):
    dice, sink = random.Random(seed), Sink(store)
    texts = {batch_id: [f"{row} of {batch_id}" for row in range(3)] for batch_id in (0, 1)}
    staged = [
        (batch_id, sink.stage(batch_id, [("T", 0, texts[batch_id]), ("T", 1, ["row"])], name))
        for batch_id, name in [(0, "a"), (0, "b"), (1, "c")]
    ]
    asked = [*staged, dice.choice(staged), dice.choice(staged)]
    requests = [
        store.staged_batches.commit(SINK, batch_id, OWNER, [attempt], admitted, aside, no_pause)
        for batch_id, attempt in asked
    ]
    if seed % 2:
        requests.append(store.staged_batches.abort(SINK, 0, OWNER, at_once))
    answers = at_the_same_time(dice, *requests)
    committed = {
        batch_id: answer
        for (batch_id, _), answer in zip(asked, answers, strict=False)
        if not isinstance(answer, StoreError)
    }
    expected = [text for each in committed for text in texts[each]]
    assert sorted(bodies(store)) == sorted(expected)
    assert bodies(store, "T", 1) == ["row"] * len(committed)
    assert all(answer.batch_id == batch_id for batch_id, answer in committed.items())
    last = [answer for (batch_id, _), answer in zip(asked, answers, strict=False) if batch_id]
    assert last == [committed[1]] * len(last)  # a repeated query returns the same


def test_commit_and_abort_leave_no_staging_files(store, tmp_path):
    sink = Sink(store)
    sink.stage(0, CHUNKS, "lost")
    sink.commit(0, sink.stage(0, CHUNKS))
    sink.stage(1, CHUNKS)
    sink.abort(1)
    assert [path for path in (tmp_path / "s" / "staging").rglob("*") if path.is_file()] == []
    sink.abort(0)
    assert rows_seen(store) == ROWS
    assert sink.last == 0


def test_commit_counts_only_the_named_attempt(store):
    sink = Sink(store)
    sink.stage(0, [("T", 0, ["of the other attempt"])], "lost")
    sink.commit(0, sink.stage(0, CHUNKS, "won"))
    assert bodies(store) == ROWS["T", 0]


def test_last_batch_of_a_sink_survives_crashes_and_lost_manifests(tmp_path):
    store = open_store(tmp_path)
    sink = Sink(store)
    first = sink.commit(7, sink.stage(7, CHUNKS))
    crash(store)
    (tmp_path / "config" / "manifest.json").unlink(missing_ok=True)
    (tmp_path / "checkpoint").unlink(missing_ok=True)
    store = open_store(tmp_path)
    assert Sink(store).commit(7) == first
    assert rows_seen(store) == ROWS
    store.shutdown()


def changed(name, change):
    def damage(root):
        path = root / "staging" / "query-T" / name
        path.write_bytes(change(path.read_bytes()))

    return damage


DAMAGES = {
    "missing": (lambda root: (root / "staging" / "query-T" / "0-1-a").unlink(), "is not staged"),
    "a flipped bit": (changed("0-2-a", lambda data: data[:-1] + b"\xff"), "is damaged"),
    "cut": (changed("0-0-a", lambda data: data[:7]), "is damaged"),
    "newer": (changed("0-0-a", lambda data: data[:7] + b"\x02" + data[8:]), "newer release"),
    "another chunk": (
        lambda root: (root / "staging" / "query-T" / "0-1-a").rename(
            root / "staging" / "query-T" / "0-0-a"
        ),
        "is damaged",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_staged_rows_are_refused_at_commit(store, tmp_path, name):
    damage, told = DAMAGES[name]
    sink = Sink(store)
    attempt = sink.stage(0, CHUNKS)
    damage(tmp_path / "s")
    with pytest.raises(BatchRefused, match=told):
        sink.commit(0, attempt)
    assert rows_seen(store) == {}
    sink.commit(0, sink.stage(0, CHUNKS))
    assert rows_seen(store) == ROWS


def test_commit_with_another_row_count_is_refused(store):
    sink = Sink(store)
    attempt = sink.stage(0, CHUNKS)
    sink.stage(0, [("T", 0, ["x"])])  # a second task with the same attempt name
    with pytest.raises(BatchRefused, match="and the commit names 7 rows"):
        sink.commit(0, attempt)
    assert rows_seen(store) == {}


def test_commit_of_a_batch_before_the_last_one_is_refused(store):
    """For example from an older checkpoint: its rows would be lost silently."""
    sink = Sink(store)
    sink.commit(40, sink.stage(40, CHUNKS[:1]))
    for batch_id in (0, 39):
        attempt = sink.stage(batch_id, CHUNKS[1:])
        told = f"has already committed batch 40, which is later than batch {batch_id}"
        with pytest.raises(BatchRefused, match=told):
            sink.commit(batch_id, attempt)
    sink.abort(0)
    assert sink.commit(40).batch_id == 40
    assert rows_seen(store) == {("T", 0): ROWS["T", 0]}


def test_forgotten_sink_commits_again_from_its_first_batch(store):
    sink = Sink(store)
    sink.commit(40, sink.stage(40, CHUNKS[:1]))
    sink.stage(41, CHUNKS[1:])
    assert result_of(store.staged_batches.forget_sink(sink.sink, at_once))
    assert (sink.last, store.staged_batches.staging_area.size) == (None, 0)
    assert not result_of(store.staged_batches.forget_sink(sink.sink, at_once))
    sink.commit(0, sink.stage(0, CHUNKS[1:]))
    assert rows_seen(store) == ROWS


def syncs(disk, job):
    """Return the directories of the files that a job flushes."""
    before = len(disk.operations)
    job()
    kinds = {"flush", "flush_directory", "write_whole"}
    return [each.path.parent.name for each in disk.operations[before:] if each.kind in kinds]


def test_small_batch_commit_takes_three_flushes_and_an_empty_one_takes_one(tmp_path, monkeypatch):
    monkeypatch.setattr(commit_table, "JOURNAL_BYTES", 1 << 20)
    disk = FaultyDisk(LocalDisk())
    store = open_store(tmp_path, disk, **SYNC)
    sink, attempts = Sink(store), []
    sink.commit(0, sink.stage(0, CHUNKS))
    assert syncs(disk, lambda: attempts.append(sink.stage(1, CHUNKS[1:2]))) == []
    found = syncs(disk, lambda: sink.commit(1, *attempts))
    assert found == ["config", "commitlog", "config"]
    end = store.state().written_offset
    assert syncs(disk, lambda: sink.commit(2)) == ["config"]
    assert (sink.last, store.state().written_offset) == (2, end)
    store.shutdown()


def test_sink_of_one_query_refuses_another_query(store):
    mine, other = Sink(store), Sink(store, owner="another query")
    mine.commit(0, mine.stage(0, CHUNKS))
    with pytest.raises(BatchRefused, match="belongs to query"):
        other.commit(1, other.stage(1, CHUNKS))
    with pytest.raises(BatchRefused, match="belongs to query"):
        other.abort(1)


@pytest.mark.parametrize("calls", [0, 2, 4])
def test_topic_deleted_around_a_commit_leaves_no_batch_half_visible(store, calls):
    """The topic is deleted before, during or after the copy."""
    sink = Sink(store)
    attempt = sink.stage(0, CHUNKS)
    asked = []

    def admit(queue):
        asked.append(queue)
        if len(asked) > calls:
            raise BatchRefused(f"topic {queue[0]} was deleted")

    with pytest.raises(BatchRefused, match="was deleted"):
        sink.commit(0, attempt, between=lambda: put(store, "other", "T", 1), admit=admit)
    assert rows_seen(store) == {}
    put(store, "other behind", "U", 0)
    assert of_others(store, ("U", 0)) == ["other behind"]
    assert store.queue_offsets("U", 0).next == 1
    sink.commit(0, attempt)
    assert rows_seen(store) == ROWS


def test_topic_recreated_during_a_batch_copy_gets_all_rows_or_none(tmp_path):
    """A topic of this name exists at each check, and rows before the deletion belong to nobody."""
    chunks = [("T", 0, ["a", "b"]), ("U", 0, ["u"]), ("T", 1, ["c"]), ("T", 0, ["d"])]
    none, whole, deleted_behind_it = [[], [], []], [["a", "b", "d"], ["u"], ["c"]], [[], ["u"], []]
    steps, outcomes = [], []
    for at in itertools.count(1):
        store = open_store(tmp_path / str(at))
        sink = Sink(store)
        attempt = sink.stage(0, chunks)

        def between(at=at, store=store):
            steps.append(at)
            if steps.count(at) == at:
                store.delete_topic("T")

        try:
            sink.commit(0, attempt, between=between)
        except BatchRefused as refused:
            assert "topic T was deleted" in str(refused)
        found = [bodies(store, *queue) for queue in (("T", 0), ("U", 0), ("T", 1))]
        assert found in (([whole, deleted_behind_it]) if sink.last == 0 else [none])
        outcomes.append(found)
        if sink.last is None:
            sink.commit(0, attempt)
            assert [bodies(store, *queue) for queue in (("T", 0), ("U", 0), ("T", 1))] == whole
        store.shutdown()
        if steps.count(at) < at:
            break
    assert outcomes.count(none) > 3


@pytest.mark.parametrize("others", [1, 2, 3])
def test_offsets_of_a_recreated_topic_are_not_rolled_back(store, others):
    """The new topic has as many messages as the batch had rows in the old one, or fewer."""
    sink = Sink(store)
    attempt = sink.stage(0, [("T", 0, ["row", "row"]), ("U", 0, ["row"])])
    texts = [f"other {number}" for number in range(others)]

    def admit(queue):
        if queue[0] == "U":
            store.delete_topic("T")
            for text in texts:
                put(store, text, "T", 0)
            raise BatchRefused("gone")

    with pytest.raises(BatchRefused, match="gone"):
        sink.commit(0, attempt, admit=admit)
    put(store, "behind", "T", 0)
    assert bodies(store) == [*texts, "behind"]


def test_rollback_keeps_foreign_records_with_the_commits_mark(tmp_path):
    """Ready-encoded records may contain any mark, so only the records up to the end of the copy
    count as rows."""
    store = open_store(tmp_path)
    sink = Sink(store)
    attempt = sink.stage(0, CHUNKS)
    sent = []

    def look():
        under_way = components_of(store).batch_table.under_way
        if under_way is not None:
            text = f"other {len(sent)}"
            record = encoded(
                replace(message(text, "T", 0), prepared_transaction_offset=under_way.mark)
            )
            assert store.put_chunk(record, [len(record)]).status is PutMessageStatus.PUT_OK
            sent.append(text)

    def refuse(queue):
        if len(sent) > 2:
            raise BatchRefused("gone")

    with pytest.raises(BatchRefused, match="gone"):
        sink.commit(0, attempt, between=look, admit=refuse)
    crash(store)
    (tmp_path / "checkpoint").unlink(missing_ok=True)  # everything is read from the log
    store = open_store(tmp_path)
    assert (rows_seen(store), of_others(store)) == ({}, sent)
    assert sent != []
    store.shutdown()


def test_duplicate_attempt_in_a_commit_is_refused(store):
    sink = Sink(store)
    attempt = sink.stage(0, CHUNKS)
    with pytest.raises(BatchRefused, match="names an attempt twice"):
        sink.commit(0, attempt, attempt)
    assert rows_seen(store) == {}
    sink.commit(0, attempt)
    assert rows_seen(store) == ROWS


@pytest.mark.parametrize(
    ("name", "batch_id"), [("x" * 201, 0), ("a/b", 0), ("", 0), ("a\nb", 0), ("s", -1)]
)
def test_commit_with_an_invalid_sink_or_batch_id_is_refused(store, name, batch_id):
    """The broker keeps each sink for days, and long names would use shared memory."""
    with pytest.raises(BatchRefused, match=r"cannot be called|batch ids start at 0") as refused:
        Sink(store, name).commit(batch_id)
    assert len(str(refused.value)) < 300
    assert dict(store.staged_batches.table.sinks) == {}


def test_rebuilt_queues_do_not_show_rolled_back_rows(tmp_path):
    store = open_store(tmp_path)
    sink = Sink(store)
    attempt = sink.stage(0, CHUNKS)

    with pytest.raises(BatchRefused):
        sink.commit(0, attempt, between=lambda: put(store, "other", "T", 0), admit=refuse_topic_u)
    others = of_others(store)
    crash(store)
    (tmp_path / "checkpoint").unlink(missing_ok=True)
    store = open_store(tmp_path)
    assert rows_seen(store) == {}
    assert of_others(store) == others
    store.shutdown()


@pytest.mark.parametrize("before", [0, 2])
def test_rocketmq_finds_messages_past_the_gap_of_a_rolled_back_batch(tmp_path, before):
    """`getMessage` has this rule; `interop` tests RocketMQ's brokers themselves."""
    store = open_store(tmp_path)
    for number in range(before):
        put(store, f"other before {number}", "T", 0)
    sink = Sink(store)
    attempt = sink.stage(0, CHUNKS)
    with pytest.raises(BatchRefused):
        sink.commit(0, attempt, between=lambda: put(store, "other", "T", 0), admit=refuse_topic_u)
    others = of_others(store, ("T", 0))
    low, high = store.queue_offsets("T", 0)
    assert high - low > len(others) or low > before, "there is no gap"
    assert texts_that_rocketmq_finds(store, "T", 0) == others
    crash(store)
    shutil.rmtree(tmp_path / "consumequeue")
    store = open_store(tmp_path)
    assert texts_that_rocketmq_finds(store, "T", 0) == others
    store.shutdown()


def test_small_store_with_a_second_log_file_is_checked_completely(
    tmp_path,
):
    """Files are sparse, so the empty rest of the first takes no space and no time."""
    settings = {"mapped_file_size_commit_log": 1 << 24, "check_whole_log_bytes": 1 << 16}
    store = open_store(tmp_path, **settings)
    put(store, "other", "T", 0)
    sink = Sink(store)
    sink.commit(0, sink.stage(0, CHUNKS))
    expected = bodies(store, "T", 0)
    assert store.state().written_offset > 1 << 24
    store.shutdown()
    (entries,) = (tmp_path / "consumequeue" / "T" / "0").iterdir()
    entries.write_bytes(bytes(entries.stat().st_size))
    assert sum(each.stat().st_blocks for each in (tmp_path / "commitlog").iterdir()) * 512 < 1 << 17
    store = open_store(tmp_path, **settings)
    assert bodies(store, "T", 0) == expected
    store.shutdown()


def texts_that_rocketmq_finds(store, topic, queue_id):
    """Return the messages that RocketMQ finds, which continues after the log file of an entry that
    leads to no message."""
    log, queue = components_of(store).log, components_of(store).queues.get(topic, queue_id)
    found, next_file, queue_offset = [], 0, 0
    while queue_offset < queue.max_offset:
        entries = queue.entries(queue_offset, queue.max_offset - queue_offset).tolist()
        for place, size, _ in entries:
            assert 0 <= place < log.written_offset, "RocketMQ cuts the queue off here"
            in_file = place % log.files.file_size
            if place < next_file:
                continue
            if in_file + size > log.files.file_size:
                assert in_file == 0, "RocketMQ fails here: for it, the end is a negative number"
                next_file = place + log.files.file_size
            else:
                found.append(decode_record(log.read(place, size)).body.decode())
        queue_offset += len(entries)
    return found


def refuse_topic_u(queue):
    if queue[0] == "U":
        raise BatchRefused("gone")


def test_staged_bytes_are_limited(tmp_path):
    store = open_store(tmp_path, staged_bytes_max=2_000)
    sink = Sink(store)
    with pytest.raises(TransientFailure, match="maxStagedBytes"):
        sink.stage(0, [*CHUNKS, *CHUNKS])
    sink.abort(0)
    sink.commit(0, sink.stage(0, CHUNKS[1:2]))
    assert bodies(store, "T", 1) == ["d"]
    store.shutdown()


# ---- kills and disk failures


def commit_once(store, say=lambda *_: None):
    """Store another message, then commit a batch while others send."""
    sink, sent = Sink(store), []

    def other():
        text = f"other {len(sent)}"
        sent.append(text)
        result = store.wait_until_stored(store.put_message(message(text, "T", len(sent) % 2)))
        if result.status is PutMessageStatus.PUT_OK:
            say("sent", text)

    other()
    attempt = sink.stage(0, CHUNKS)
    say("staged", attempt)
    sink.commit(0, attempt, between=other)
    say("committed", attempt)
    other()


def check_afterwards(store, staged, *, committed, sent, is_staged=True):
    """Check that all rows are visible or none, and all if the commit was acknowledged.

    Staged rows still exist, unless a power loss may have taken them.
    """
    seen = rows_seen(store)
    assert seen in ({}, ROWS)
    sink = Sink(store)
    assert (sink.last == 0) is (seen == ROWS)
    assert seen == ROWS or not committed
    assert set(sent) <= set(of_others(store))
    if staged is not None:
        try:
            sink.commit(0, staged)
        except BatchRefused as refused:
            assert not is_staged, refused
            sink.commit(0, sink.stage(0, CHUNKS))
        assert rows_seen(store) == ROWS
    put(store, "other at the end", "U", 0)
    assert of_others(store, ("U", 0)) == ["other at the end"]


@pytest.mark.parametrize(
    "flush", ["SYNC_FLUSH", pytest.param("ASYNC_FLUSH", marks=pytest.mark.deep)]
)
def test_power_loss_during_a_batch_commit_leaves_all_rows_or_none(tmp_path, flush):
    root = tmp_path / "told"
    root.mkdir()
    disk, told = RecordingDisk(LocalDisk(), root), []
    store = open_store(root, disk, flush_disk_type=FlushDiskType(flush))
    commit_once(store, lambda *what: told.append((len(disk.operations), *what)))
    count = len(disk.operations)
    crash(store)
    dice = random.Random(19)
    for point in some(range(count + 1), "ROCKETPOLL_MOMENTS_OF_BATCHES", 24):
        before = [each[1:] for each in told if each[0] <= point]
        staged = next((what for kind, what in before if kind == "staged"), None)
        committed = any(kind == "committed" for kind, _ in before)
        sent = [what for kind, what in before if kind == "sent"] if flush == "SYNC_FLUSH" else []
        for state in power_loss_states(disk.log(point), dice, 3, tmp_path):
            store = open_store(state)
            check_afterwards(store, staged, committed=committed, sent=sent, is_staged=False)
            store.shutdown()


class Killed(BaseException):
    """Raised when the process is killed."""


class KillingDisk(FaultyDisk):
    """A disk that kills its process at an operation, and does nothing after that."""

    kill_at = 1 << 40

    def _run(self, call):
        if len(self.operations) >= self.kill_at:
            if threading.current_thread() is not threading.main_thread():
                raise FlushFailed("nobody flushes any more")  # otherwise waiters would wait forever
            raise Killed
        return super()._run(call)


def operations_of_a_commit(root):
    disk = FaultyDisk(LocalDisk())
    store = open_store(root, disk)
    first = len(disk.operations)
    commit_once(store)
    last = len(disk.operations)
    store.shutdown()
    return first, last


def test_kill_during_a_batch_commit_leaves_all_rows_or_none(tmp_path):
    first, last = operations_of_a_commit(tmp_path / "count")
    assert last - first > 20
    for at in some(range(first, last), "ROCKETPOLL_KILLS_IN_BATCHES", 24):
        root, told = tmp_path / str(at), []
        disk = KillingDisk(LocalDisk())
        disk.kill_at = at
        store = open_store(root, disk)
        with pytest.raises((Killed, StoreError)):
            commit_once(store, lambda *what, told=told: told.append(what))
        crash(store)
        staged = next((what for kind, what in told if kind == "staged"), None)
        committed = any(kind == "committed" for kind, _ in told)
        store = open_store(root)
        sent = [what for kind, what in told if kind == "sent"]
        check_afterwards(store, staged, committed=committed, sent=sent)
        store.shutdown()
        store = open_store(root)
        assert rows_seen(store) in ({}, ROWS)
        store.shutdown()


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(errno.ENOSPC, id="full"),
        pytest.param(errno.EIO, id="broken", marks=pytest.mark.deep),
    ],
)
def test_disk_error_during_a_batch_commit_leaves_all_rows_or_none(tmp_path, error):
    first, last = operations_of_a_commit(tmp_path / "count")
    for at in some(range(first, last), "ROCKETPOLL_REFUSALS_IN_BATCHES", 24):
        disk = FaultyDisk(LocalDisk(), [Fault(at, error=error)])
        store, told = open_store(tmp_path / str(at), disk), []
        try:
            commit_once(store, lambda *what, told=told: told.append(what))
        except (OSError, TransientFailure, StoreError):
            assert rows_seen(store) in ({}, ROWS)
        failed = store.state().failure is not None
        if failed:
            crash(store)
        else:
            store.shutdown()
        store = open_store(tmp_path / str(at))
        staged = next((what for kind, what in told if kind == "staged"), None)
        committed = any(kind == "committed" for kind, _ in told)
        sent = [what for kind, what in told if kind == "sent"]
        check_afterwards(store, staged, committed=committed, sent=sent)
        store.shutdown()


class Refusing:
    """A sink whose second write to the table is refused a number of times."""

    def __init__(self, root, times, *, directories=("config",)):
        self.disk = FaultyDisk(LocalDisk())
        self.store = open_store(root, self.disk)
        self.sink = Sink(self.store)
        self.sink.commit(0, self.sink.stage(0, [("T", 1, ["earlier"])]))
        self.attempt = self.sink.stage(1, CHUNKS)
        self.times, self.directories = times, directories
        self.hindrances = []
        self.looks = {}

    def _refuse(self, queue):
        if queue[0] == "U":
            self.disk.plan = [
                FaultIn(0, persistent=True, error=errno.ENOSPC, directory=directory)
                for directory in self.directories
            ]

    def _pause(self):
        self.hindrances.append(self.store.state().degradation)
        if len(self.hindrances) == 1:
            put(self.store, "other meanwhile", "U", 0)
        assert rows_seen(self.store) == {}
        assert of_others(self.store) == []
        self.looks.get(len(self.hindrances), lambda: None)()
        if len(self.hindrances) == self.times:
            self.disk.plan = ()
        return no_pause()

    def commit(self):
        self.sink.commit(1, self.attempt, admit=self._refuse, pause=self._pause)


def test_commit_whose_journal_write_fails_is_retried_a_few_times(tmp_path):
    """Until the write succeeds, the result of a restart is unknown, so nothing is visible."""
    refusing = Refusing(tmp_path, 3)
    refusing.commit()
    assert len(refusing.hindrances) == 3
    told = "a batch can be neither committed nor rolled back: the disk is full"
    assert told in refusing.hindrances[0]
    assert refusing.store.state().degradation is None
    assert rows_seen(refusing.store) == ROWS
    assert of_others(refusing.store) == ["other meanwhile"]
    refusing.store.shutdown()


def test_commit_that_ran_out_of_retries_can_be_repeated(tmp_path):
    refusing = Refusing(tmp_path, coordinator.COMMIT_ATTEMPTS_MAX + 1)
    with pytest.raises(OSError, match="No space left"):
        refusing.commit()
    store = refusing.store
    assert (
        len(refusing.hindrances) == coordinator.COMMIT_ATTEMPTS_MAX + 1
    )  # the last during the rollback
    assert (rows_seen(store), of_others(store)) == ({}, ["other meanwhile"])
    assert store.state().failure is None
    put(store, "other behind", "U", 0)
    assert of_others(store) == ["other meanwhile", "other behind"]
    refusing.sink.commit(1, refusing.attempt)
    assert rows_seen(store) == ROWS
    crash(store)
    store = open_store(tmp_path)
    assert rows_seen(store) == ROWS
    store.shutdown()


MANY = 4 * coordinator.COMMIT_ATTEMPTS_MAX


def test_batch_neither_committed_nor_rolled_back_stops_the_store(tmp_path, caplog):
    """The failure is logged once at its start, however long it lasts, and once at its end."""
    refusing = Refusing(tmp_path, MANY)
    store, sink, refused = refusing.store, refusing.sink, []

    def look():
        refused.append(store.put_message(message("refused", "T", 0)).remark)
        for ask in (lambda: sink.commit(2), lambda: sink.abort(1), sink.forget):
            with pytest.raises(StoreError, match="neither committed nor rolled back: the disk is"):
                ask()

    refusing.looks = {MANY - 1: look}
    with pytest.raises(OSError, match="No space left"):
        refusing.commit()
    (remark,) = refused
    assert "a batch can be neither committed nor rolled back: the disk is full" in remark
    assert [
        line.partition(": ")[0] for line in lines_of(caplog, "rocketpoll.broker.store.errors")
    ] == [
        "a batch can be neither committed nor rolled back, retrying",
        "resolved",
    ]
    assert (store.state().failure, store.state().degradation) == (None, None)
    assert (rows_seen(store), of_others(store)) == ({}, ["other meanwhile"])
    put(store, "other behind", "U", 0)
    sink.commit(1, refusing.attempt)
    assert rows_seen(store) == ROWS
    store.shutdown()


@pytest.mark.parametrize("end", ["a kill", "a stop"])
def test_unresolved_batch_is_rolled_back_by_a_restart(tmp_path, end):
    class Ended(BaseException):
        pass

    def give_up():
        raise Ended

    refusing = Refusing(tmp_path, MANY)
    refusing.looks = {MANY - 1: give_up}
    with pytest.raises(Ended):
        refusing.commit()
    refusing.disk.plan = ()
    if end == "a stop":
        refusing.store.shutdown()
    else:
        crash(refusing.store)
    store = open_store(tmp_path)
    assert (rows_seen(store), of_others(store)) == ({}, ["other meanwhile"])
    Sink(store).commit(1, refusing.attempt)
    assert rows_seen(store) == ROWS
    store.shutdown()


def test_failed_flush_of_a_commit_note_needs_a_restart(tmp_path, caplog):
    """The store does not retry, and the failure does not end: the logged advice is true."""
    disk = FaultyDisk(LocalDisk())
    store = open_store(tmp_path, disk)
    sink = Sink(store)
    sink.commit(0, sink.stage(0, [("T", 1, ["earlier"])]))
    attempt = sink.stage(1, CHUNKS)

    def fail(queue):
        if queue[0] == "U":
            disk.plan = [
                FaultIn(
                    0,
                    kinds=frozenset({"flush"}),
                    persistent=True,
                    error=errno.EIO,
                    directory="config",
                )
            ]

    with pytest.raises(StoreFailed, match=r"neither committed nor rolled back.*restart"):
        sink.commit(1, attempt, admit=fail)
    with pytest.raises(StoreError, match=r"(?m)restart the broker$") as refused:
        sink.commit(1, attempt)
    assert not is_transient(refused.value)  # otherwise the log would announce a retry
    assert "neither committed nor rolled back" in store.state().failure
    assert store.state().degradation is None
    assert lines_of(caplog, "rocketpoll.broker.store.errors") == []
    crash(store)
    store = open_store(tmp_path)
    assert rows_seen(store) in ({}, ROWS)
    Sink(store).commit(1, attempt)
    assert rows_seen(store) == ROWS
    store.shutdown()


def test_commit_delays_other_appends_only_while_it_copies_rows(tmp_path):
    disk = FaultyDisk(slow="config")
    store = open_store(tmp_path, disk)
    sink, seen = Sink(store), []
    sink.commit(0, sink.stage(0, [("T", 1, ["earlier"])]))
    attempt = sink.stage(1, CHUNKS)
    flushes = disk.flushes

    def look():
        put(store, f"other {disk.flushes - flushes}", "V", 0)
        seen.append((disk.flushes - flushes, len(bodies(store, "V", 0))))

    sink.commit(1, attempt, between=look)
    sent = list(range(1, len(seen) + 1))
    before = [count for flushed, count in seen if not flushed]
    held = [count for flushed, count in seen if flushed == 1]
    assert before == sent[: len(before)] != []
    assert held[1:] == [len(before) + 1] * (len(held) - 1)
    assert held[1:] != []
    assert len(bodies(store, "V", 0)) == len(seen)
    store.shutdown()
