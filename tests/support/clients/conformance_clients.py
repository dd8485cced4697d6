"""Clients of the conformance suite for one cluster, closed at the end of their test.

They use public names only, and work with every kind of broker.
"""

import asyncio
import threading

from support.brokers.broker_kinds import wait_until
from support.brokers.clusters import FIRST

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.admin.lookups import ADMIN_TIMEOUT_MS
from rmq_spark.client.aio.admin import Admin as AioAdmin
from rmq_spark.client.aio.client import Client
from rmq_spark.client.aio.consumer import Consumer as AioConsumer
from rmq_spark.client.aio.producer import Producer as AioProducer
from rmq_spark.client.aio.transaction_producer import (
    TransactionProducer as AioTransactionProducer,
)
from rmq_spark.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_spark.client.consumer.push_consumer import PushConsumer
from rmq_spark.client.consumer.settings import LitePullSettings, PushSettings
from rmq_spark.client.message import Message, decode_messages
from rmq_spark.client.producer.prepared_message import SendRules
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.producer.transaction_producer import TransactionProducer
from rmq_spark.wire.codes import PullSysFlag
from rmq_spark.wire.headers.members import PullMessageRequestHeader

POLL_MS = 20_000
PULL_MESSAGES = 32


class Listener:
    """A listener that records its calls, and returns the configured result of each message."""

    def __init__(self, says=lambda _: None):
        self.messages, self._says, self._lock = [], says, threading.Lock()

    def __call__(self, messages, _):
        with self._lock:
            self.messages += messages
        return next(
            (said for message in messages if (said := self._says(message)) is not None), None
        )

    @property
    def bodies(self):
        with self._lock:
            return [message.body.decode() for message in self.messages]

    def wait_for(self, bodies):
        """Wait until each of these bodies was received; return all that were received."""
        expected = set(bodies)
        wait_until(f"calls with {sorted(expected)}", lambda: expected <= set(self.bodies))
        return self.bodies


class Clients:
    """Creates producers and consumers, and reads the resulting messages from the broker."""

    def __init__(self, cluster):
        self.cluster = cluster

    def producer(self, **settings):
        """Return a started producer."""
        group = f"{self.cluster.group()}-senders"
        rules = SendRules(group, **settings.pop("rules", {}))
        instance = self.cluster.instance(**settings.pop("instance", {}))
        producer = Producer(group, instance=instance, rules=rules, **settings)
        producer.start()
        return self.cluster.until_end(producer)

    def transaction_producer(self, check_listener, **settings):
        """Return a started producer for transactions."""
        group = settings.pop("group", f"{self.cluster.group()}-committers")
        instance = self.cluster.instance(**settings.pop("instance", {}))
        producer = TransactionProducer(
            group, instance=instance, check_listener=check_listener, **settings
        )
        producer.start()
        return self.cluster.until_end(producer)

    def in_transaction(self, producer, message, work, **settings):
        """Run a function in a transaction, in a ``with`` statement; return the transaction."""
        with producer.transaction(message, **settings) as begun:
            work(begun)
        return begun

    def lite(self, group=None, topic=None, *, selector="*", queues=(), **settings):
        """Return a LitePullConsumer that starts at the first message, with a subscription or
        assigned queues."""
        consumer = LitePullConsumer(
            group or self.cluster.group(),
            instance=self.cluster.instance(**settings.pop("instance", {})),
            settings=LitePullSettings(**{"consume_from_where": FIRST, **settings}),
        )
        if topic is not None:
            consumer.subscribe(topic, selector)
        else:
            consumer.assign(queues, selector)
        consumer.start()
        return self.cluster.until_end(consumer)

    def admin(self, **instance):
        instance = {"request_timeout_ms": ADMIN_TIMEOUT_MS, **instance}
        return Admin(instance=self.cluster.instance(**instance))

    def push(self, listener, group=None, topic=None, *, selector="*", orderly=False, **settings):
        """Return a push consumer that starts at the first message."""
        consumer = PushConsumer(
            group or self.cluster.group(),
            instance=self.cluster.instance(**settings.pop("instance", {})),
            **{"orderly_listener" if orderly else "listener": listener},
            settings=PushSettings(**{"consume_from_where": FIRST, **settings}),
        )
        consumer.subscribe(topic, selector)
        consumer.start()
        return self.cluster.until_end(consumer)

    def read(self, topic, count, queues=4):
        """Return the stored messages of a topic, by queue and offset."""
        __tracebackhide__ = True
        wait_until(f"{count} messages", lambda: sum(self._ends(topic, queues)) >= count)
        ends = self._ends(topic, queues)
        assert sum(ends) == count
        return [
            message
            for queue_id, end in enumerate(ends)
            for message in self._queue(topic, queue_id, end)
        ]

    def _ends(self, topic, queues):
        cluster = self.cluster
        return [
            cluster.api.max_offset(cluster.address, cluster.queue(topic, each))
            for each in range(queues)
        ]

    def _queue(self, topic, queue_id, end):
        at = 0
        while at < end:
            header = PullMessageRequestHeader(
                consumer_group="Readers",
                topic=topic,
                queue_id=queue_id,
                queue_offset=at,
                max_msg_nums=PULL_MESSAGES,
                sys_flag=PullSysFlag.SUBSCRIPTION.value,
                commit_offset=0,
                suspend_timeout_millis=0,
                sub_version=0,
                subscription="*",
                expression_type="TAG",
            )
            pulled = self.cluster.api.pull(self.cluster.address, header)
            yield from decode_messages(pulled.records, self.cluster.broker_name)
            at = pulled.next_begin_offset


class Driven:
    """Adapts an asyncio object for synchronous tests: coroutines are awaited, other calls run in
    the loop."""

    def __init__(self, loop, made):
        self._loop, self._made = loop, made

    def __getattr__(self, name):
        found = getattr(self._made, name)
        if not callable(found):
            return found

        async def call(*args, **kwargs):
            outcome = found(*args, **kwargs)
            return await outcome if asyncio.iscoroutine(outcome) else outcome

        return lambda *args, **kwargs: self.begin(call(*args, **kwargs)).result()

    def begin(self, coroutine):
        """Run a coroutine in the loop; return its future."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    @property
    def made(self):
        """Return the wrapped asyncio object."""
        return self._made

    def send_async(self, *args, **kwargs):
        """Send messages concurrently, with a task for each."""
        return self.begin(self._made.send(*args, **kwargs))

    def shutdown(self):
        """Close the object, under the method name of the threaded classes."""
        self.close()


class AioClients(Clients):
    """`Clients` for the asyncio client, in its own loop."""

    def __init__(self, cluster):
        super().__init__(cluster)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def close(self):
        """Stop the loop after its clients have ended."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _client(self, **settings):
        return Client(self.cluster.name_server, route_interval_ms=500, **settings)

    def _started(self, made):
        driven = Driven(self._loop, made)
        driven.start()
        return self.cluster.until_end(driven)

    def producer(self, **settings):
        """Return a started producer."""
        group = f"{self.cluster.group()}-senders"
        rules = SendRules(group, **settings.pop("rules", {}))
        client = self._client(**settings.pop("instance", {}))
        producer = self._started(AioProducer(group, client=client, rules=rules, **settings))
        producer.instance = client.instance()
        return producer

    def transaction_producer(self, check_listener, **settings):
        """Return a started producer for transactions."""
        group = settings.pop("group", f"{self.cluster.group()}-committers")
        client = self._client(**settings.pop("instance", {}))

        async def check(message):
            return check_listener(message)

        return self._started(
            AioTransactionProducer(group, client=client, check_listener=check, **settings)
        )

    def in_transaction(self, producer, message, work, **settings):
        """Run a function in a transaction, in ``async with``; return the transaction."""

        async def run():
            async with producer.made.transaction(message, **settings) as begun:
                work(begun)
            return begun

        return producer.begin(run()).result()

    def lite(self, group=None, topic=None, *, selector="*", queues=(), **settings):
        """Return a LitePullConsumer that starts at the first message, with a subscription or
        assigned queues."""
        consumer = AioConsumer(
            group or self.cluster.group(),
            client=self._client(**settings.pop("instance", {})),
            settings=LitePullSettings(**{"consume_from_where": FIRST, **settings}),
        )
        driven = Driven(self._loop, consumer)
        if topic is not None:
            driven.subscribe(topic, selector)
        else:
            driven.assign(queues, selector)
        return self._started(consumer)

    def admin(self, **instance):
        client = self._client(**{"request_timeout_ms": ADMIN_TIMEOUT_MS, **instance})
        return self._started(AioAdmin(client=client))


def numbers(count, start=0):
    """Return numbered bodies that sort in order."""
    return [f"{number:03}" for number in range(start, start + count)]


def messages(topic, bodies, **more):
    return [Message(topic, body.encode(), **more) for body in bodies]


def bodies_of(found):
    return [message.body.decode() for message in found]


def polled(consumer, count):
    """Poll until this number of bodies was received; fail if there are more."""
    __tracebackhide__ = True
    found = []
    while len(found) < count:
        got = consumer.poll(POLL_MS)
        assert got, f"only {bodies_of(found)} of {count}"
        found += got
    assert len(found) == count, bodies_of(found)
    return bodies_of(found)
