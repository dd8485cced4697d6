"""The network of a simulated world: slow connections that deliver in pieces, break, or fall silent.

    client's End ── Line ──> broker's End          an End is what a socket is to its owner:
                 <── Line ──                       write, close, reset;
                                                   callbacks for data, the end, and room

A line carries bytes in order, late and cut into pieces as the dice decide. Its window is limited as
in TCP; what is written beyond it waits with the writer until the reader has taken some. What can
happen to a connection: `reset` (both ends are notified, bytes under way are lost), and
`fall_silent` (nothing arrives any more, and nobody is notified).

A client that connects to a port waits in its backlog until it is accepted. The port exists while
anybody has it open, also without a server: those who come wait. When the last one closes it, the
waiting clients are notified.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise

WINDOW_BYTES = 1 << 16
_PIECES_MAX = 4
_APART_SECONDS = 1e-7
"""Minimum seconds between two pieces, so that the dice do not reorder them."""


@dataclass(frozen=True)
class Weather:
    """Minimum and maximum delay of bytes, and how often they are split."""

    latency_seconds: float = 0.000_05
    jitter_seconds: float = 0.000_2
    cut_odds: float = 0.2


class Line:
    """One direction of a connection."""

    def __init__(self, kernel, dice, weather):
        self._kernel = kernel
        self._dice = dice
        self._weather = weather
        self._waiting = deque()
        self._arrived_count = deque()
        self._under_way = 0
        self._last_arrival = 0.0
        self.held_up_until = 0.0
        self._writer = self._reader = None
        self.waiting_bytes = 0
        self.is_silent = False
        self.leads_nowhere = False  # the other end knows nothing of this connection
        self._is_over = False

    def lead(self, writer, reader):
        """Connect one End to another."""
        self._writer, self._reader = writer, reader

    def seconds_late(self):
        """Draw the delay of bytes sent now."""
        return self._weather.latency_seconds + self._dice.random() * self._weather.jitter_seconds

    def write(self, data):
        """Send bytes, or queue them until there is room; None is the end."""
        self._waiting.append(None if data is None else bytes(data))
        self.waiting_bytes += len(data or b"")
        self._send_at_rate()

    def cut(self):
        """Deliver nothing more."""
        self._is_over = True
        self._waiting.clear()
        self._arrived_count.clear()
        self.waiting_bytes = 0

    def take(self):
        """Give the reader the arrived bytes, as long as it accepts data."""
        reader = self._reader
        while self._arrived_count and reader.accepts and not self._is_over:
            if self._arrived_count[0] is None:
                self._arrived_count.popleft()
                reader.ended()
                return
            pieces = []
            while self._arrived_count and self._arrived_count[0] is not None:
                pieces.append(self._arrived_count.popleft())
            data = b"".join(pieces)
            self._under_way -= len(data)
            reader.received(data)
            self._send_at_rate()

    def put_back(self, data):
        """Keep bytes for the reader's next read."""
        self._arrived_count.appendleft(data)
        self._under_way += len(data)

    def _send_at_rate(self):
        was_waiting = self.waiting_bytes
        while self._waiting and not self._is_over:
            data = self._waiting.popleft()
            room = WINDOW_BYTES - self._under_way
            if data is None:
                self._dispatch(None)
                continue
            if room <= 0:
                self._waiting.appendleft(data)
                break
            if len(data) > room:
                data, rest = data[:room], data[room:]
                self._waiting.appendleft(rest)
            self.waiting_bytes -= len(data)
            self._under_way += len(data)
            for piece in self._pieces(data):
                self._dispatch(piece)
        if self.waiting_bytes < was_waiting:
            self._writer.has_room()

    def _pieces(self, data):
        dice = self._dice
        if len(data) < 2 or dice.random() >= self._weather.cut_odds:
            return [data]
        cuts = sorted(
            {
                0,
                len(data),
                *(dice.randrange(1, len(data)) for _ in range(dice.randint(1, _PIECES_MAX))),
            }
        )
        return [data[start:end] for start, end in pairwise(cuts)]

    def _dispatch(self, piece):
        arrival = max(self._kernel.now, self.held_up_until) + self.seconds_late()
        self._last_arrival = max(arrival, self._last_arrival + _APART_SECONDS)
        self._kernel.at(self._last_arrival, partial(self._arrive, piece))

    def _arrive(self, piece):
        if self._is_over:
            return
        if self.leads_nowhere:
            self._kernel.after(self.seconds_late(), self._writer.break_off)
            return
        if self.is_silent:
            return
        self._arrived_count.append(piece)
        self.take()


class End:
    """One end of a connection, like a socket; its owner overrides the callbacks."""

    accepts = True
    """True while it accepts arrived data."""

    def __init__(self):
        self.is_over = False
        self.address = self.other_address = None
        self._out = self._in = self._other = self._kernel = None

    def join(self, kernel, other, out, incoming):
        """Set its outgoing and incoming lines."""
        self._kernel, self._other, self._out, self._in = kernel, other, out, incoming

    # ---- methods for its owner

    def send(self, data):
        """Send bytes in order."""
        if not self.is_over:
            self._out.write(data)

    @property
    def waiting_bytes(self):
        """Return the number of bytes that have not left yet."""
        return self._out.waiting_bytes

    def finish(self):
        """Send the end of the stream; the other end may keep sending."""
        if not self.is_over:
            self._out.write(None)

    def reset(self):
        """Break the connection: bytes on their way are lost, and the other end is notified."""
        if not self.is_over:
            self.is_over = True
            self._in.cut()
            self._out.cut()
            if not self._out.is_silent:
                self._kernel.after(self._out.seconds_late(), self._other.break_off)

    def break_off(self):
        """Called when the other end has broken the connection."""
        if not self.is_over:
            self.is_over = True
            self._in.cut()
            self._out.cut()
            self.broken()

    def take_on(self):
        """Process the bytes that have arrived meanwhile."""
        self._in.take()

    def forget(self):
        """Forget the connection, as a machine does after a power failure."""
        self._in.leads_nowhere = True

    def fall_silent(self, *, both=True):
        """Silently drop everything from here; with ``both``, also everything to here."""
        self._out.is_silent = True
        if both:
            self._in.is_silent = True

    def hold_up(self, until):
        """Delay everything sent in both directions from now on until that time or later."""
        self._out.held_up_until = self._in.held_up_until = until

    # ---- callbacks

    def received(self, data):
        """Called when bytes have arrived."""

    def ended(self):
        """Called at the end of the other side's stream."""

    def broken(self):
        """Called when the connection is broken."""

    def has_room(self):
        """Called when some waiting bytes have left."""

    def connected(self):
        """Called when both ends are connected."""


class Port:
    """A port where clients wait until they are accepted."""

    def __init__(self, kernel, address, late, join):
        self._kernel = kernel
        self.address = address
        self._late = late
        self._join = join
        self._waiting = deque()
        self._accept = None
        self._is_asked_again = False

    @property
    def is_waited_at(self):
        """Return whether a client waits to be accepted."""
        return bool(self._waiting)

    def serve(self, accept):
        """From now on pass each waiting client to ``accept(join)``, which returns None to leave it
        waiting."""
        self._accept = accept
        if accept is not None:
            self._go_on()

    def arrive(self, end):
        """Add a client."""
        self._waiting.append(end)
        self._go_on()

    def accepted(self):
        """Accept the first waiting client; return a function that joins its peer."""
        return partial(self._join, self._waiting.popleft())

    def close(self):
        """Close the port, which no process has open any more."""
        self._accept = None
        while self._waiting:
            self._kernel.after(self._late(), self._waiting.popleft().broken)

    def _go_on(self):
        while self._waiting and self._accept is not None and not self._is_asked_again:
            again_seconds = self._accept(partial(self._join, self._waiting[0]))
            if again_seconds is not None:
                self._is_asked_again = True
                self._kernel.after(again_seconds, self._ask_again)
                return
            self._waiting.popleft()

    def _ask_again(self):
        self._is_asked_again = False
        self._go_on()


class Network:
    """The ports, and the conditions of connections."""

    def __init__(self, kernel, dice, weather=None):
        self._kernel = kernel
        self._dice = dice
        self.weather = weather or Weather()
        self._listener_tasks = {}
        self._swallowed = {}
        self._without_power = []
        self._accepted = {}
        self._ports = count(40_000)
        self.lines = lambda kernel, dice, weather, _host, _client: (
            Line(kernel, dice, weather),
            Line(kernel, dice, weather),
        )
        """Creates the lines to a host and back, for a client at another host."""
        self.accept_errno = None
        """The errno of accept on all systems; None for success."""

    def open_port(self, address):
        """Open a port where clients wait; 0 means any free port."""
        host, port = address
        address = host, port or next(self._ports)
        if address in self._listener_tasks:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        port = self._listener_tasks[address] = Port(self._kernel, address, self._late, self._join)
        return port

    def listen(self, address, accept):
        """Pass each client of an address to ``accept(join)``; ``join(end)`` connects it. If
        ``accept`` returns seconds, it is called again after that time if the client still waits.
        Return the address."""
        port = self.open_port(address)
        port.serve(accept)
        return port.address

    def listen_no_more(self, address):
        port = self._listener_tasks.pop(address, None)
        if port is not None:
            port.close()

    def swallow(self, host):
        """Silently drop everything sent to a host, including connection attempts."""
        self._swallowed[host] = None

    def send_back(self, host):
        """Make the host reachable again."""
        self._swallowed.pop(host, None)

    def cut_all(self, host=None):
        """Break every connection, or those to one host."""
        for end in self._connected_to(host):
            del self._accepted[end]
            end.reset()
            end.broken()

    def silence(self, host):
        """Silently drop everything from and to a host."""
        self.swallow(host)
        for end in self._connected_to(host):
            end.fall_silent()

    def hold_up(self, host, seconds):
        """Delay everything from and to a host until the time is over."""
        for end in self._connected_to(host):
            end.hold_up(self._kernel.now + seconds)

    def _connected_to(self, host):
        self._accepted = {end: None for end in self._accepted if not end.is_over}
        return [end for end in self._accepted if host in (None, end.address[0])]

    def lose_power(self, end):
        """Silently remove the machine at this end."""
        end.fall_silent()
        self._without_power.append(end)

    def power_is_back(self):
        """Restart a machine without its connections: clients that keep writing get a reset."""
        for end in self._without_power:
            end.forget()
        self._without_power.clear()

    def connect(self, end, address, host="127.0.0.1"):
        """Connect an end to the listener at an address soon; if there is none, the end
        is notified."""
        end.other_address = address
        end.address = (host, next(self._ports))
        self._kernel.after(self._late(), partial(self._reach, end, address))

    def _reach(self, end, address):
        if address[0] in self._swallowed:
            return
        port = self._listener_tasks.get(address)
        if port is None:
            self._kernel.after(self._late(), end.broken)
        else:
            port.arrive(end)

    def _join(self, end, accepted):
        self._accepted[accepted] = None
        there, back = self.lines(
            self._kernel, self._dice, self.weather, end.other_address[0], end.address[0]
        )
        accepted.address, accepted.other_address = end.other_address, end.address
        there.lead(end, accepted)
        back.lead(accepted, end)
        end.join(self._kernel, accepted, there, back)
        accepted.join(self._kernel, end, back, there)
        self._kernel.after(self._late(), end.connected)

    def _late(self):
        return self.weather.latency_seconds + self._dice.random() * self.weather.jitter_seconds
