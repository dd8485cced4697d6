"""A client connection without a socket: it records the broker's frames and answers its requests."""

import itertools
from collections.abc import Generator

from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.codes import LanguageCode
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.message.hosts import parse_host
from rmq_spark.wire.remoting.command import CURRENT_VERSION, RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import FrameReader

_ports = itertools.count(40_000)


class FakeConnection:
    """A connection whose `answers` give the response by request code: a callable, or None for no
    response."""

    def __init__(
        self,
        client_id="client",
        *,
        remote=None,
        version=CURRENT_VERSION,
        language=LanguageCode.JAVA,
    ):
        self.client_id = client_id
        self.version = version
        self.language = language
        self.extensions = frozenset()
        self.identity = None
        self.remote_host = parse_host(remote or f"10.0.0.9:{next(_ports)}")
        self.local_host = parse_host("127.0.0.1:9876")
        self.is_closed = False
        self.is_congested = False
        self.response_bytes_max = 1 << 23
        self.sent = []
        self.asked = []
        self.answers = {}
        self.closed_because = None

    def send(self, command):
        if not self.is_closed:
            self.sent.append(command)

    def send_frame(self, head, body=()):
        """Decode a frame and record it."""
        reader = FrameReader()
        reader.feed(head + b"".join(body))
        self.send(decode_command(reader.next_frame()))

    def request(self, command, timeout_ms, callback):
        """Record a request; its response arrives when `acknowledge_all` is called, as if in another
        turn of the loop."""
        self.asked.append((command, timeout_ms, callback))

    def acknowledge_all(self):
        """Answer all requests; those without a response time out."""
        asked, self.asked = self.asked, []
        for command, _, then in asked:
            answer = self.answers.get(command.code)
            then(None if answer is None or self.is_closed else answer(command))

    def close(self, reason):
        self.is_closed = True
        self.closed_because = reason

    # ---- requests of the client

    def ask(self, code, header=None, body=None, *, one_way=False):
        """Send a request from this client."""
        ext_fields = {} if header is None else HEADERS[code].request.encode(header)
        return RemotingCommand(
            code,
            language=self.language,
            version=self.version,
            opaque=7,
            flag=2 if one_way else 0,
            ext_fields=ext_fields,
            body=b"" if body is None else body if isinstance(body, bytes) else encode_body(body),
        )

    def codes(self):
        """Return the codes of all frames sent to this client, in order."""
        return [command.code for command in self.sent]


def finished(result):
    """Return a handler's response; run its steps first if it returned a generator."""
    while isinstance(result, Generator):
        try:
            next(result)
        except StopIteration as end:  # noqa: PERF203  # ends the generator
            return end.value
    return result


def header_in(code, command):
    """Decode the header of a response to a request with this code."""
    return HEADERS[code].response.decode(command.ext_fields)


def body_in(body_type, command):
    """Decode the JSON body of a command."""
    return decode_body(body_type, command.body)
