"""A forked child silently closes the sockets that its parent has opened or is opening."""

import os
import socket
import threading
from contextlib import closing, suppress

import pytest

from rmq_spark.client.transport.sockets import SocketRegistry

PATIENCE_S = 10

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def listener():
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server


@pytest.fixture
def full_listener():
    """Return a listener with a full backlog, so that connecting clients wait."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=0)) as server:
        waiting = []
        for _ in range(4):
            sock = socket.socket()
            sock.setblocking(False)
            with suppress(BlockingIOError):
                sock.connect(server.getsockname())
            waiting.append(sock)
        yield server
        for sock in waiting:
            sock.close()


def is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def forked(action):
    child = os.fork()
    if child == 0:
        os._exit(0 if action() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_connected_socket_is_closed_in_a_forked_child_and_works_in_the_parent(listener):
    sockets = SocketRegistry()
    sock = sockets.connect(*listener.getsockname(), 5)
    descriptor = sock.fileno()
    peer, _ = listener.accept()
    with closing(sock), closing(peer):
        assert forked(lambda: not is_open(descriptor) and sock.fileno() == -1)
        sock.sendall(b"on")
        assert peer.recv(10) == b"on"


def test_closed_socket_does_not_keep_others_open_in_a_child(listener, monkeypatch):
    """gevent raises another error when it closes an invalid descriptor."""
    real = os.close

    def close(descriptor):
        if descriptor < 0:
            raise ValueError(descriptor)
        real(descriptor)

    monkeypatch.setattr(os, "close", close)
    sockets = SocketRegistry()
    address = listener.getsockname()
    known = [sockets.connect(*address, PATIENCE_S) for _ in range(20)]
    for sock in known[::2]:
        sock.close()
    left = [sock.fileno() for sock in known[1::2]]
    assert forked(lambda: not any(map(is_open, left)) and not sockets._sockets)
    for sock in known:
        sock.close()


def test_socket_being_connected_is_closed_in_a_child(full_listener):
    sockets = SocketRegistry()

    def dial():
        with suppress(OSError):
            sockets.connect(*full_listener.getsockname(), PATIENCE_S).close()

    thread = threading.Thread(target=dial)
    thread.start()
    while not sockets._sockets:
        assert thread.is_alive()
    (dialled,) = sockets._sockets
    descriptor = dialled.fileno()
    assert forked(lambda: not is_open(descriptor))
    assert is_open(descriptor)
    with suppress(OSError):
        dialled.shutdown(socket.SHUT_RDWR)  # otherwise it would keep trying
    del dialled
    thread.join(PATIENCE_S)


def test_connect_to_a_refusing_host_raises_connection_refused(listener):
    port = listener.getsockname()[1]
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        SocketRegistry().connect("127.0.0.1", port, 5)


def test_collected_sockets_are_forgotten(listener):
    sockets = SocketRegistry()
    sockets.connect(*listener.getsockname(), 5).close()
    assert not sockets._sockets
