"""The pull request hold service with a store and a clock that a test controls."""

from collections import Counter, deque

from rmq_spark.wire.headers.members import PullMessageRequestHeader
from rmq_spark.wire.message.hosts import Host
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.longpolling.hold_limits import HoldLimits
from rocketpoll.broker.longpolling.pull_request import PullRequest
from rocketpoll.broker.longpolling.pull_request_hold_service import PullRequestHoldService

LIMITS = HoldLimits(holds_max=1_000, holds_per_connection_and_queue=16)


class Client:
    """A client connection with what the table of pulls uses of it."""

    def __init__(self, address=bytes([127, 0, 0, 1])):
        self.remote_host = Host(address, 1)
        self.closed_because = None
        self.is_closed = False

    def close(self, reason):
        self.closed_because = reason


class Codes:
    """A filter that accepts these tags codes, and optionally checks messages."""

    def __init__(self, *codes, needs_messages=False, size_bytes=0):
        self.codes = codes
        self.size_bytes = size_bytes
        self.needs_messages = needs_messages

    def matches_code(self, code):
        return code in self.codes


class Hold:
    """The hold service, its store and its clock."""

    def __init__(self, limits=LIMITS):
        self.woken = []
        self.ends = Counter()
        self.matches_from = []
        self.is_matched = False
        self.wake = self.woken.append
        self.service = PullRequestHoldService(
            limits,
            lambda topic, queue_id: self.ends[topic, queue_id],
            self._is_matched,
            lambda request: self.wake(request),  # noqa: PLW0108  # tests put others in its place
            lambda steps: self.work(steps),  # noqa: PLW0108  # tests put others in its place
        )

    @staticmethod
    def work(steps):
        """Run all steps immediately; tests replace this method."""
        deque(steps, maxlen=0)

    def arrive(self, topic, queue_id, max_offset, tags_codes=None):
        """Make messages arrive; return the number of released pulls."""
        before = self.service.hold_count
        self.service.notify_message_arriving(topic, queue_id, max_offset, tags_codes)
        return before - self.service.hold_count

    def sweep(self, now_ms):
        """Run a whole sweep; return the number of released pulls."""
        before = self.service.rescued_total
        deque(self.service.check_hold_request(now_ms), maxlen=0)
        return self.service.rescued_total - before

    def _is_matched(self, _request, from_queue_offset):
        self.matches_from.append(from_queue_offset)
        if isinstance(self.is_matched, Exception):
            raise self.is_matched
        yield
        return self.is_matched


def a_pull(
    client=None,
    topic="T",
    queue_id=0,
    queue_offset=0,
    now_ms=0,
    timeout_ms=15_000,
    wants=None,
    group="G",
    subscription="*",
):
    header = PullMessageRequestHeader(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        max_msg_nums=32,
        sys_flag=2,
        commit_offset=0,
        suspend_timeout_millis=timeout_ms,
        sub_version=0,
        subscription=subscription,
    )
    return PullRequest(
        connection=client or Client(),
        request=RemotingCommand(11),
        header=header,
        suspend_timestamp_ms=now_ms,
        timeout_ms=timeout_ms,
        message_filter=wants,
        no_match_before=queue_offset,
    )
