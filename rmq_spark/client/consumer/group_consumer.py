"""GroupConsumer: what users see of both kinds of consumers.

A consumer is two objects. What users hold has the methods that are meant for them, and nothing
else; the member behind it (`group_member`) also has those that brokers' requests, pull tasks and
listeners end in. The methods here are the member's, with their documentation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, Concatenate, ParamSpec, TypeVar

from rmq_spark.client.consumer.group_member import GroupMember
from rmq_spark.client.consumer.service_state import ServiceState

_Arguments = ParamSpec("_Arguments")
_Consumer = TypeVar("_Consumer", bound="GroupConsumer")
_Member = TypeVar("_Member", bound=GroupMember)
_Result = TypeVar("_Result")


def of_member(
    method: Callable[Concatenate[_Member, _Arguments], _Result],
) -> Callable[Concatenate[Any, _Arguments], _Result]:
    """Return a method of a consumer that calls this one of its member, and is documented by it.

    What is called is the member's own: a kind of member may do more than what both have in common.
    """
    name = method.__name__

    @functools.wraps(method)
    def call(
        self: GroupConsumer, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        try:
            found: _Result = getattr(self._member, name)(*args, **kwargs)
        except TypeError:
            from rmq_spark.client.wrong_calls import check_call  # noqa: PLC0415  # for what failed

            check_call(MethodType(method, self), args, kwargs)
            raise
        return found

    return call


class GroupConsumer:
    """A member of a consumer group: the base class of both kinds of consumers.

    Methods may be called from any thread. A ``with`` statement starts and shuts down a consumer.
    """

    def __init__(self, member: GroupMember) -> None:
        """Take the member that does the work."""
        self._member = member

    @property
    def group(self) -> str:
        """The name of the consumer group."""
        return self._member.group

    @property
    def service_state(self) -> ServiceState:
        """The state that this consumer is in: created, starting, running, shut down."""
        return self._member.service_state

    @property
    def is_running(self) -> bool:
        """True if the consumer was started in this process, and it and its instance still run."""
        return self._member.is_running

    @property
    def topics(self) -> frozenset[str]:
        """The topics that are subscribed to."""
        return self._member.topics

    start = of_member(GroupMember.start)
    shutdown = of_member(GroupMember.shutdown)
    subscribe = of_member(GroupMember.subscribe)
    unsubscribe = of_member(GroupMember.unsubscribe)
    health = of_member(GroupMember.health)

    def __enter__(self: _Consumer) -> _Consumer:
        try:
            self.start()
        except BaseException:  # Ctrl-C, perhaps when all was done: the block is not entered
            self.shutdown()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.shutdown()
        except BaseException:  # Ctrl-C, perhaps before anything was done
            self.shutdown()
            raise
