"""Python's sockets on a simulated network, as programs see them, and their cleanup."""

from __future__ import annotations

import os
import random
import socket
import threading

import pytest
from world.identity import Identity
from world.kernel import Kernel
from world.machine import Process
from world.network import End, Network, Weather
from world.sockets import Sockets
from world.threads import Threads

PEER = ("127.0.1.1", 80)


class Listener:
    """Takes whoever connects."""

    def __init__(self, network):
        self.ends = []
        network.listen(PEER, self._accept)

    def _accept(self, connect):
        self.ends.append(End())
        connect(self.ends[-1])


def in_a_world(work, *, latency_seconds=0.01):
    """What a function gives that runs as main of a world; it is given the kernel and a listener."""
    kernel = Kernel(random.Random(1))
    network = Network(kernel, random.Random(1), Weather(latency_seconds=latency_seconds))
    with Threads(kernel), Sockets(kernel, network), Identity(kernel, random.Random(1)):
        try:
            return work(kernel, Listener(network))
        finally:
            kernel.close()


def in_a_process(kernel, work, host="127.0.2.7"):
    """Begin work in a thread of a process of its own; the process."""
    process = Process(kernel, "program", host)
    thread = threading.Thread(target=work)
    thread.belongs_to(process)
    thread.start()
    return process


def test_connection_established_after_the_timeout_is_closed_again():
    def work(kernel, listener):
        with pytest.raises(TimeoutError):
            socket.create_connection(PEER, 0.5)
        kernel.run(10)
        return [end.is_over for end in listener.ends]

    assert in_a_world(work, latency_seconds=1.0) == [True]


def test_process_killed_while_connecting_leaves_no_socket_open():
    def work(kernel, listener):
        process = in_a_process(kernel, lambda: socket.create_connection(PEER, 100))
        kernel.run(0.5)
        process.kill()
        kernel.run(10)
        return [end.is_over for end in listener.ends]

    assert in_a_world(work, latency_seconds=1.0) == [True]


def test_udp_probe_finds_the_own_address_and_sends_nothing():
    def work(kernel, listener):
        found = []

        def look():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect(PEER)
                found.append(probe.getsockname()[0])

        in_a_process(kernel, look)
        kernel.run(1)
        return found, listener.ends

    assert in_a_world(work) == (["127.0.2.7"], [])


def test_simulated_process_ids_and_randomness_depend_on_the_seed():
    def work(kernel, listener):
        found = []
        for _ in range(2):
            in_a_process(kernel, lambda: found.append((os.getpid(), os.urandom(4))))
            kernel.run(1)
        return found

    found = in_a_world(work)
    assert found == in_a_world(work)
    assert len({number for number, _ in found}) == len({chance for _, chance in found}) == 2


def test_killed_process_starts_no_thread():
    def work(kernel, listener):
        told = []

        def stubborn():
            try:
                kernel.sleep(10)
            finally:
                threading.Thread(target=lambda: told.append("begun")).start()

        process = in_a_process(kernel, stubborn)
        kernel.run(1)
        process.kill()
        kernel.run(1)
        return told

    assert in_a_world(work) == []
