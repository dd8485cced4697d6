"""Admin for asyncio: each method of the threaded `Admin`, as a coroutine.

The calls run in threads, up to eight at a time in a process. The threaded `Admin` documents what
each does and raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from rmq_spark.client.admin.admin import Admin as ThreadedAdmin
from rmq_spark.client.admin.lookups import ADMIN_TIMEOUT_MS
from rmq_spark.client.aio.client import Client, shared_or_own
from rmq_spark.client.aio.wrapper import AsyncWrapper, run_in_thread
from rmq_spark.client.arguments import explain_keywords


class Admin(AsyncWrapper[ThreadedAdmin]):
    """Administers topics, consumer groups with their offsets, and users, and looks up messages.

    Use it in an ``async with`` statement. A cancelled call may still be executed.

    Example:
        async with Admin("localhost:9876") as admin:
            await admin.create_topic("orders", queues=4)
            print(sum(each.messages for each in await admin.lag("billing", "orders")))

    Args:
        namesrv: Addresses of the name servers, as ``"host:port;host:port"`` or an iterable of
            ``"host:port"``. Defaults to the environment variable NAMESRV_ADDR.
        client: A `Client` to share with producers and consumers; ``namesrv`` is then ignored.
            Without it, this object has a client of its own.
        namespace: Namespace of the names of topics and groups. A shared client has its own.

    Invalid arguments raise an error from the first call that is awaited. Each call raises
    `ClientShutDown` after this object was closed, or in another event loop or process.
    """

    @explain_keywords
    def __init__(
        self,
        namesrv: str | Iterable[str] | None = None,
        *,
        client: Client | None = None,
        namespace: str | None = None,
    ) -> None:
        client = shared_or_own(client, namesrv, namespace, request_timeout_ms=ADMIN_TIMEOUT_MS)
        super().__init__(
            client,
            lambda: ThreadedAdmin(instance=client.instance()),
            lambda threaded: self._started.append(threaded.__enter__()),
            self._stop_started,
        )
        self._started: list[ThreadedAdmin] = []

    topics = run_in_thread(ThreadedAdmin.topics)
    create_topic = run_in_thread(ThreadedAdmin.create_topic)
    create_topics = run_in_thread(ThreadedAdmin.create_topics)
    delete_topic = run_in_thread(ThreadedAdmin.delete_topic)
    topic_offsets = run_in_thread(ThreadedAdmin.topic_offsets)
    timer_counts = run_in_thread(ThreadedAdmin.timer_counts)
    timer_count = run_in_thread(ThreadedAdmin.timer_count)
    topic_size = run_in_thread(ThreadedAdmin.topic_size)
    all_topic_configs = run_in_thread(ThreadedAdmin.all_topic_configs)
    find_topic = run_in_thread(ThreadedAdmin.find_topic)
    topic_configs = run_in_thread(ThreadedAdmin.topic_configs)
    route = run_in_thread(ThreadedAdmin.route)

    create_group = run_in_thread(ThreadedAdmin.create_group)
    delete_group = run_in_thread(ThreadedAdmin.delete_group)
    groups = run_in_thread(ThreadedAdmin.groups)
    groups_of_topic = run_in_thread(ThreadedAdmin.groups_of_topic)
    members = run_in_thread(ThreadedAdmin.members)
    queue_owners = run_in_thread(ThreadedAdmin.queue_owners)
    queue_reports = run_in_thread(ThreadedAdmin.queue_reports)

    lag = run_in_thread(ThreadedAdmin.lag)
    progress = run_in_thread(ThreadedAdmin.progress)
    describe_group = run_in_thread(ThreadedAdmin.describe_group)
    dead_letters = run_in_thread(ThreadedAdmin.dead_letters)
    resend = run_in_thread(ThreadedAdmin.resend)
    set_offset = run_in_thread(ThreadedAdmin.set_offset)
    reset_to_time = run_in_thread(ThreadedAdmin.reset_to_time)
    clone_offsets = run_in_thread(ThreadedAdmin.clone_offsets)

    users = run_in_thread(ThreadedAdmin.users)
    user = run_in_thread(ThreadedAdmin.user)
    create_user = run_in_thread(ThreadedAdmin.create_user)
    update_user = run_in_thread(ThreadedAdmin.update_user)
    delete_user = run_in_thread(ThreadedAdmin.delete_user)
    acls = run_in_thread(ThreadedAdmin.acls)
    create_acl = run_in_thread(ThreadedAdmin.create_acl)
    delete_acl = run_in_thread(ThreadedAdmin.delete_acl)

    cluster_info = run_in_thread(ThreadedAdmin.cluster_info)
    masters = run_in_thread(ThreadedAdmin.masters)
    runtime_info = run_in_thread(ThreadedAdmin.runtime_info)
    broker_info = run_in_thread(ThreadedAdmin.broker_info)

    message_at = run_in_thread(ThreadedAdmin.message_at)
    message_by_offset_id = run_in_thread(ThreadedAdmin.message_by_offset_id)
    messages_by_key = run_in_thread(ThreadedAdmin.messages_by_key)
    message_traces = run_in_thread(ThreadedAdmin.message_traces)
    messages_by_unique_id = run_in_thread(ThreadedAdmin.messages_by_unique_id)
    read_table = run_in_thread(ThreadedAdmin.read_table)
    read_committed = run_in_thread(ThreadedAdmin.read_committed)

    def _stop_started(self, _: ThreadedAdmin) -> None:
        with suppress(IndexError):  # not started, or already stopped
            self._started.pop().__exit__(None, None, None)

    def __str__(self) -> str:
        return "the admin"
