"""Moves of a broker's time: from stop to stop, with all that is due done before the next.

    stops     each moment that somebody waits for (`MovableTime`), so that what is due earlier is
              done earlier, at its own time; each full hour of the way, as files go by the hour of
              the day; and the end
    a stop    what is due rings. It is over when nobody works any more: what was put is visible,
              files that have expired are gone, however many, and what changed is saved

Nothing is read from clients during a move: what they send waits till its end. Clients live by the
machine's time, and cannot speak in a time that is passed over: it counts as no
silence of theirs, so that their connections, their places in groups and their locks of queues
stay. What the broker has promised to hold for a while, as pulls, runs out.

The time moves between two turns of the loop and at no other moment, only forward, and by no more
than it was told to; the machine's time goes on beside. This knows a controller and its loop, and
no client: see `clock` for what users call.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from ...controller import BrokerController
from ...store.errors import StoreError
from .event_loop import EmbeddedLoop

MOMENTS_MAX: Final = 5_000
"""The moments of one move at which it stops: beyond them, as on a disk that stays full for days,
it goes from hour to hour."""

_HOUR_SECONDS: Final = 3_600.0
_GRAIN_SECONDS: Final = 0.001
_ROUNDED_SECONDS: Final = 0.005
"""The wait at the end of a move for what is due so soon: delays are rounded up to milliseconds."""


async def move(controller: BrokerController, loop: EmbeddedLoop, seconds: float) -> None:
    """Move the time of a broker forward on its loop, and return when what came due is done."""
    loop.network.hold(is_held=True)
    try:
        await settled(controller, loop)
        await _move(controller, loop, seconds)
    finally:
        loop.network.hold(is_held=False)


async def _move(controller: BrokerController, loop: EmbeddedLoop, seconds: float) -> None:
    left = seconds
    moments = 0
    while left > 0:
        step = min(left, _HOUR_SECONDS)
        moment = loop.next_moment() if moments < MOMENTS_MAX else None
        if moment is not None and moment - loop.time() < step:
            moments += 1
            # Not beyond what is left, and not so short that it is lost in the grain of timers.
            step = min(max(moment - loop.time(), _GRAIN_SECONDS), left)
        left -= step
        loop.move(step)
        controller.server.pass_over(step)
        controller.processors.pass_over(round(step * 1_000))
        await settled(controller, loop)
    moment = loop.next_moment()
    if moment is not None and moment - loop.time() < _ROUNDED_SECONDS:
        await asyncio.sleep(moment - loop.time())
        await settled(controller, loop)


async def settled(controller: BrokerController, loop: EmbeddedLoop) -> None:
    """Wait until all that is due now is done, as far as the disk lets it."""
    begin = None
    while begin != controller.store.state().min_offset:
        if begin is not None:
            controller.housekeeping.clean()  # a few files go at a time: there may be more
        begin = controller.store.state().min_offset
        await _quiet(controller, loop)


async def _quiet(controller: BrokerController, loop: EmbeddedLoop) -> None:
    """Wait until nobody works, and nothing rings."""
    while not _is_quiet(controller, loop):
        await controller.housekeeping.all_done()
        written_offset = controller.store.state().written_offset
        if controller.store.confirm_offset() < written_offset:
            with suppress(StoreError):  # the store tells of it
                await asyncio.wrap_future(controller.store.flushed(written_offset))
        await asyncio.sleep(0)


def _is_quiet(controller: BrokerController, loop: EmbeddedLoop) -> bool:
    state = controller.store.state()
    is_carried = state.reput_from_offset >= state.written_offset
    return (
        (is_carried or bool(state.failure or state.hindrance))
        and not controller.processors.acknowledger.queue().size
        and controller.turn.is_idle
        and not controller.housekeeping.is_at_work
        and not loop.rings()
    )
