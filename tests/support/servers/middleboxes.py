"""Network equipment between a client and a broker: a NAT that drops connections, and hosts that are
down."""

import socket
import threading
from contextlib import ExitStack, suppress


class Nat:
    """Forwards bytes both ways, until `forget`: then it drops everything on its connections."""

    def __init__(self, address):
        """Forward to this address."""
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._connections = []
        self.count = 0

    def __enter__(self):
        self._port = 0
        self._listen()
        self.address = f"127.0.0.1:{self._port}"
        return self

    def __exit__(self, *_):
        self._stop_listening()
        for _, *sockets in self._connections:
            for each in sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def forget(self):
        """Drop everything on the existing connections."""
        for is_known, *_ in self._connections:
            is_known.clear()

    def go_dark(self):
        """Act as a host that is down, until `resume_listening`: connections are silent, and
        connection attempts get no answer."""
        self.forget()
        self._stop_listening()
        self._hole = BlackHole(self._port).__enter__()

    def resume_listening(self):
        """Accept connections again."""
        self._hole.__exit__(None, None, None)
        self._listen()

    def _listen(self):
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _stop_listening(self):
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self, listener):
        while True:
            try:
                client, _ = listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            self.count += 1
            is_known = threading.Event()
            is_known.set()
            self._connections.append((is_known, client, server))
            for source, target in ((client, server), (server, client)):
                threading.Thread(
                    target=_pass_on, args=(source, target, is_known), daemon=True
                ).start()


def _pass_on(source, target, is_known):
    with suppress(OSError):
        while data := source.recv(1 << 16):
            if is_known.is_set():
                target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)


class BlackHole:
    """The address of a host that is down: connection attempts get no answer, not even a refusal."""

    def __init__(self, port=0):
        self._port = port

    def __enter__(self):
        self._stack = ExitStack()
        full = self._stack.enter_context(socket.socket())
        full.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        full.bind(("127.0.0.1", self._port))
        full.listen(0)
        self.address = f"127.0.0.1:{full.getsockname()[1]}"
        for _ in range(3):  # fills the backlog
            waiting = self._stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(full.getsockname())
        return self

    def __exit__(self, *error):
        self._stack.__exit__(*error)


class Host:
    """Forwards bytes both ways, until `vanish`; its address stays the same.

    After `vanish`, connections are silent but not closed, and connection attempts get no answer.
    After its return, the host knows none of the earlier connections.
    """

    def __init__(self, address):
        """Forward to this address."""
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._is_there = threading.Event()
        self._is_there.set()
        self._sockets, self._waiting = [], []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def vanish(self):
        """Drop everything, and accept no connections."""
        self._is_there.clear()
        with suppress(TimeoutError):
            while True:  # until the backlog is full
                self._waiting.append(socket.create_connection(self._listener.getsockname(), 0.2))

    def resume_listening(self):
        """Accept connections again."""
        _end(self._sockets)
        _end(self._waiting)
        self._is_there.set()

    def close(self):
        """Close all connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._is_there.set()
        self._accepting.join(10)
        _end(self._sockets)
        _end(self._waiting)

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._is_there.wait()
                self._sockets.append(client)
                try:
                    server = socket.create_connection(self._target)
                except OSError:  # nothing listens there: the client gets the refusal
                    client.close()
                    continue
                self._sockets.append(server)
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source, target):
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._is_there.wait()
                target.sendall(data)
        self._is_there.wait()
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


def _end(sockets):
    while sockets:
        each = sockets.pop()
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
