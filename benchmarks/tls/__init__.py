"""Benchmark of the broker with TLS beside one without: processor time of the broker alone.

python -m benchmarks.tls [--rounds N] [--seconds S] [--only SUBSTRING] [--json PATH]

Two brokers, each a process of its own, are measured by turns; the clock is the processor time of
both, of which only one works. Clients are sockets of this process that send prepared frames, so
that their cost does not count.
"""

from __future__ import annotations

import socket
import ssl
import struct
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import PIPE
from types import TracebackType

from benchmarks.broker.process import Process
from benchmarks.harness import Case
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.wire.codes import PullSysFlag, RequestCode
from rmq_spark.wire.headers.members import PullMessageRequestHeader, SendMessageRequestHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll import Admin, TlsSettings
from rocketpoll.broker.embedded.throwaway_authority import ThrowawayAuthority

LIBRARIES = ("uvloop", "pyarrow")

_ROOT = Path(__file__).parents[2]
_LENGTH = struct.Struct(">i")
_PLAIN, _TLS = "without TLS", "TLS"
_AT_ONCE = 64
_PULLED = 32
_TABLE_MESSAGES = 16_000
_BODY = b"x" * 1_000


def _frame(code: RequestCode, header: object, body: bytes = b"") -> bytes:
    codec = HEADERS[code].request
    if codec is None:
        raise ValueError(f"{code.name} has no header")
    return RemotingCommand(code, ext_fields=codec.encode(header), body=body).encode()


def _send(body: bytes, topic: str) -> bytes:
    header = SendMessageRequestHeader("P", topic, "TBW102", 1, 0, 0, 1_600_000_000_000, 0, "")
    return _frame(RequestCode.SEND_MESSAGE_V2, header, body)


def _pull(topic: str) -> bytes:
    header = PullMessageRequestHeader(
        consumer_group="G",
        topic=topic,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=_PULLED,
        sys_flag=int(PullSysFlag.SUBSCRIPTION),
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
    )
    return _frame(RequestCode.PULL_MESSAGE, header)


class Side:
    """One broker with a connection to it."""

    def __init__(self, directory: Path, context: ssl.SSLContext | None, *settings: str) -> None:
        directory.mkdir()
        store = [f"storePathRootDir={directory / 'store'}", "flushDiskType=ASYNC_FLUSH"]
        limits = ["maxAcceptsPerSecond=100000", "vipChannelEnable=false", "listenPort=0"]
        command = [sys.executable, "-m", "rocketpoll.broker", *store, *limits, *settings]
        self.process = Process(command, directory / "log", _ROOT, stdout=PIPE, text=True)
        self.port = int(self.process.read_line().rpartition(":")[2])
        self._context = context
        self._session: ssl.SSLSession | None = None
        self._socket = self._connect()

    def _connect(self, session: ssl.SSLSession | None = None) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self.port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is None:
            return plain
        return self._context.wrap_socket(plain, server_hostname="localhost", session=session)

    def ask(self, frames: bytes, answers: int, connection: socket.socket | None = None) -> None:
        """Send frames at once, and read so many answers."""
        connection = connection or self._socket
        connection.sendall(frames)
        left = b""
        while answers:
            left += connection.recv(1 << 18)
            while len(left) >= 4 and len(left) >= (size := _LENGTH.unpack_from(left)[0] + 4):
                left = left[size:]
                answers -= 1

    def greet(self, frame: bytes, *, with_ticket: bool = False) -> None:
        """Connect, ask for one thing, and disconnect."""
        connection = self._connect(self._session if with_ticket else None)
        self.ask(frame, 1, connection)
        if isinstance(connection, ssl.SSLSocket):
            if with_ticket and self._session is not None and not connection.session_reused:
                raise RuntimeError("the ticket was not accepted")
            self._session = connection.session
        connection.close()

    def close(self) -> None:
        """Close the connection, and end the broker."""
        self._socket.close()
        self.process.stop()


class Sides:
    """Both brokers; use it in a with statement."""

    def __enter__(self) -> Sides:
        with ExitStack() as opened:
            self._directory = Path(opened.enter_context(tempfile.TemporaryDirectory()))
            authority = ThrowawayAuthority()
            certificate = self._directory / "server.pem"
            certificate.write_text(authority.issue_server(["localhost", "127.0.0.1"]))
            ca_file = self._directory / "ca.pem"
            ca_file.write_text(authority.certificate)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(ca_file)
            self.plain = Side(self._directory / "plain", None)
            opened.callback(self.plain.close)
            self.tls = Side(
                self._directory / "tls",
                context,
                f"tls.server.certPath={certificate}",
                "tls.server.mode=enforcing",
            )
            opened.callback(self.tls.close)
            self._admins = []
            for side, settings in (
                (self.plain, None),
                (self.tls, TlsSettings.of_files(ca_file=ca_file)),
            ):
                for _ in range(_TABLE_MESSAGES // _AT_ONCE):
                    side.ask(_send(_BODY, "large") * _AT_ONCE, _AT_ONCE)
                side.ask(_send(b"x" * 100, "small") * _PULLED, _PULLED)
                instance = ClientInstance(f"127.0.0.1:{side.port}", tls=settings)
                self._admins.append(opened.enter_context(Admin(instance=instance)))
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._opened.close()

    def clock(self) -> float:
        """Return the processor time of both brokers, in seconds."""
        return sum(_processor_seconds(side.process) for side in (self.plain, self.tls))

    def read_table(self, side: int) -> None:
        """Read the bodies of all large messages in chunks of 8 MB."""
        rows = self._admins[side].read_table("large", columns=["body"]).num_rows
        if rows != _TABLE_MESSAGES:
            raise RuntimeError(f"{rows} messages of {_TABLE_MESSAGES}")


def _processor_seconds(process: Process) -> float:
    """Return the processor time of all threads; the ticks of /proc/PID/stat are too coarse."""
    tasks = Path(f"/proc/{process.popen.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def tls_cases(sides: Sides) -> list[Case]:
    """Return the cases."""
    cases = []
    both = ((0, _PLAIN, sides.plain), (1, _TLS, sides.tls))
    small, kilobyte = _send(b"x" * 100, "sent"), _send(_BODY, "sent")
    for number, variant, side in both:
        peer = _PLAIN if number else None
        for subject, frame in (("100 B", small), ("1 KB", kilobyte)):
            cases += [
                Case(f"send of {subject}, one at a time", variant, partial(side.ask, frame, 1), 1),
                Case(
                    f"send of {subject}, {_AT_ONCE} at a time",
                    variant,
                    partial(side.ask, frame * _AT_ONCE, _AT_ONCE),
                    _AT_ONCE,
                ),
            ]
        cases += [
            Case("pull of 32 x 100 B", variant, partial(side.ask, _pull("small"), 1), 1, "pull"),
            Case("pull of 32 x 1 KB", variant, partial(side.ask, _pull("large"), 1), 1, "pull"),
            Case(
                "read in chunks of 8 MB, 1 KB",
                variant,
                partial(sides.read_table, number),
                _TABLE_MESSAGES,
                bytes_per_unit=len(_BODY),
            ),
            Case("connection with a pull", variant, partial(side.greet, _pull("small")), 1, "conn"),
        ]
        if peer is not None:
            ticket = partial(side.greet, _pull("small"), with_ticket=True)
            cases.append(Case("connection with a pull", "TLS with a ticket", ticket, 1, "conn"))
    return [_beside_plain(case) for case in cases]


def _beside_plain(case: Case) -> Case:
    return case if case.variant == _PLAIN else replace(case, peer=_PLAIN)
