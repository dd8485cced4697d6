"""A client of a simulated world, which speaks the wire protocol and tracks its requests.

Each request gets a response or None, after a lost connection or a timeout. The ledger checks the
responses.
"""

from functools import partial

from world.network import End
from world.tasks import Promise

from rmq_spark.wire.remoting.command import decode_command
from rmq_spark.wire.remoting.framing import FrameReader

ANSWER_SECONDS = 5.0


class Connection(End):
    """One connection of a client to the broker."""

    def __init__(self, world, name, *, is_watched=True):
        """With ``is_watched``, an unsolicited or repeated response fails the story."""
        super().__init__()
        self._is_watched = is_watched
        self._world = world
        self._reader = FrameReader()
        self._waiting = {}
        self._late = set()  # requests that have timed out
        self._opaque = 0
        self._is_given_up = False
        self.name = name
        self.is_open = Promise()  # True, or False if the connection was refused
        self.is_gone = Promise()
        self.stops_reading = False
        self.notices = []

    @property
    def accepts(self):
        return not self.stops_reading

    def ask(self, request, seconds=ANSWER_SECONDS):
        """Send a request; return a promise of its response."""
        (answer,) = self.ask_all([request], seconds)
        return answer

    def ask_all(self, requests, seconds=ANSWER_SECONDS):
        """Send requests by one write, as a busy client does; return promises of their responses."""
        answers = [Promise() for _ in requests]
        if self.is_gone.is_kept:
            for answer in answers:
                answer.keep(None)
            return answers
        frames = []
        for request, answer in zip(requests, answers, strict=True):
            opaque = self._opaque = self._opaque + 1
            timer = self._world.kernel.after(seconds, partial(self._refuse_failed, opaque))
            self._waiting[opaque] = answer, timer
            frames.append(request._replace(opaque=opaque).encode())
        self.send(b"".join(frames))
        return answers

    def tell(self, request):
        """Send a one-way request."""
        self._opaque += 1
        self.send(request._replace(opaque=self._opaque, flag=request.flag | 2).encode())

    def leave(self):
        """Close it cleanly."""
        self.finish()
        self._gone()

    @property
    def is_heard(self):
        """Return whether both directions of the connection work."""
        return not self.is_over and not self._out.is_silent and not self._in.is_silent

    def give_up(self):
        """Break the connection, which is of no more use."""
        self._is_given_up = (
            self._out is None
        )  # sent after the last response: the broker will find the connection broken
        if not self._is_given_up:
            self.reset()
        self._gone()

    # ---- events of the network

    def connected(self):
        if self._is_given_up:
            self.is_over = False
            self.reset()
        else:
            self.is_open.keep(True)

    def received(self, data):
        self._reader.feed(data)
        while (frame := self._reader.next_frame()) is not None:
            command = decode_command(frame)
            if command.is_response:
                self._answered(command)
            else:
                self.notices.append(command)

    def ended(self):
        self.finish()
        self._gone()

    def broken(self):
        self._gone()

    # ---- implementation

    def _answered(self, command):
        waiting = self._waiting.pop(command.opaque, None)
        if waiting is None:
            if self._is_watched and command.opaque not in self._late:
                self._world.ledger.complain(
                    f"{self.name} got a second answer, or one it never asked for: {command}"
                )
            return
        answer, timer = waiting
        timer.cancel()
        answer.keep(command)

    def _refuse_failed(self, opaque):
        """Drop the request after its timeout; a late response is ignored."""
        answer, _ = self._waiting.pop(opaque)
        self._late.add(opaque)
        answer.keep(None)

    def _gone(self):
        self.is_over = True
        self.is_open.keep(False)
        self.is_gone.keep()
        waiting, self._waiting = self._waiting, {}
        for answer, timer in waiting.values():
            timer.cancel()
            answer.keep(None)


def topic_fields(topic, read_queues, write_queues):
    """Return the fields of an operator's request that creates a topic or changes its queues."""
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": read_queues,
        "writeQueueNums": write_queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }
