"""PullPlan: what follows from all of a pull but three numbers.

A consumer's pulls of a queue say the same but for their offsets and the opaque. To read them, to
see whether such a pull may be answered, and to find its filter, is a third of what a pull costs; so
it is done once, and remembered while the client is connected and its topic and group are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.headers.pull import PullMessageRequestHeader
from rocketpoll.broker.connection import Connection
from rocketpoll.broker.processor.lessons import Lessons
from rocketpoll.broker.processor.reading.pull_shape import PullShape
from rocketpoll.broker.processor.reading.subscription_filters import Filter

PLANS_MAX: Final = 256
"""Plans of one client: one for each queue that it pulls from. One that has more starts over."""
PLANS_OF_ALL_MAX: Final = 16 * PLANS_MAX
"""Plans of all clients: 6 MiB as a rule, 20 MiB if all are as long as may be remembered."""
_PULLS_PER_LESSON = 4

_new_header: Callable[[type[PullMessageRequestHeader], tuple[Any, ...]], PullMessageRequestHeader]
_new_header = tuple.__new__


class PullPlan(NamedTuple):
    """The plan for pulls of one group from one queue, and the shape of their headers."""

    shape: PullShape
    header: PullMessageRequestHeader
    """The header of one of them."""
    request: RemotingCommand
    """One of them, without what is not needed for an answer."""
    topic_config: TopicConfig
    group_config: SubscriptionGroupConfig
    message_filter: Filter
    """The filter, if such a pull brings its own subscription."""

    def header_with(self, queue_offset: int, commit_offset: int) -> PullMessageRequestHeader:
        """Return the header of another pull, in a quarter of the time of `_replace`."""
        header = self.header
        fields = (*header[:3], queue_offset, *header[4:6], commit_offset, *header[7:])
        return _new_header(PullMessageRequestHeader, fields)


class PullPlans:
    """The remembered plans of one client."""

    def __init__(self) -> None:
        self.lessons = Lessons(_PULLS_PER_LESSON, PLANS_MAX)
        self._mark = b""
        """The mark before the first number, in headers of this client."""
        self._plans: dict[bytes, list[PullPlan]] = {}
        """The plans by what comes before that mark: nearly all differ there already."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, header: bytes) -> tuple[PullPlan, tuple[int, int, int]] | None:
        """Return the plan for a header, and its queue offset, commit offset and opaque."""
        for plan in self._plans.get(header.partition(self._mark)[0], ()) if self._mark else ():
            numbers = plan.shape.cut(header)
            if numbers is not None:
                return plan, numbers
        return None

    def put(self, plan: PullPlan) -> None:
        """Remember a plan, in place of one of the same shape."""
        shape = plan.shape
        mark = shape.first_mark
        if mark != self._mark or self._count >= PLANS_MAX:
            self._plans.clear()
            self._count = 0
        self._mark = mark
        beginning = shape.pieces[0][: -len(mark)]
        others = [each for each in self._plans.get(beginning, ()) if each.shape != shape]
        self._count += 1 - (len(self._plans.get(beginning, ())) - len(others))
        self._plans[beginning] = [plan, *others]


class PullPlanTable:
    """The remembered plans of all clients, up to a fixed number.

    When there are too many, the client that came first starts over, which costs it little.
    """

    def __init__(self) -> None:
        self._clients: dict[Connection, PullPlans] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def known_of(self, connection: Connection) -> PullPlans | None:
        """Return the plans of a client of which any are remembered, or None."""
        return self._clients.get(connection)

    def may_learn(self, connection: Connection) -> bool:
        """Return whether a client may be given time for one more plan."""
        if connection.is_closed:  # it has been forgotten already
            return False
        return self._clients.setdefault(connection, PullPlans()).lessons.take()

    def put(self, connection: Connection, plan: PullPlan) -> None:
        """Remember a plan of a client."""
        plans = self._clients[connection]
        before = len(plans)
        plans.put(plan)
        self._count += len(plans) - before
        while self._count > PLANS_OF_ALL_MAX:
            self.forget(next(iter(self._clients)))

    def forget(self, connection: Connection) -> None:
        """Forget the plans of a client that is gone."""
        plans = self._clients.pop(connection, None)
        if plans is not None:
            self._count -= len(plans)
