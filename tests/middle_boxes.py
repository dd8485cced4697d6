"""What may stand between a client and a broker, or in its place: a NAT that forgets,
a host that is down."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, suppress


class Nat:
    """Passes bytes on both ways, until it forgets its connections: then nothing passes any more."""

    def __init__(self, address):
        """Take where bytes go to."""
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
        """Pass nothing on any more of the connections that there are."""
        for is_known, *_ in self._connections:
            is_known.clear()

    def go_dark(self):
        """Be a host that is down until `come_back`: who is connected hears nothing, who connects
        gets no answer."""
        self.forget()
        self._stop_listening()
        self._hole = BlackHole(self._port).__enter__()

    def come_back(self):
        """Take connections again."""
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
    """The address of a host that is down: who connects gets no answer, not even a refusal."""

    def __init__(self, port=0):
        self._port = port

    def __enter__(self):
        self._stack = ExitStack()
        full = self._stack.enter_context(socket.socket())
        full.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        full.bind(("127.0.0.1", self._port))
        full.listen(0)
        self.address = f"127.0.0.1:{full.getsockname()[1]}"
        for _ in range(3):  # then there is no room for others to wait in
            waiting = self._stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(full.getsockname())
        return self

    def __exit__(self, *error):
        self._stack.__exit__(*error)
