"""Disturbed responses of brokers: some arrive twice, some late and out of order, some wrong
(`lies`).

    broker ── AnswerLine ──> frames ──> Answers: as it is, wrong, once more, or later ──> client

Bytes of an incomplete frame wait for the rest. Requests of brokers to clients pass unchanged, and
so do requests of clients; a `RequestLine` notes which response belongs to which.
"""

from functools import partial

from world.cluster.lies import HONEST_HOST
from world.network import Line

from rmq_spark.wire.remoting.command import decode_command
from rmq_spark.wire.remoting.framing import FrameReader, encode_prefix

_TWICE_ODDS = 0.3
_LATE_ODDS = 0.3
_LATE_SECONDS = (0.05, 2.5)
_TWICE_MAX = 40
"""Maximum number of repeated responses on one connection: a client closes one with more unsolicited
responses."""


class Answers:
    """Decides what happens to each response of some hosts."""

    def __init__(self, kernel, dice, liar=None):
        self._kernel = kernel
        self._dice = dice
        self._liar = liar
        self._twice_until = {}
        self._late_until = {}

    def twice(self, host, seconds):
        """Repeat some responses of a host for a while."""
        self._twice_until[host] = self._kernel.now + seconds

    def overdue(self, host, seconds):
        """Delay some responses of a host for a while."""
        self._late_until[host] = self._kernel.now + seconds

    def lines(self, kernel, dice, weather, host, client_host):
        """Return the lines to a host and back, for a client at another host."""
        if self._liar is None or client_host == HONEST_HOST:
            there, changed = Line(kernel, dice, weather), None
        else:
            there = RequestLine(kernel, dice, weather)
            changed = partial(self._changed, host, there.asked)
        back = AnswerLine(kernel, dice, weather, partial(self._pass_on, host), changed)
        return there, back

    def _changed(self, host, asked, answer):
        request = asked.pop(answer.opaque, None)
        return answer if request is None else self._liar.changed(host, request, answer)

    def _pass_on(self, host, line, frame, is_answer):
        if not is_answer:
            line.pass_on(frame)
            return
        dice, now = self._dice, self._kernel.now
        is_late = self._late_until.get(host, 0.0) > now and dice.random() < _LATE_ODDS
        is_twice = self._twice_until.get(host, 0.0) > now and dice.random() < _TWICE_ODDS
        self._at(line, frame, dice.uniform(*_LATE_SECONDS) if is_late else 0.0)
        if is_twice and line.twice < _TWICE_MAX:
            line.twice += 1
            self._at(line, frame, dice.choice([0.0, 0.0, dice.uniform(*_LATE_SECONDS)]))

    def _at(self, line, frame, seconds):
        if seconds:
            self._kernel.after(seconds, partial(line.pass_on, frame))
        else:
            line.pass_on(frame)


class RequestLine(Line):
    """A line that records the passing requests."""

    def __init__(self, kernel, dice, weather):
        super().__init__(kernel, dice, weather)
        self._frame_reader = FrameReader()
        self.asked = {}
        """Requests without a response, by opaque."""

    def write(self, data):
        """Pass bytes unchanged; None is the end."""
        if data is not None:
            self._frame_reader.feed(bytes(data))
            while (frame := self._frame_reader.next_frame()) is not None:
                command = decode_command(frame)
                if not command.is_response and not command.is_one_way:
                    self.asked[command.opaque] = command
        super().write(data)


class AnswerLine(Line):
    """A line whose frames another object passes on."""

    def __init__(self, kernel, dice, weather, decide, changed=None):
        """``changed(answer)`` returns the answer that is passed on; None means the original."""
        super().__init__(kernel, dice, weather)
        self._frame_reader = FrameReader()
        self._decide = decide
        self._changed = changed
        self._is_at_end = False
        self.twice = 0

    def write(self, data):
        """Write bytes, and pass on complete frames; None is the end."""
        if data is None:
            self._is_at_end = True
            super().write(None)
            return
        self._frame_reader.feed(bytes(data))
        while (frame := self._frame_reader.next_frame()) is not None:
            head, body = bytes(frame.header), bytes(frame.body)
            whole = encode_prefix(frame.serialize_type, head, len(body)) + body
            answer = decode_command(frame)
            if answer.is_response and self._changed is not None:
                changed = self._changed(answer)
                whole = whole if changed is answer else changed.encode()
            self._decide(self, whole, answer.is_response)

    def pass_on(self, frame):
        if not self._is_at_end and not self._is_over:
            super().write(frame)
