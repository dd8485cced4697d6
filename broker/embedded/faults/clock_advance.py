"""Clock advance: moves a broker's time from stop to stop, and does all that is due in between.

    stops     each deadline that somebody waits for (`AdjustableTimeLoop`), so that what is due
              earlier is done earlier, at its own time; each full hour of the way, because files
              expire by the hour of the day; and the end
    a stop    timers that are due fire. It is over when nothing works any more: what was put is
              visible, all expired files are deleted, and what changed is saved

Nothing is read from clients during a move: what they send waits until its end. Clients use the
machine's time, and cannot send during the time that is skipped, so it does not count as silence:
their connections, group memberships and queue locks stay. What the broker has promised to hold for
a while, as pulls, expires.

The time moves only between two turns of the loop, only forward, and by no more than requested; the
machine's time goes on beside it. Users call `clock`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from ...controller import BrokerController
from ...store.errors import StoreError
from .embedded_loop import EmbeddedLoop

STOPS_MAX: Final = 5_000
"""The moments of one move at which it stops: beyond them, as on a disk that stays full for days,
it goes from hour to hour."""

_HOUR_SECONDS: Final = 3_600.0
_STEP_SECONDS_MIN: Final = 0.001
_ROUNDING_SECONDS: Final = 0.005
"""The wait at the end of a move for what is due so soon: delays are rounded up to milliseconds."""


async def advance(controller: BrokerController, loop: EmbeddedLoop, seconds: float) -> None:
    """Move the time of a broker forward on its loop, and return when what was due is done."""
    loop.network.pause_reading(is_paused=True)
    try:
        await wait_idle(controller, loop)
        await _advance_in_steps(controller, loop, seconds)
    finally:
        loop.network.pause_reading(is_paused=False)


async def _advance_in_steps(
    controller: BrokerController, loop: EmbeddedLoop, seconds: float
) -> None:
    left = seconds
    moments = 0
    while left > 0:
        step = min(left, _HOUR_SECONDS)
        moment = loop.next_deadline() if moments < STOPS_MAX else None
        if moment is not None and moment - loop.time() < step:
            moments += 1
            # Not beyond what is left, and not so short that it is lost in the grain of timers.
            step = min(max(moment - loop.time(), _STEP_SECONDS_MIN), left)
        left -= step
        loop.advance(step)
        controller.server.skip_time(step)
        controller.processors.skip_time(round(step * 1_000))
        await wait_idle(controller, loop)
    moment = loop.next_deadline()
    if moment is not None and moment - loop.time() < _ROUNDING_SECONDS:
        await asyncio.sleep(moment - loop.time())
        await wait_idle(controller, loop)


async def wait_idle(controller: BrokerController, loop: EmbeddedLoop) -> None:
    """Wait until all that is due now is done, as far as the disk permits."""
    begin = None
    while begin != controller.store.state().min_offset:
        if begin is not None:
            controller.housekeeping.clean()  # a few files go at a time: there may be more
        begin = controller.store.state().min_offset
        await _wait_quiet(controller, loop)


async def _wait_quiet(controller: BrokerController, loop: EmbeddedLoop) -> None:
    """Wait until nothing works, and no timer fires."""
    while not _is_quiet(controller, loop):
        await controller.housekeeping.wait_idle()
        written_offset = controller.store.state().written_offset
        if controller.store.confirm_offset() < written_offset:
            with suppress(StoreError):  # the store tells of it
                await asyncio.wrap_future(controller.store.flush_future(written_offset))
        await asyncio.sleep(0)


def _is_quiet(controller: BrokerController, loop: EmbeddedLoop) -> bool:
    state = controller.store.state()
    is_carried = state.reput_from_offset >= state.written_offset
    return (
        (is_carried or bool(state.failure or state.degradation))
        and not controller.processors.acknowledger.queue().size
        and controller.scheduler.is_idle
        and not controller.housekeeping.is_busy
        and not loop.has_due_timers()
    )
