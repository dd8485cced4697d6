"""Admin for asyncio: each method of the threaded one, awaited.

The calls are made in threads, up to eight at once in a process; what they do, and the errors that
they raise, is said by the threaded `Admin`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from rmq_spark.client.admin.admin import Admin as ThreadedAdmin
from rmq_spark.client.admin.reads.message_lookups import ADMIN_TIMEOUT_MS
from rmq_spark.client.aio.client import Client
from rmq_spark.client.aio.member import Member, threaded


class Admin(Member[ThreadedAdmin]):
    """Administers topics, consumer groups and their offsets, and looks up messages.

    Use it in an ``async with`` statement. A call that is cancelled may be made all the same.

    Example:
        async with Admin("localhost:9876") as admin:
            await admin.create_topic("orders", queue_nums=4)
            print(sum(each.messages for each in await admin.lag("billing", "orders")))

    Args:
        client: A `Client` to share with producers and consumers, or addresses of name servers
            (``"host:port;host:port"``) for a client of its own; None takes them from the
            environment variable NAMESRV_ADDR.

    What cannot work is an error of the first call that is awaited; each call raises
    `ClientShutDown` when this object was closed, or in another event loop or process.
    """

    def __init__(self, client: Client | str | Iterable[str] | None = None) -> None:
        if not isinstance(client, Client):
            client = Client(client, request_timeout_ms=ADMIN_TIMEOUT_MS)
        super().__init__(client)
        self._to_stop: list[ThreadedAdmin] = []

    topics = threaded(ThreadedAdmin.topics)
    create_topic = threaded(ThreadedAdmin.create_topic)
    delete_topic = threaded(ThreadedAdmin.delete_topic)
    topic_offsets = threaded(ThreadedAdmin.topic_offsets)
    topic_size = threaded(ThreadedAdmin.topic_size)
    all_topic_configs = threaded(ThreadedAdmin.all_topic_configs)
    topic_configs = threaded(ThreadedAdmin.topic_configs)
    route = threaded(ThreadedAdmin.route)

    create_group = threaded(ThreadedAdmin.create_group)
    delete_group = threaded(ThreadedAdmin.delete_group)
    groups = threaded(ThreadedAdmin.groups)
    groups_of_topic = threaded(ThreadedAdmin.groups_of_topic)
    members = threaded(ThreadedAdmin.members)
    queue_owners = threaded(ThreadedAdmin.queue_owners)
    queue_reports = threaded(ThreadedAdmin.queue_reports)

    lag = threaded(ThreadedAdmin.lag)
    progress = threaded(ThreadedAdmin.progress)
    set_offset = threaded(ThreadedAdmin.set_offset)
    reset_to_time = threaded(ThreadedAdmin.reset_to_time)
    clone_offsets = threaded(ThreadedAdmin.clone_offsets)

    cluster_info = threaded(ThreadedAdmin.cluster_info)
    masters = threaded(ThreadedAdmin.masters)
    runtime_info = threaded(ThreadedAdmin.runtime_info)
    broker_info = threaded(ThreadedAdmin.broker_info)

    message_at = threaded(ThreadedAdmin.message_at)
    message_by_offset_id = threaded(ThreadedAdmin.message_by_offset_id)
    messages_by_key = threaded(ThreadedAdmin.messages_by_key)
    messages_by_unique_id = threaded(ThreadedAdmin.messages_by_unique_id)
    read_table = threaded(ThreadedAdmin.read_table)
    read_committed = threaded(ThreadedAdmin.read_committed)

    def _build(self) -> ThreadedAdmin:
        return ThreadedAdmin(instance=self._client.instance())

    def _start(self, threaded: ThreadedAdmin) -> None:
        self._to_stop.append(threaded.__enter__())

    def _end(self, threaded: ThreadedAdmin) -> None:  # noqa: ARG002  # the one to stop, if it began
        with suppress(IndexError):  # it was stopped before, or has yet to begin
            self._to_stop.pop().__exit__(None, None, None)

    def __str__(self) -> str:
        return "the admin"
