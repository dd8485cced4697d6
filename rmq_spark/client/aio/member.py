"""Member: what asyncio producers, consumers and administrators have in common: their lives.

    made ──start──▶ running ──close──▶ over          each is made, started and closed in a thread
             └── cancelled ──▶ over, in the background

Each holds the threaded one that does the work; `threaded` makes a coroutine of one of its methods.
"""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import MethodType, TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from rmq_spark.client.aio.calls import Turns, ending, in_thread
from rmq_spark.client.aio.client import Client
from rmq_spark.client.aio.loop_bridge import LoopBridge
from rmq_spark.client.concurrency.fork_aware import ProcessBound
from rmq_spark.client.concurrency.locks import mutex
from rmq_spark.client.errors import ClientShutDown

_Arguments = ParamSpec("_Arguments")
_Member = TypeVar("_Member", bound="Member[Any]")
_Result = TypeVar("_Result")
_Threaded = TypeVar("_Threaded")


class Member(ProcessBound, ABC, Generic[_Threaded]):
    """One of the users of a `Client`: start it and close it, or use it in ``async with``.

    It is used in one event loop, the one of its client's first use; there it may be used by any
    number of tasks.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._turns = Turns()
        self._building = mutex()
        self._built: _Threaded | None = None
        self._is_running = False
        self._is_over = False
        self._closing: asyncio.Future[None] | None = None
        ProcessBound.__init__(self)

    # ---- life

    @property
    def is_running(self) -> bool:
        """True if it was started, and neither it nor its client has ended."""
        return self._is_running and not self._is_over and not self._client.instance().is_shut_down

    async def start(self) -> None:
        """Start; a start that is cancelled is undone in the background. Again has no effect.

        Raises:
            ClientShutDown: It was closed, or belongs to another event loop or process.
            MessageRejected: A number that it was made with, or its client, is out of range, or its
                client has another producer or consumer of its group.
            TypeError: Something that it was made with, or its client, has the wrong type.
            RouteNotFound: The name servers do not know a topic that a consumer has subscribed to.
            ClientError: A consumer's brokers cannot be reached, or refuse its subscriptions.
        """
        bridge = self._here()
        if self._is_running and not self._is_over:
            return  # nothing is awaited: who is cancelled here must not close what others use
        try:
            await self._turns.call(bridge, self._start_here)
        except asyncio.CancelledError:
            self._begin_to_close(bridge)
            raise

    async def close(self) -> None:
        """End within two seconds; a close that is cancelled goes on in the background.

        Closing again has no effect but to wait for the first.
        """
        bridge = self._here()
        if self._closing is None:
            self._begin_to_close(bridge)
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def __aenter__(self: _Member) -> _Member:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _begin_to_close(self, bridge: LoopBridge) -> None:
        self._is_over = True
        self._closed()
        self._closing = ending(bridge, self._end_here)  # ahead of calls that wait their turn

    def _closed(self) -> None:
        """Wake the coroutines that wait for what does not come any more."""

    def _start_here(self) -> None:
        threaded = self._threaded()
        if self._is_running:
            return
        self._client.enter(self, self._end_here)
        try:
            self._start(threaded)
        except BaseException:
            self._client.left(self)
            raise
        self._is_running = True
        if self._is_over:  # closed meanwhile, perhaps before there was anything to end
            self._end_here()
            raise self._shut_down()

    def _end_here(self) -> None:
        self._is_over = True
        if self._built is not None:
            self._end(self._built)
        self._client.left(self)

    def _threaded(self) -> _Threaded:
        """Return the threaded one, made with the first call: that may look up a host's name."""
        with self._building:
            if self._is_over:
                raise self._shut_down()
            if self._built is None:
                self._built = self._build()
            return self._built

    @abstractmethod
    def _build(self) -> _Threaded:
        """Make the threaded one; raise an error for arguments that cannot work."""

    @abstractmethod
    def _start(self, threaded: _Threaded) -> None:
        """Start the threaded one."""

    @abstractmethod
    def _end(self, threaded: _Threaded) -> None:
        """End the threaded one, whatever its state."""

    # ---- calls

    def _here(self) -> LoopBridge:
        return self._client.bridge(self)

    def _now(self) -> _Threaded:
        """Return the threaded one for a call that waits for nobody."""
        self._here()
        if self._built is None:
            raise ClientShutDown(f"{self} was not started yet")
        return self._built

    def _shut_down(self) -> ClientShutDown:
        return ClientShutDown(f"{self} was closed: make a new one")

    def _call(self, call: Callable[[_Threaded], _Result]) -> asyncio.Future[_Result]:
        """Have a blocking call made in a thread, beside others."""
        return in_thread(self._here(), lambda: call(self._threaded()))

    def _call_in_turn(self, call: Callable[[_Threaded], _Result]) -> asyncio.Future[_Result]:
        """Have a blocking call made in a thread, behind those before."""
        return self._turns.call(self._here(), lambda: call(self._threaded()))

    def _forked(self) -> None:
        """Take no lock of the parent's; the client refuses all calls."""
        self._building = mutex()


def threaded(
    method: Callable[Concatenate[_Threaded, _Arguments], _Result], *, in_turn: bool = False
) -> Callable[Concatenate[Any, _Arguments], Coroutine[Any, Any, _Result]]:
    """Return a method that awaits a blocking method of the threaded one, with its arguments.

    With ``in_turn`` the calls of a member are made one at a time. A call that is cancelled before
    it has begun is not made; one that has begun goes on, and its result is dropped.
    """

    @functools.wraps(method)
    async def call(
        self: Member[Any], /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        make = self._call_in_turn if in_turn else self._call
        future: asyncio.Future[_Result] = make(lambda one: method(one, *args, **kwargs))
        try:
            return await future
        except TypeError:
            from rmq_spark.client.arguments import check_call  # noqa: PLC0415  # for what failed

            check_call(MethodType(method, self), args, kwargs)
            raise

    return call
