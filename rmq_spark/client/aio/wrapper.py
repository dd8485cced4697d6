"""AsyncWrapper: the lifecycle that asyncio producers, consumers and admins share.

    made ──start──▶ running ──close──▶ closed        each is made, started and closed in a thread
             └── cancelled ──▶ closed, in the background

Each wraps a threaded object that does the work. `run_in_thread` turns one of its methods into a
coroutine method.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from rmq_spark.client.aio.client import Client
from rmq_spark.client.aio.loop_bridge import CallQueue, LoopBridge, call_in_thread, stop_in_thread
from rmq_spark.client.arguments import check_keywords
from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.errors import ClientShutDown

_Arguments = ParamSpec("_Arguments")
_Member = TypeVar("_Member", bound="AsyncWrapper[Any]")
_Result = TypeVar("_Result")
_Threaded = TypeVar("_Threaded")


class AsyncWrapper(ForkAware, Generic[_Threaded]):
    """A user of a `Client`: start it and close it, or use it in ``async with``.

    It belongs to the event loop in which its client was first used. Any number of tasks may use it
    there.
    """

    def __init__(
        self,
        client: Client,
        create: Callable[[], _Threaded],
        start: Callable[[_Threaded], object],
        stop: Callable[[_Threaded], object],
    ) -> None:
        # `create`, `start` and `stop` are for the threaded object; `stop` works in any state.
        self._client = client
        self._create = create
        self._start = start
        self._stop = stop
        self._call_queue = CallQueue()
        self._creation_lock = threading.Lock()
        self._wrapped: _Threaded | None = None
        self._is_running = False
        self._is_closing = False
        self._close_future: asyncio.Future[None] | None = None
        ForkAware.__init__(self)

    # ---- life cycle

    @property
    def is_running(self) -> bool:
        """True if the object was started, and neither it nor its client has stopped."""
        return (
            self._is_running and not self._is_closing and not self._client.instance().is_shut_down
        )

    async def start(self) -> None:
        """Start; a cancelled start is undone in the background. Starting again has no effect.

        Raises:
            ClientShutDown: It was closed, or belongs to another event loop or process.
            MessageRejected: An argument of this object or of its client is out of range, or the
                client has another producer or consumer of the group.
            TypeError: An argument of this object or of its client has the wrong type.
            RouteNotFound: The name servers do not know a topic that a consumer has subscribed to.
            ClientError: A consumer's brokers cannot be reached, or refuse its subscriptions.
        """
        bridge = self._get_bridge()
        if self._is_running and not self._is_closing:
            return  # without awaiting: a cancelled start would close what others use
        try:
            await self._call_queue.call(bridge, self._start_wrapped)
        except asyncio.CancelledError:
            self._start_close(bridge)
            raise

    async def close(self) -> None:
        """Stop within two seconds; a cancelled close continues in the background.

        Closing again only waits for the first close.
        """
        bridge = self._get_bridge()
        if self._close_future is None:
            self._start_close(bridge)
        if self._close_future is not None:
            await asyncio.shield(self._close_future)

    async def __aenter__(self: _Member) -> _Member:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _start_close(self, bridge: LoopBridge) -> None:
        self._is_closing = True
        self._on_close()
        self._close_future = stop_in_thread(bridge, self._stop_wrapped)  # not queued

    def _on_close(self) -> None:
        """Wake the coroutines that would otherwise wait forever."""

    def _start_wrapped(self) -> None:
        threaded = self._get_wrapped()
        if self._is_running:
            return
        self._client.register(self, self._stop_wrapped)
        try:
            self._start(threaded)
        except BaseException:
            self._client.unregister(self)
            raise
        self._is_running = True
        if self._is_closing:  # closed meanwhile, perhaps before there was anything to end
            self._stop_wrapped()
            raise self._closed_error()

    def _stop_wrapped(self) -> None:
        self._is_closing = True
        if self._wrapped is not None:
            self._stop(self._wrapped)
        self._client.unregister(self)

    def _get_wrapped(self) -> _Threaded:
        """Return the threaded object; the first call makes it, and may look up a host's name."""
        with self._creation_lock:
            if self._is_closing:
                raise self._closed_error()
            if self._wrapped is None:
                self._wrapped = self._create()
            return self._wrapped

    # ---- calls

    def _get_bridge(self) -> LoopBridge:
        return self._client.bridge(self)

    def _get_started(self) -> _Threaded:
        """Return the threaded object for a call that does not block."""
        self._get_bridge()
        if self._wrapped is None:
            raise ClientShutDown(
                f"{self} was not started yet. Await start(), or use it in an async with statement"
            )
        return self._wrapped

    def _closed_error(self) -> ClientShutDown:
        return ClientShutDown(f"{self} was closed. Make a new one")

    def _call(self, call: Callable[[_Threaded], _Result]) -> asyncio.Future[_Result]:
        """Make a blocking call in a thread, concurrently with others."""
        return call_in_thread(self._get_bridge(), lambda: call(self._get_wrapped()))

    def _call_in_turn(self, call: Callable[[_Threaded], _Result]) -> asyncio.Future[_Result]:
        """Make a blocking call in a thread, after the earlier ones."""
        return self._call_queue.call(self._get_bridge(), lambda: call(self._get_wrapped()))

    def _after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may hold; the client refuses all calls."""
        self._creation_lock = threading.Lock()


def run_in_thread(
    method: Callable[Concatenate[_Threaded, _Arguments], _Result], *, is_ordered: bool = False
) -> Callable[Concatenate[Any, _Arguments], Coroutine[Any, Any, _Result]]:
    """Return a coroutine method that runs a blocking method of the threaded object in a thread.

    With ``is_ordered`` the calls of a member are made one at a time. A call that is cancelled
    before it has begun is not made; one that has begun continues, and its result is dropped.
    """

    @functools.wraps(method)
    async def call(
        self: AsyncWrapper[Any], /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        make = self._call_in_turn if is_ordered else self._call
        future: asyncio.Future[_Result] = make(lambda one: method(one, *args, **kwargs))
        try:
            return await future
        except TypeError:
            check_keywords(f"{type(self).__name__}.{method.__name__}()", method, kwargs)
            raise

    return call
