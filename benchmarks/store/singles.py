"""Single messages on one thread, as in a broker on an event loop: put, dispatch, get.

Reput follows in runs, of all messages of one turn of the loop. The index, which follows it megabyte
by megabyte, is a separate case: it is created again for each run, and most of its cost is the first
touch of its table's pages.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.harness import Case, Target
from benchmarks.store import samples
from benchmarks.store.workspace import Workspace, now_ms, open_store
from rmq_spark.wire.message.properties import encode_properties
from rmq_spark.wire.message.record import StoredMessage
from rocketpoll.broker.common.recent_losses import RecentLosses
from rocketpoll.broker.filter.subscription import build_subscription_data
from rocketpoll.broker.filter.subscription import message_filter as message_filter_of
from rocketpoll.broker.store.config import StoreConfig
from rocketpoll.broker.store.dispatch.dispatcher import Dispatcher
from rocketpoll.broker.store.dispatch.reput import ReputMessageService
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.file_pool import FilePool
from rocketpoll.broker.store.index.index_service import IndexService
from rocketpoll.broker.store.log.commit_log import CommitLog
from rocketpoll.broker.store.message_store import MessageStore
from rocketpoll.broker.store.queues.queue_table import QueueTable
from rocketpoll.broker.store.read.entry_selection import MessageFilter
from rocketpoll.broker.store.records.recent_writes import empty_recent_writes
from rocketpoll.broker.store.results import (
    LOG_START,
    GetMessageStatus,
    PhysicalOffset,
    PutMessageStatus,
    QueueOffset,
)

_MESSAGES = 20_000
_KEPT = 100_000
_RUNS = (1, 10, 32)
_GETS = 5_000
_PUT_MICROSECONDS = 6.0
_REPUT_MICROSECONDS = {1: 10.0, 10: 3.0, 32: 3.0}
_GET_MICROSECONDS = 15.0


def cases(workspace: Workspace) -> list[Case]:
    """Return the cases, each with its target."""
    return [*_put_cases(workspace), *_reput_cases(workspace), *_get_cases(workspace)]


def _put_cases(workspace: Workspace) -> list[Case]:
    put, varied = _Put(workspace, _as_sent), _Put(workspace, _varied_as_sent)
    subject = "put one message of 100 B with four properties"
    target = Target("microseconds", _PUT_MICROSECONDS)
    return [
        Case(subject, "put_message", put.run, _MESSAGES, target=target, prepare=put.prepare),
        Case(
            "put one varied message", "put_message", varied.run, _MESSAGES, prepare=varied.prepare
        ),
    ]


class _Put:
    """A new store, and the messages that its clients send."""

    def __init__(self, workspace: Workspace, sent: Callable[[int], StoredMessage]) -> None:
        self._workspace = workspace
        self._sent = sent
        self._store: MessageStore | None = None
        self._messages: list[StoredMessage] = []

    def prepare(self) -> None:
        self._store = open_store(self._workspace.fresh(), wake_reput=_nothing)
        self._workspace.closing(self._store)
        self._messages = self._messages or [*map(self._sent, range(_MESSAGES))]
        self._store.put_message(self._messages[0])

    def run(self) -> None:
        if self._store is None:
            raise RuntimeError("not prepared")
        put = self._store.put_message
        for message in self._messages:
            if put(message).status is not PutMessageStatus.PUT_OK:
                raise RuntimeError("the store did not take it")


def _as_sent(number: int) -> StoredMessage:
    """Return a message with the properties that RocketMQ's producer adds."""
    return _sent_by_producer(samples.message(number), number)


def _varied_as_sent(number: int) -> StoredMessage:
    """Return a message as services send it, with the same properties besides."""
    return _sent_by_producer(samples.varied_message(number), number)


def _sent_by_producer(message: StoredMessage, number: int) -> StoredMessage:
    return StoredMessage(
        topic=message.topic,
        body=message.body,
        properties_text=encode_properties(
            {**message.properties, "UNIQ_KEY": f"7F00000100002A139A55{number:012X}", "WAIT": "true"}
        ),
        queue_id=number % 4,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        store_host=message.store_host,
    )


def _reput_cases(workspace: Workspace) -> list[Case]:
    log = _log_of(workspace)
    found = []
    for count, with_index in (*((count, False) for count in _RUNS), (_RUNS[-1], True)):
        reput = _Reput(workspace, log, count, with_index=with_index)
        target = None if with_index else Target("microseconds", _REPUT_MICROSECONDS[count])
        subject = "reput what one turn of the loop has brought, 4 queues"
        variant = f"{count} message{'s' * (count > 1)}{', and index' * with_index}"
        found.append(
            Case(subject, variant, reput.run, _MESSAGES, target=target, prepare=reput.prepare)
        )
    return found


def _log_of(workspace: Workspace) -> Callable[[], tuple[CommitLog, list[PhysicalOffset]]]:
    """Return a function that writes a log of messages as sent, and where each ends."""

    def make(root: Path) -> tuple[CommitLog, list[PhysicalOffset]]:
        store = open_store(root, wake_reput=_nothing)
        ends = [store.put_message(_as_sent(number)).end_offset for number in range(_MESSAGES)]
        store.shutdown()
        log = CommitLog(
            FilePool(LocalDisk()),
            root / "commitlog",
            StoreConfig.mapped_file_size_commit_log,
            now_ms,
        )
        log.files.load()
        log.restore(ends[-1], log.timeline, sealed_from=LOG_START)
        return log, ends

    return lambda: workspace.kept("log-singles", make)


class _Reput:
    """The dispatch of a log to new queues and a new index, some messages at a time."""

    def __init__(
        self,
        workspace: Workspace,
        log: Callable[[], tuple[CommitLog, list[PhysicalOffset]]],
        count: int,
        *,
        with_index: bool,
    ) -> None:
        self._workspace = workspace
        self._log = log
        self._count = count
        self._with_index = with_index
        self._confirmed = LOG_START
        self._service: ReputMessageService | None = None

    def prepare(self) -> None:
        (log, _), root = self._log(), self._workspace.fresh()
        config = StoreConfig(store_path_root_dir=root)
        queues = QueueTable(
            FilePool(LocalDisk()), root / "queues", config.mapped_file_size_consume_queue
        )
        index = (
            IndexService(FilePool(LocalDisk()), root / "index", now_ms)
            if self._with_index
            else None
        )
        if index is not None:
            index.load()
        dispatcher = Dispatcher(config.message_delay_level_ms)
        self._confirmed = LOG_START
        self._service = ReputMessageService(
            log,
            queues,
            index,
            dispatcher,
            self._confirm_offset,
            empty_recent_writes(),
            RecentLosses(now_ms),
        )
        self._service.set_listener(_Listener())

    def _confirm_offset(self) -> PhysicalOffset:
        return self._confirmed

    def run(self) -> None:
        if self._service is None:
            raise RuntimeError("not prepared")
        ends = self._log()[1]
        for number in range(self._count - 1, len(ends), self._count):
            self._confirmed = ends[number]
            self._service.run()


class _Listener:
    """An arrival listener without held pulls."""

    def arriving(self, topic: str, queue_id: int, max_offset: int, tags_codes: object) -> None:
        """Do nothing: no pull is held."""


def _get_cases(workspace: Workspace) -> list[Case]:
    def make(root: Path) -> MessageStore:
        writer = samples.LogWriter(root, queues=1)
        writer.write(_KEPT)
        writer.log.close()
        store = open_store(root, with_index=False)
        workspace.mark_unflushed(store)
        return store

    def run(
        count: int, message_filter: MessageFilter | None, *, at_the_end: bool
    ) -> Callable[[], None]:
        starts = np.random.default_rng(1).integers(0, _KEPT - 2 * count, _GETS).tolist()

        def get() -> None:
            get_message = workspace.kept("store-singles", make).get_message
            for start in starts:
                at = _KEPT - count if at_the_end else start
                found = get_message(
                    samples.TOPIC,
                    0,
                    QueueOffset(at),
                    count_max=count,
                    message_filter=message_filter,
                )
                if found.status is not GetMessageStatus.FOUND:
                    raise RuntimeError(f"needed {count} messages, found {found}")

        return get

    subject = "get messages that lie together"
    target = Target("microseconds", _GET_MICROSECONDS)
    every_tag = message_filter_of(build_subscription_data("T", "created || paid || delivered"))
    return [
        Case(
            subject,
            f"{count} of "
            f"{'the newest' if at_the_end else 'many'}{', by tags' if message_filter else ''}",
            run(count, message_filter, at_the_end=at_the_end),
            _GETS,
            unit="get",
            target=target,
            prepare=lambda: workspace.kept("store-singles", make),
        )
        for count in (1, 32)
        for at_the_end in (False, True)
        for message_filter in (None, every_tag)
    ]


def _nothing() -> None:
    """Do nothing: dispatching is not measured here."""
