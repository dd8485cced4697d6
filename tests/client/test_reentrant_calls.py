"""Client calls from within the client: in logging handlers, listeners, callbacks and signals.

Each call returns or raises one of the client's errors, and none blocks the client. The client logs
nothing while it holds a mutex: a handler that calls the client may need that mutex.
"""

import logging
import signal
import threading
import traceback
from collections import Counter
from contextlib import contextmanager, suppress

import pytest
from support.brokers.broker_kinds import wait_until

from rocketpoll import (
    Admin,
    ClientInstance,
    ConsumeFromWhere,
    EmbeddedBroker,
    LitePullConsumer,
    LitePullSettings,
    Message,
    Producer,
    PushConsumer,
    PushSettings,
)
from rocketpoll.errors import ClientError, RocketPollError

FIRST = {"consume_from_where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET}
PATIENCE_S = 60


class SendingHandler(logging.Handler):
    """Sends each log record with a producer of the client that logged it."""

    def __init__(self, producer):
        super().__init__(logging.DEBUG)
        self._producer, self._in = producer, threading.local()
        self.sent, self.failures = 0, []

    def emit(self, record):
        if getattr(self._in, "is_sending", False):
            return
        self._in.is_sending = True
        message = Message("logs", self.format(record).encode())
        try:
            self._producer.send_async(message, timeout_ms=2_000)
            self._producer.send(message, timeout_ms=2_000)
            self.sent += 1
        except ClientError:
            pass
        except BaseException:  # fails the test
            self.failures.append(traceback.format_exc())
        finally:
            self._in.is_sending = False


@contextmanager
def logged_to(handler):
    log = logging.getLogger("rmq_spark")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield handler
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def busy_hours(broker, instance):
    """Run every kind of member through an outage; return the bodies that each received."""
    got = {name: Counter() for name in ("concurrent", "orderly", "lite")}
    members = []
    for name, kind in (("concurrent", "listener"), ("orderly", "orderly_listener")):
        listen = lambda messages, _, name=name: got[name].update(each.body for each in messages)  # noqa: E731  # binds the loop variable
        settings = PushSettings(**FIRST, rebalance_interval_ms=1_000)
        members.append(PushConsumer(name, instance=instance, **{kind: listen}, settings=settings))
    members.append(LitePullConsumer("lite", instance=instance, settings=LitePullSettings(**FIRST)))
    with Producer("P", instance=instance) as producer:
        for member in members:
            member.subscribe("T")
            member.start()
        for part in range(2):
            for number in range(10):
                producer.send(Message("T", b"%d-%d" % (part, number)))
            if part == 0:
                with broker.away():
                    for _ in range(3):
                        with pytest.raises(ClientError):
                            producer.send(Message("T", b"lost"), timeout_ms=200)

        def all_are_there():
            got["lite"].update(each.body for each in members[-1].poll(100))
            wanted = {b"%d-%d" % (part, number) for part in range(2) for number in range(10)}
            return all(wanted <= found.keys() for found in got.values())

        wait_until("all messages", all_are_there, PATIENCE_S)
        for member in members:
            member.shutdown()


@pytest.mark.deep
def test_logging_handler_can_send_through_the_client_that_logs():
    with EmbeddedBroker() as broker:
        for topic in ("T", "logs"):
            broker.create_topic(topic, queues=2)
        with (
            ClientInstance(broker.address, heartbeat_interval_ms=1_000) as instance,
            Producer("logger", instance=instance) as producer,
            logged_to(SendingHandler(producer)) as handler,
        ):
            busy_hours(broker, instance)
    assert handler.failures == []
    assert handler.sent > 0


IN_TEST = "in_test = "
LASTING = (
    "self.consuming = ",
    "self.listener_lock = ",
    "self._running_lock = ",
    "self._write_lock = ",  # of connections that have ended when they log
)


class WatchedLock:
    """A lock that knows its owner."""

    held = threading.local()
    create = staticmethod(threading.Lock)

    def __init__(self):
        self._lock = self.create()
        self._made_at, _ = traceback.extract_stack(limit=2)
        is_ours = "/rmq_spark/client/" in self._made_at.filename or IN_TEST in self._made_at.line
        self.is_mutex = is_ours and not any(name in self._made_at.line for name in LASTING)
        """False for locks that are held long: while a listener works, or a client runs."""

    def acquire(self, *arguments, **keywords):
        is_taken = self._lock.acquire(*arguments, **keywords)
        if is_taken:
            self.all_held().append(self)
        return is_taken

    def release(self):
        if self in self.all_held():
            self.all_held().remove(self)
        self._lock.release()

    def locked(self):
        return self._lock.locked()

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()

    def _at_fork_reinit(self):
        self._lock = self.create()

    @classmethod
    def all_held(cls):
        if not hasattr(cls.held, "locks"):
            cls.held.locks = []
        return cls.held.locks

    def __str__(self):
        return f"{self._made_at.filename}:{self._made_at.lineno}"


class HeldLocks(logging.Handler):
    """Records log lines of threads that hold a mutex of the client."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.found, self.count = {}, 0

    def emit(self, record):
        self.count += 1
        for lock in WatchedLock.all_held():
            if lock.is_mutex:
                self.found[f"{record.pathname}:{record.lineno}"] = str(lock)


def test_client_never_logs_while_it_holds_a_mutex(monkeypatch):
    with EmbeddedBroker(own_process=True) as broker:
        broker.create_topic("T", queues=2)
        monkeypatch.setattr(threading, "Lock", WatchedLock)
        with (
            ClientInstance(broker.address, heartbeat_interval_ms=1_000) as instance,
            logged_to(HeldLocks()) as handler,
        ):
            in_test = threading.Lock()
            with in_test:  # for the handler
                logging.getLogger("rmq_spark").debug("held")
            assert handler.found.popitem()
            busy_hours(_Killed(broker), instance)
        monkeypatch.undo()
    assert handler.count > 10
    assert handler.found == {}


class _Killed:
    """A broker process that is killed and restarted."""

    def __init__(self, broker):
        self._broker = broker

    @contextmanager
    def away(self):
        self._broker.kill()
        yield
        self._broker.restart()


# ---- calls in listeners and callbacks


class Outcomes:
    """Outcomes of the calls made within the client."""

    def __init__(self):
        self.of, self.are_done = {}, threading.Event()

    def create(self, **calls):
        if self.are_done.is_set():
            return
        for name, call in calls.items():
            try:
                call()
            except RocketPollError as error:  # noqa: PERF203  # an allowed outcome
                self.of[name] = type(error).__name__
            except BaseException:  # fails the test
                self.of[name] = traceback.format_exc()
            else:
                self.of[name] = "done"
        self.are_done.set()


def calls_of(consumer, producer, admin):
    """Return calls of the client's whole interface; the last one ends the consumer."""
    message = Message("others", b"x")
    calls = {
        "send": lambda: producer.send(message),
        "send_async": lambda: producer.send_async(message),
        "send_one_way": lambda: producer.send_one_way(message),
        "send_batch": lambda: producer.send_batch([message]),
        "topics": admin.topics,
        "lag": lambda: admin.lag("G", "T"),
        "health": consumer.health,
        "assignment": consumer.assignment,
        "subscribe": lambda: consumer.subscribe("others"),
        "unsubscribe": lambda: consumer.unsubscribe("others"),
    }
    if isinstance(consumer, LitePullConsumer):
        own = consumer.assignment
        calls.update(
            commit=consumer.commit,
            pause=lambda: consumer.pause(own()),
            resume=lambda: consumer.resume(own()),
            seek=lambda: [consumer.seek_to_begin(queue) for queue in own()],
            poll=lambda: consumer.poll(0),
        )
    else:
        calls.update(suspend=consumer.suspend, resume=consumer.resume)
    return {**calls, "shutdown": consumer.shutdown}


def _listens(kind):
    def within(address, outcomes, made):
        def listen(*_):
            outcomes.create(**calls_of(consumer, *made))

        settings = PushSettings(**FIRST)
        consumer = PushConsumer("G", address, **{kind: listen}, settings=settings)
        consumer.subscribe("T")
        consumer.start()
        return consumer

    return within


def _queue_listener(address, outcomes, made):
    def listen(*_):
        outcomes.create(**calls_of(consumer, *made))

    consumer = LitePullConsumer("G", address, LitePullSettings(**FIRST), listen)
    consumer.subscribe("T")
    consumer.start()
    return consumer


def _lite(address):
    consumer = LitePullConsumer("G", address, LitePullSettings(**FIRST))
    consumer.subscribe("T")
    consumer.start()
    wait_until("its queue", consumer.assignment)
    return consumer


def _callback(address, outcomes, made):
    consumer = _lite(address)
    future = made[0].send_async(Message("T", b"x"))
    future.add_done_callback(lambda _: outcomes.create(**calls_of(consumer, *made)))
    return consumer


def _signal(address, outcomes, made):
    consumer = _lite(address)
    before = signal.signal(signal.SIGUSR1, lambda *_: outcomes.create(**calls_of(consumer, *made)))
    try:
        timer = threading.Timer(0.05, lambda: signal.pthread_kill(main, signal.SIGUSR1))
        main = threading.main_thread().ident
        timer.start()
        with suppress(ClientError):  # the handler shuts the consumer down
            while not outcomes.are_done.is_set():
                consumer.poll(1_000)
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    return consumer


def _logging(address, outcomes, made):
    consumer = _lite(address)

    class Calling(logging.Handler):
        def emit(self, _):
            outcomes.create(**calls_of(consumer, *made))

    with logged_to(Calling()):
        consumer.subscribe("T", "another || selection")
        logging.getLogger("rmq_spark.client").warning("something")
        assert outcomes.are_done.wait(PATIENCE_S)
    return consumer


PLACES = {
    "listener": _listens("listener"),
    "orderly listener": _listens("orderly_listener"),
    "queue listener": _queue_listener,
    "callback of a send": _callback,
    "signal handler": _signal,
    "logging handler": _logging,
}


@pytest.mark.parametrize("place", PLACES)
def test_reentrant_client_calls_end_wherever_they_are_made(place):
    with EmbeddedBroker() as broker:
        for topic in ("T", "others"):
            broker.create_topic(topic, queues=1)
        broker.send("T", "x")
        outcomes = Outcomes()
        with Producer("P", broker.address) as producer, Admin(broker.address) as admin:
            consumer = PLACES[place](broker.address, outcomes, (producer, admin))
            assert outcomes.are_done.wait(PATIENCE_S), outcomes.of
            consumer.shutdown()
            assert not consumer.is_running
            producer.send(Message("T", b"after"))
    assert not [each for each in outcomes.of.values() if each.startswith("Traceback")], outcomes.of
    assert outcomes.of["shutdown"] == "done"
