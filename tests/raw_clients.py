"""Clients that speak bytes: what well-behaved ones never send."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import suppress

from rmq_spark.wire.command import RemotingCommand, decode_command
from rmq_spark.wire.framing import FrameReader


class RawClient:
    """A socket with a reader of frames. Every wait is bounded."""

    def __init__(self, reader, writer):
        self._reader = reader
        self._writer = writer
        self._frame_reader = FrameReader()

    @classmethod
    async def connect(cls, port, receive_buffer=None, address=None):
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if address is not None:
            sock.bind((address, 0))
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        return cls(*await asyncio.open_connection(sock=sock, limit=1 << 16))

    @property
    def address(self):
        return self._writer.get_extra_info("sockname")

    def send(self, data):
        self._writer.write(data if isinstance(data, bytes) else data.encode())

    def send_at_once(self, data):
        """Hand bytes to the system before this returns: they have arrived in the next turn."""
        data = data if isinstance(data, bytes) else data.encode()
        assert os.write(self._writer.get_extra_info("socket").fileno(), data) == len(data)

    async def receive(self, seconds=10):
        """The next command."""
        while (frame := self._frame_reader.next_frame()) is None:
            data = await asyncio.wait_for(self._reader.read(1 << 16), seconds)
            assert data, "the broker has closed the connection"
            self._frame_reader.feed(data)
        return decode_command(frame)

    async def ask(self, code, opaque=1, ext_fields=None, body=b""):
        self.send(RemotingCommand(code, opaque=opaque, ext_fields=ext_fields or {}, body=body))
        return await self.receive()

    async def closed(self, seconds=10):
        """Wait until the other side has closed; what it said before."""
        said = bytearray()
        while True:
            try:
                data = await asyncio.wait_for(self._reader.read(1 << 16), seconds)
            except ConnectionError:
                return bytes(said)
            if not data:
                return bytes(said)
            said += data

    def close(self):
        self._writer.close()

    def abort(self):
        self._writer.transport.abort()

    async def end(self):
        """Leave nothing open."""
        self.abort()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


class RawClients:
    """All clients of a story, to one port; none outlives it."""

    client_type = RawClient

    def __init__(self, port):
        self.port = port
        self._all = []

    async def connect(self, receive_buffer=None, address=None):
        self._all.append(await self.client_type.connect(self.port, receive_buffer, address))
        return self._all[-1]

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for client in self._all:
            await client.end()


async def until(condition, seconds=10):
    """Wait for what other parts of the same loop are about to do."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it has not come to that"
        await asyncio.sleep(0.001)
