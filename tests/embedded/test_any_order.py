"""An embedded broker's methods in any order and nesting while a producer sends.

No call hangs or finds the broker's own port in use. No thread, task or listener outlives a restart,
and with SYNC_FLUSH every acknowledged message exists in the end.
"""

import asyncio
import gc
import shutil
import socket
import tempfile
import threading
from collections import Counter
from contextlib import suppress
from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.suite.selection import count

from rmq_spark.errors import RocketPollError
from rocketpoll import Message, Producer
from rocketpoll.broker.embedded import EmbeddedBroker, EmbeddedBrokerError
from rocketpoll.broker.testing import wait_until

SMALL = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": 1 << 18,
    "maxMessageSize": 1 << 16,
    "mappedFileSizeConsumeQueue": 2_000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2_000,
    "fileReservedTime": 100_000,
}
NAMES = ("EmbeddedBroker", "BrokerHousekeeping", "StagedBatches", "StoreHousekeeping")


class Sender:
    """A thread that sends, and records the acknowledged bodies."""

    def __init__(self, address):
        self.acknowledged = []
        self._address = address
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        number = 0
        with Producer("sender", self._address) as producer:
            while not self._is_over.wait(0.002):
                number += 1
                with suppress(RocketPollError):
                    result = producer.send(Message("T", b"%d" % number), timeout_ms=500)
                    if result.send_status.name == "SEND_OK":
                        self.acknowledged.append(b"%d" % number)

    def end(self):
        self._is_over.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.acknowledged


class EmbeddedMachine(RuleBasedStateMachine):
    """A broker, its open context managers, and whether it is paused or stopped."""

    @initialize()
    def start(self):
        self.other_threads = set(threading.enumerate())
        self.directory = tempfile.mkdtemp(prefix="any-order-")
        self.broker = EmbeddedBroker(self.directory, **SMALL).start()
        self.broker.create_topic("T", 1)
        self.port = self.broker.port
        self.blocks = []
        self.is_paused = False
        self.is_over = False
        self.sender = Sender(self.broker.address)

    def attempt(self, act, *, needs_work=True):
        """Run a step; a paused broker may refuse it."""
        try:
            act()
        except EmbeddedBrokerError as error:
            assert needs_work, error
            assert self.is_paused, error
            assert "this one is paused" in str(error)

    def enter(self, block):
        def act():
            block.__enter__()
            self.blocks.append(block)

        self.attempt(act)

    @precondition(lambda self: not self.is_over)
    @rule()
    def away(self):
        self.enter(self.broker.away())

    @precondition(lambda self: not self.is_over)
    @rule(seconds=st.sampled_from([0, 0.01, 30]))
    def slow(self, seconds):
        self.enter(self.broker.slow(seconds))

    @precondition(lambda self: not self.is_over)
    @rule(size=st.sampled_from([0, 1, 100, 5_000]))
    def cut_after(self, size):
        self.enter(self.broker.cut_after(size))

    @precondition(lambda self: not self.is_over)
    @rule()
    def full_disk(self):
        self.enter(self.broker.full_disk())

    @precondition(lambda self: self.blocks)
    @rule(which=st.integers(0, 9))
    def leave_a_block(self, which):
        self.blocks.pop(which % len(self.blocks)).__exit__(None, None, None)

    @precondition(lambda self: self.blocks and not self.is_paused and not self.is_over)
    @rule()
    def pause_and_leave_all_blocks(self):
        self.pause()
        while self.blocks:
            self.blocks.pop().__exit__(None, None, None)

    @precondition(lambda self: not self.is_over)
    @rule()
    def pause(self):
        self.broker.pause()
        self.is_paused = True

    @precondition(lambda self: not self.is_over)
    @rule()
    def resume(self):
        self.broker.resume()
        self.is_paused = False

    @precondition(lambda self: not self.is_over)
    @rule()
    def restart(self):
        self.attempt(self.broker.restart, needs_work=False)
        self.is_paused = False

    @precondition(lambda self: not self.is_over)
    @rule()
    def lose_power(self):
        self.attempt(self.broker.lose_power)

    @precondition(lambda self: not self.is_over)
    @rule(seconds=st.sampled_from([0.001, 1, 60, 7_200]))
    def advance(self, seconds):
        self.attempt(lambda: self.broker.clock.advance(timedelta(seconds=seconds)))

    @precondition(lambda self: not self.is_over)
    @rule()
    def dial_and_stay(self):
        sockets = getattr(self, "sockets", [])
        while len(sockets) > 5:
            sockets.pop(0).close()
        with suppress(OSError):
            self.sockets = [*sockets, self.dial()]

    def dial(self):
        return socket.create_connection(("127.0.0.1", self.port), 0.2)

    @rule()
    def stop(self):
        if len(self.blocks) > 2:  # more steps for each scenario
            self.broker.stop()
            self.is_over, self.is_paused = True, False

    @invariant()
    def it_has_the_state_that_it_should_have(self):
        # threads of an earlier broker may just be ending
        wait_until(self.has_threads_of_one_broker)
        if self.is_over:
            return
        assert self.broker.port == self.port
        assert len(self.broker._faults) == len(self.blocks)
        if not self.is_paused:
            is_away = any(fault.is_away for fault in self.broker._faults)
            self.attempt(lambda: self.broker._runner.run(_nothing, 30), needs_work=False)
            try:
                self.dial().close()
            except ConnectionRefusedError:
                assert is_away
            else:
                assert not is_away

    def own_threads(self):
        return [each for each in threading.enumerate() if each not in self.other_threads]

    def has_threads_of_one_broker(self):
        names = Counter(thread.name.partition("_")[0] for thread in self.own_threads())
        return names["EmbeddedBroker"] == (not self.is_over) and all(
            names[name] <= 2 for name in NAMES
        )

    def has_ended_its_threads(self):
        return not any(
            thread.name.startswith(NAMES) and not thread.name.startswith("StoreHouse")
            for thread in self.own_threads()
        )

    def teardown(self):
        if not hasattr(self, "broker"):
            return
        try:
            while self.blocks:
                self.blocks.pop().__exit__(None, None, None)
            if not self.is_over:
                self.broker.restart()
                stored = set(self.stored_by(self.broker))
            else:
                with EmbeddedBroker(self.directory, **SMALL) as again:
                    stored = set(self.stored_by(again))
            assert set(self.sender.acknowledged) <= stored
        finally:
            self.broker.stop()
            self.sender.end()
            for each in getattr(self, "sockets", []):
                each.close()
            shutil.rmtree(self.directory)
        wait_until(self.has_ended_its_threads)
        gc.collect()  # a task destroyed while pending fails here

    def stored_by(self, broker):
        self.sender.end()
        return [message.body for message in broker.messages("T")]


async def _nothing(_):
    await asyncio.sleep(0)


EmbeddedMachine.TestCase.settings = settings(
    max_examples=count("ROCKETPOLL_STORIES", 8, wide=300), stateful_step_count=20, deadline=None
)
TestEmbeddedMachine = EmbeddedMachine.TestCase
