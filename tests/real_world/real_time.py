"""Real time and real sockets, as the clients of a simulated world know theirs.

RealTime   what `world.kernel` is to them: the time, what is to happen later, and `run`
Sockets    what `world.network` is to them: it connects an `End`, by TCP
"""

import asyncio
import time


class RealTime:
    """An event loop; `run` raises its errors."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._has_failed)
        self._failure = None
        self._running = None

    @property
    def now(self):
        return self.loop.time()

    def sleep(self, seconds):
        """Let time pass."""
        time.sleep(seconds)

    def after(self, seconds, call):
        """Call a function later; return a handle to cancel it."""
        return self.loop.call_later(seconds, call)

    def run(self, seconds, promise=None):
        """Run the loop for this time, or until a promise is resolved; return whether it was."""
        running = self._running = object()

        def end():
            if self._running is running:
                self.loop.stop()

        timer = self.loop.call_later(seconds, end)
        if promise is not None:
            promise.then(end)
        self.loop.run_forever()
        timer.cancel()
        self._running = None
        if self._failure is not None:
            raise self._failure
        return promise is not None and promise.is_kept

    def _has_failed(self, loop, context):
        self._failure = context.get("exception") or AssertionError(context["message"])
        loop.stop()

    def close(self):
        """Close everything, and leave pending promises unresolved."""
        self.loop.set_exception_handler(lambda loop, context: None)
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks))
        self.loop.run_until_complete(asyncio.sleep(0))  # closes the sockets that were cut
        self.loop.close()


class Sockets:
    """TCP connections on this machine."""

    def __init__(self, time):
        self._time = time
        self._wires = {}

    def connect(self, end, address):
        """Connect an end to an address, or report a broken connection."""
        wire = _Wire(end)
        end.join(self._time, wire, wire, wire)
        self._wires[wire] = self._time.loop.create_task(self._reach(wire, address))

    async def _reach(self, wire, address):
        try:
            await self._time.loop.create_connection(lambda: wire, *address)
        except OSError:
            wire.connection_lost(None)

    def close(self):
        for wire in self._wires:
            wire.cut()


class _Wire(asyncio.Protocol):
    """The two directions of an `End`, and its state at the peer."""

    is_silent = False
    leads_nowhere = False

    def __init__(self, end):
        self._end = end
        self._transport = None
        self._is_cut = False

    # ---- calls of the end

    def write(self, data):
        if data is None:
            self._transport.close()
        elif not self._transport.is_closing():
            self._transport.write(data)

    def cut(self):
        self._is_cut = True
        if self._transport is not None:
            self._transport.abort()

    def seconds_late(self):
        return 0.0

    def break_off(self):
        pass

    # ---- events of the socket

    def connection_made(self, transport):
        self._transport = transport
        if self._is_cut:
            transport.abort()
        else:
            self._end.connected()

    def data_received(self, data):
        if not self._end.is_over:
            self._end.received(data)

    def connection_lost(self, error):
        self._end.break_off()
