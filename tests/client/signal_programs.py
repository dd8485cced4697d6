"""Programs that receive signals; `test_signals` runs each as a process.

    python signal_programs.py PROGRAM ADDRESS HANDLER

A program prints "ready" when it has reached the code to interrupt. With HANDLER "shuts-down" a
signal handler shuts down all clients, as services do, and ends the program;
with "raises" Ctrl-C raises KeyboardInterrupt, and a with statement shuts down.
"""

import os
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rmq_spark.wire.bodies.clients import ConsumeFromWhere
from rocketpoll import (
    LitePullConsumer,
    LitePullSettings,
    Message,
    Producer,
    PushConsumer,
    PushSettings,
)

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
NOTICED_SECONDS = 0.2
to_end = []


def end_all(number, _):
    for each in to_end:
        each.shutdown()
    say("ended")
    sys.exit(128 + number)


def say(word):
    os.write(1, word.encode() + b"\n")


def wait_for_ever():
    """Wait in short steps until a signal ends the program, because Python handles a signal that
    arrives just before a wait only after the wait."""
    never = threading.Event()
    while True:
        never.wait(NOTICED_SECONDS)


def producer(address):
    made = Producer("P", address)
    to_end.append(made)
    return made


def lite(address):
    made = LitePullConsumer("G", address, LitePullSettings(consume_from_where=FIRST))
    made.subscribe("T")
    to_end.append(made)
    return made


def push(address, listener, **kind):
    made = PushConsumer(
        "G", address, listener=listener, settings=PushSettings(consume_from_where=FIRST)
    )
    made.subscribe("T")
    to_end.append(made)
    return made


def starts(address):
    """Start with a name server that accepts connections, and never answers."""
    consumer = lite(address)
    threading.Timer(0.1, say, ["ready"]).start()
    with consumer:
        pass


def polls(address):
    with lite(address) as consumer:
        say("ready")
        while True:
            consumer.poll(60_000)


def sends(address):
    with producer(address) as sender:
        sender.send(Message("T", b"x"))
        say("ready")
        while True:
            sender.send(Message("T", b"x"))


def sends_by_futures(address):
    with producer(address) as sender:
        sender.send(Message("T", b"x"))
        say("ready")
        while True:
            futures = [sender.send_async(Message("T", b"x")) for _ in range(100)]
            for future in futures:
                future.result(30)


def is_called(address):
    """Block in a listener."""

    def listen(*_):
        say("ready")
        wait_for_ever()

    with producer(address) as sender:
        sender.send(Message("T", b"x"))
    with push(address, listen):
        wait_for_ever()


def shuts_down(address):
    """Shut down while a listener is busy."""
    at_it = threading.Event()

    def listen(*_):
        at_it.set()
        wait_for_ever()

    with producer(address) as sender:
        sender.send(Message("T", b"x"))
    with push(address, listen):
        at_it.wait(30)
        say("ready")


def has_a_callback(address):
    """Block in the callback of a send, in the producer's thread."""

    def called(_):
        say("ready")
        wait_for_ever()

    with producer(address) as sender:
        sender.send_async(Message("T", b"x")).add_done_callback(called)
        wait_for_ever()


def calls_back(address):
    """Block in a callback in the main thread, of a send that has already finished."""

    def called(_):
        say("ready")
        wait_for_ever()

    with producer(address) as sender:
        future = sender.send_async(Message("T", b"x"))
        future.result(30)
        future.add_done_callback(called)


def lives(address):
    """Start, use and shut down clients repeatedly, to be interrupted at any point."""
    say("ready")
    while True:
        to_end.clear()
        with producer(address) as sender, lite(address) as consumer, push(address, lambda *_: None):
            sender.send(Message("T", b"x"))
            sender.send_async(Message("T", b"x")).result(30)
            consumer.poll(10)


if __name__ == "__main__":
    program, name_server, handler = sys.argv[1:]
    if handler == "shuts-down":
        signal.signal(signal.SIGTERM, end_all)
        signal.signal(signal.SIGINT, end_all)
    else:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    globals()[program](name_server)
