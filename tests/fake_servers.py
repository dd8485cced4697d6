"""Servers that are no brokers: plain sockets that say what a story has them say, nothing,
or half of it."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.command import decode_command
from rmq_spark.wire.framing import FrameReader


class Peer:
    """One client's connection, as the server holds it."""

    def __init__(self, sock):
        self.socket = sock
        self._frame_reader = FrameReader()

    def receive(self):
        """The next request; None at the end."""
        while (frame := self._frame_reader.next_frame()) is None:
            data = self.socket.recv(1 << 16)
            if not data:
                return None
            self._frame_reader.feed(data)
        return decode_command(frame)

    def send(self, data):
        self.socket.sendall(data if isinstance(data, bytes) else data.encode())

    def close(self):
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


class FakeServer:
    """Listens on a free port; `story` gets each client, in a thread of its own,
    and closes by returning.

    ``tls`` is a server's context: then clients have to speak that.
    """

    def __init__(self, story, tls=None):
        self._story = story
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.peers = []
        self._threads = []
        self.fault = None

    def __enter__(self):
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()
        return self

    def __exit__(self, *_):
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        for peer in self.peers:
            peer.close()
        for thread in self._threads:
            thread.join(10)
        if self.fault is not None:
            raise self.fault

    def _accept(self):
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            peer = Peer(sock)
            self.peers.append(peer)
            thread = threading.Thread(target=self._tell, args=(peer,))
            self._threads.append(thread)
            thread.start()

    def _tell(self, peer):
        try:
            if self._tls is not None:
                peer.socket = self._tls.wrap_socket(peer.socket, server_side=True)
            self._story(peer)
        except OSError:
            pass
        except BaseException as error:
            self.fault = error
        finally:
            peer.close()


def answering(answer_to):
    """A story that answers each request with what a function makes of it; None: no answer.

    Like RocketMQ's brokers it does not know our extensions, unless the function does.
    """

    def story(peer):
        while (request := peer.receive()) is not None:
            answer = answer_to(request)
            if answer is None and request.code == RequestCode.EXTENSIONS:
                answer = request.respond(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")
            if answer is not None:
                peer.send(answer)

    return story


def silent(peer):
    """A story that reads all and says nothing."""
    while peer.receive() is not None:
        pass


class BlackHole:
    """An address as of a host that has vanished: whoever connects to it hears nothing at all.

    As many connections wait to be accepted as may, and nobody accepts them.
    """

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._waiting = []

    def __enter__(self):
        with suppress(TimeoutError):
            while True:
                self._waiting.append(socket.create_connection(("127.0.0.1", self.port), 0.2))
        return self

    def __exit__(self, *_):
        for each in (*self._waiting, self._listener):
            each.close()
