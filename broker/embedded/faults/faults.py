"""BrokerFaults: faults that the owner of an embedded broker injects for the length of a block.

    away             its connections are cut and new ones refused, on a port that stays in use
    slow, cut_after  the network between it and its clients: see `network`
    full_disk        its disk has no room: see `embedded_disk`

Faults may be nested, and may overlap in threads. Each ends with its own block, even if that raises;
of two faults of a kind the worse applies. They persist across a restart of the broker.
"""

from __future__ import annotations

import asyncio
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from rmq_spark.errors import excerpt

from ...controller import BrokerController
from ..errors import EmbeddedBrokerError, type_error
from .clock import ClockOffset
from .embedded_disk import EmbeddedDisk
from .network import EmbeddedNetwork

_SLOW_SECONDS_MAX: Final = 3_600.0
_ATTEMPTS_MAX: Final = 50
_RETRY_SECONDS: Final = 0.01
_FAULTS_WITH_ARGUMENTS: Final = frozenset({"slow", "cut_after"})

BrokerOperation: TypeAlias = Callable[[BrokerController], Coroutine[Any, Any, None]]
"""A coroutine function that the broker's loop runs."""


@dataclass(frozen=True, eq=False)
class Fault:
    """One fault of a broker; ``name`` is the method that created it."""

    name: str
    is_away: bool = False
    is_full: bool = False
    slow_seconds: float = 0.0
    cut_after: int | None = None


class FaultBlock(AbstractContextManager[None]):
    """A context manager for a fault; it can be reused, and nested in itself."""

    def __init__(self, faults: BrokerFaults, fault: Fault) -> None:
        self._faults = faults
        self._fault = fault
        self._active: list[Fault] = []
        self._was_entered = False

    def __enter__(self) -> None:
        self._was_entered = True
        fault = replace(self._fault)
        self._faults.begin_fault(fault)
        self._active.append(fault)

    def __exit__(self, *_: object) -> None:
        if not self._active:
            raise EmbeddedBrokerError(f"the with block of {self._fault.name}() was not entered")
        self._faults.end_fault(self._active.pop())

    def __del__(self) -> None:
        if not self._was_entered:
            name = self._fault.name
            arguments = "..." if name in _FAULTS_WITH_ARGUMENTS else ""
            how = f"`with broker.{name}({arguments}):`"
            text = f"broker.{name}() alone does nothing: use it in a with statement, {how}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)


class BrokerFaults(ABC):
    """The faults of a broker that runs in a thread of this process."""

    def __init__(self) -> None:
        super().__init__()
        self._clock_offset = ClockOffset()
        self._disk = EmbeddedDisk(self._clock_offset)
        self._network = EmbeddedNetwork()
        self._faults: list[Fault] = []

    def away(self) -> FaultBlock:
        """Return a context in which the broker and its name server are unreachable.

        All connections are cut and new ones refused; afterwards the broker is back on the same
        port. It keeps running meanwhile, like a machine whose cable is pulled.

        Raises:
            EmbeddedBrokerError: The broker does not run, is paused, has a process of its own, or
                belongs to another process; or it cannot come back because the port is in use.
        """
        return FaultBlock(self, Fault("away", is_away=True))

    def slow(self, seconds: float) -> FaultBlock:
        """Return a context in which each response of the broker is delayed by ``seconds``.

        Raises:
            EmbeddedBrokerError: The broker does not run, is paused, has a process of its own, or
                belongs to another process.
            TypeError: ``seconds`` is not a number.
            ValueError: ``seconds`` is not from 0 to 3,600.
        """
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise type_error("seconds", "a number", seconds, "broker.slow(0.2)")
        if math.isnan(seconds) or not 0 <= seconds <= _SLOW_SECONDS_MAX:
            raise ValueError(f"seconds: needed 0 to 3,600, found {excerpt(seconds)}")
        return FaultBlock(self, Fault("slow", slow_seconds=seconds))

    def cut_after(self, count: int) -> FaultBlock:
        """Return a context in which each connection is cut after ``count`` bytes of responses.

        Each connection has its own count, which begins with the block, or with the connection if
        that is later; usually a response is cut in the middle.

        Raises:
            EmbeddedBrokerError: The broker does not run, is paused, has a process of its own, or
                belongs to another process.
            TypeError: ``count`` is not an integer.
            ValueError: ``count`` is less than 0.
        """
        if isinstance(count, bool) or not isinstance(count, int):
            raise type_error("count", "a whole number of bytes", count, "broker.cut_after(1_000)")
        if count < 0:
            raise ValueError(f"count: needed 0 bytes or more, found {excerpt(count)}")
        return FaultBlock(self, Fault("cut_after", cut_after=count))

    def full_disk(self) -> FaultBlock:
        """Return a context in which the broker's disk is full.

        Sends are refused as by every broker on a full disk, with SERVICE_NOT_AVAILABLE (14), and
        accepted again after the block. The oldest files of the log may be deleted, but never the
        last.

        Raises:
            EmbeddedBrokerError: The broker does not run, is paused, has a process of its own, or
                belongs to another process.
        """
        return FaultBlock(self, Fault("full_disk", is_full=True))

    @contextmanager
    def leaving_no_faults(self) -> Iterator[None]:
        """Return a context, for fixtures, that ends all faults that were started in it.

        Raises:
            EmbeddedBrokerError: A fault's own block was not left; the fault has been ended.
        """
        before = tuple(self._faults)
        try:
            yield
        finally:
            left = [fault for fault in self._faults if fault not in before]
            for fault in left:
                self.end_fault(fault)
        if left:
            names = ", ".join(f"broker.{fault.name}()" for fault in left)
            raise EmbeddedBrokerError(
                f"{names} was still active, and is ended now: use it in a with statement, "
                "which ends it in any case"
            )

    # ---- internals

    @abstractmethod
    def _begin_fault(
        self, name: str, record: Callable[[], None], operation: BrokerOperation
    ) -> None:
        """Record a fault and apply it; raise if this broker does not support it."""

    @abstractmethod
    def _end_fault(self, record: Callable[[], None], operation: BrokerOperation) -> None:
        """Record the end of a fault; apply it if the broker still runs in this process."""

    def begin_fault(self, fault: Fault) -> None:
        """Apply a fault until `end_fault`.

        Raises:
            TypeError: ``fault`` is not a `Fault`.
            EmbeddedBrokerError: The broker does not run here, or is a process of its own.
            NotInTime: The broker did not apply it within some seconds.
        """
        _check_fault(fault)
        try:
            self._begin_fault(fault.name, lambda: self._faults.append(fault), self._apply_faults)
        except BaseException:
            if fault in self._faults:
                self._faults.remove(fault)
            raise

    def end_fault(self, fault: Fault) -> None:
        """End a fault, unless it or the broker has ended already.

        Raises:
            TypeError: ``fault`` is not a `Fault`.
            NotInTime: The broker did not apply it within some seconds.
        """
        _check_fault(fault)
        if fault in self._faults:
            self._end_fault(lambda: self._faults.remove(fault), self._apply_faults)

    def _apply_to_network_and_disk(self) -> None:
        """Apply the sum of all faults to network and disk.

        A start does this as well: network and disk persist across restarts, and a stop may cancel
        the end of a fault that a pause has delayed.
        """
        faults = tuple(self._faults)
        self._network.set_slow(max((fault.slow_seconds for fault in faults), default=0.0))
        counts = [fault.cut_after for fault in faults if fault.cut_after is not None]
        self._network.set_cut_after(min(counts, default=None))
        self._disk.is_full = any(fault.is_full for fault in faults)

    async def _apply_faults(self, controller: BrokerController) -> None:
        faults, server = tuple(self._faults), controller.server
        was_full = self._disk.is_full
        self._apply_to_network_and_disk()
        is_full = self._disk.is_full
        if is_full or was_full:
            await controller.housekeeping.wait_idle()
            controller.housekeeping.clean()  # this checks the disk
            await controller.housekeeping.wait_idle()
            if not is_full:
                await _retry_after_full_disk(controller)
        is_away = any(fault.is_away for fault in faults)
        if is_away and not server.is_listening_suspended:
            server.suspend_listening()
        elif server.is_listening_suspended and not is_away:
            await server.resume_listening()


async def _retry_after_full_disk(controller: BrokerController) -> None:
    """Run everything that a full disk has delayed; one job may need the result of another."""
    for _ in range(_ATTEMPTS_MAX):
        controller.housekeeping.retry_now()
        await controller.housekeeping.wait_idle()
        if not (controller.store.is_opening or controller.store.is_reput_degraded):
            return
        await asyncio.sleep(_RETRY_SECONDS)


def _check_fault(fault: object) -> None:
    if not isinstance(fault, Fault):
        raise type_error("fault", "a Fault", fault, "with broker.away():")
