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
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for _, *sockets in self._connections:
            for each in sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def forget(self):
        """Pass nothing on any more of the connections that there are."""
        for is_known, *_ in self._connections:
            is_known.clear()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
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

    def __enter__(self):
        self._stack = ExitStack()
        full = self._stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
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
