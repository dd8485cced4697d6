"""The cast: public objects in drawn states, and what a process may do with each.

    made ──▶ starting ──▶ running ──▶ ending ──▶ ended

Each step is noted with the state in which the object was and with what came of it. What must come
of it is the model's: `judge`.
"""

import os
import time
from collections import Counter

from support.clients.fake_members import implementation_of

from rmq_spark.client.message import decode_messages
from rmq_spark.client.reading.bulk_pull import BulkPull, PullRules
from rmq_spark.wire.bodies.clients import ConsumeFromWhere, MessageModel
from rocketpoll import (
    Admin,
    ClientError,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    LitePullConsumer,
    LitePullSettings,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    PushSettings,
)

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
BROKER_NAME = "broker-a"
QUEUES = 4
MESSAGES = 40
"""Number of messages in the topic before any consumer starts: ten in each queue."""

SEND_MS = 10_000


class Role:
    """An object, its state as this process knows it, and the steps that may be tried."""

    kind = ""

    def __init__(self, story, name, instance):
        self.story = story
        self.name = name
        self.state = "made"
        self.belongs_to_parent = False
        self.object = self.create(instance)

    def steps(self):
        raise NotImplementedError

    def run(self, step):
        """Run a step, and record its outcome."""
        state, began, process = self.state, time.monotonic(), os.getpid()
        says, is_of_client, value = "ok", True, None
        try:
            value = self.steps()[step]()
        except (ClientError, ValueError, TypeError) as error:
            says, is_of_client = f"{type(error).__name__}: {error}", isinstance(error, ClientError)
        except Exception as error:
            says, is_of_client = f"{type(error).__name__}: {error}", False
        self.story.notes.note(
            "step",
            role=self.name,
            kind=self.kind,
            state=state,
            foreign=self.belongs_to_parent,
            across=process != os.getpid(),  # a signal handler has forked during the step
            step=step,
            says=says,
            of_client=is_of_client,
            value=value,
            seconds=round(time.monotonic() - began, 3),
        )
        return says == "ok"

    def forked(self):
        """Update the state in a child, which has inherited the object."""
        self.belongs_to_parent = True
        if self.state in ("starting", "ending"):
            self.state = f"was {self.state}"

    def start(self):
        self.object.start()
        self.state, self.belongs_to_parent = "running", False
        self.note_client()

    def shutdown(self):
        self.object.shutdown()
        if self.state != "made":
            self.state = "ended"

    def note_client(self):
        instance = self.instance()
        self.story.notes.note("client", role=self.name, id=instance.client_id)

    def instance(self):
        return self.object.instance


class ProducerRole(Role):
    kind = "producer"

    def create(self, instance):
        group = f"P-{self.name}"
        return Producer(group, **_instance_or_address(instance), send_timeout_ms=SEND_MS)

    def steps(self):
        return {
            "start": self.start,
            "send": lambda: self.send(self.object.send),
            "send to a queue": lambda: self.send(
                lambda message: self.object.send(message, self.story.queue(1))
            ),
            "send_async": lambda: self.send(
                lambda message: self.object.send_async(message).result(SEND_MS / 1000)
            ),
            "send_batch": self.send_batch,
            "send_one_way": self.send_one_way,
            "publish_queues": lambda: len(self.object.publish_queues(self.story.topic)),
            "health": lambda: self.object.health().is_running,
            "is_running": lambda: self.object.is_running,
            "shutdown": self.shutdown,
        }

    def send(self, how):
        body, process = self.story.new_body(), os.getpid()
        self.story.notes.note("tries", body=body)
        result = how(Message(self.story.topic, body.encode()))
        if os.getpid() != process:
            self.story.notes.note("sent on", body=body)
        self._sent(body, result)

    def _sent(self, body, result):
        self.state = "running"
        self.story.notes.note(
            "sent",
            body=body,
            queue=result.queue.queue_id,
            offset=result.queue_offset,
            id=result.message_id,
        )

    def send_batch(self):
        bodies = [self.story.new_body() for _ in range(3)]
        for body in bodies:
            self.story.notes.note("tries", body=body)
        process = os.getpid()
        results = self.object.send_batch([Message(self.story.topic, b.encode()) for b in bodies])
        for body in bodies if os.getpid() != process else ():
            self.story.notes.note("sent on", body=body)
        self.state = "running"
        (result,) = results
        for number, body in enumerate(bodies):
            self.story.notes.note(
                "sent",
                body=body,
                queue=result.queue.queue_id,
                offset=result.queue_offset + number,
                id=None,
            )

    def send_one_way(self):
        body, process = self.story.new_body(), os.getpid()
        self.story.notes.note("tries", body=body)
        self.object.send_one_way(Message(self.story.topic, body.encode()))
        if os.getpid() != process:
            self.story.notes.note("sent on", body=body)
        self.state = "running"


class ConsumerRole(Role):
    def group_name(self):
        return f"{self.kind}-{self.name}-{self.story.tale}"

    def instance(self):
        return implementation_of(self.object)._instance

    def start(self):
        if not self.object.topics:
            self.object.subscribe(self.story.topic)
        super().start()
        self.story.notes.note("member", group=self.group_name(), id=self.instance().client_id)


class LiteRole(ConsumerRole):
    kind = "lite"

    def create(self, instance):
        return LitePullConsumer(
            self.group_name(),
            **_instance_or_address(instance),
            settings=LitePullSettings(consume_from_where=FIRST, broker_suspend_max_time_ms=2_000),
            message_queue_listener=lambda *_: self.story.at("rebalance"),
        )

    def steps(self):
        return {
            "start": self.start,
            "subscribe": lambda: self.object.subscribe(self.story.topic),
            "poll": self.poll,
            "commit": self.object.commit,
            "seek": lambda: self.object.seek_to_begin(self.story.queue(0)),
            "pause": lambda: self.object.pause([self.story.queue(0)]),
            "resume": lambda: self.object.resume([self.story.queue(0)]),
            "committed": lambda: self.object.committed(self.story.queue(0)),
            "watch queues": lambda: self.object.register_topic_message_queue_change_listener(
                self.story.topic, lambda *_: None
            ),
            "fetch queues": lambda: len(self.object.fetch_message_queues(self.story.topic)),
            "assignment": lambda: len(self.object.assignment()),
            "health": lambda: self.object.health().is_running,
            "is_running": lambda: self.object.is_running,
            "shutdown": self.shutdown,
        }

    def poll(self):
        began = time.monotonic()
        messages = self.object.poll(300)
        for message in messages:
            self.story.processed(self, message, began)
        return len(messages)


class PushRole(ConsumerRole):
    settings = PushSettings(consume_from_where=FIRST, broker_suspend_max_time_ms=2_000)

    def create(self, instance):
        given = {self.listens: self.listen}
        return PushConsumer(
            self.group_name(),
            **_instance_or_address(instance),
            settings=self.settings_now(),
            **given,
        )

    def settings_now(self):
        return self.settings

    def listen(self, messages, _context):
        began, process = time.monotonic(), os.getpid()
        self.story.at("listener")
        if os.getpid() != process:  # the parent's call
            return self.success
        for message in messages:
            self.story.processed(self, message, began)
        return self.success

    def steps(self):
        return {
            "start": self.start,
            "subscribe": lambda: self.object.subscribe(self.story.topic),
            "listen": lambda: time.sleep(0.4),
            "suspend": self.object.suspend,
            "resume": self.object.resume,
            "assignment": lambda: len(self.object.assignment()),
            "health": lambda: self.object.health().is_running,
            "is_running": lambda: self.object.is_running,
            "shutdown": self.shutdown,
        }


class ConcurrentRole(PushRole):
    kind = "concurrent"
    listens = "listener"
    success = ConsumeConcurrentlyStatus.CONSUME_SUCCESS


class OrderlyRole(PushRole):
    kind = "orderly"
    listens = "orderly_listener"
    success = ConsumeOrderlyStatus.SUCCESS


class BroadcastRole(PushRole):
    kind = "broadcast"
    listens = "listener"
    success = ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def settings_now(self):
        return PushSettings(
            consume_from_where=FIRST,
            broker_suspend_max_time_ms=2_000,
            message_model=MessageModel.BROADCASTING,
            local_offset_directory=self.story.directory / "offsets",
        )


class AdminRole(Role):
    kind = "admin"

    def create(self, instance):
        return Admin(**_instance_or_address(instance))

    def steps(self):
        return {
            "start": self.start,
            "topics": lambda: self.story.topic in self.object.topics(),
            "groups": lambda: isinstance(self.object.groups(), frozenset) or None,
            "offsets": lambda: len(self.object.topic_offsets(self.story.topic)),
            "is there": lambda: True,
        }

    def start(self):
        self.object.__enter__()
        self.state = "running"

    def shutdown(self):
        if self.state == "running":
            self.object.__exit__(None, None, None)
            self.state = "ended"


class BulkRole(Role):
    """A bulk pull that is half done; every process that has it reads the rest."""

    kind = "bulk"

    def create(self, instance):
        self._seen = Counter()
        rules = PullRules(chunk_bytes=200)
        queue = self.story.queue(0)
        end = MESSAGES // QUEUES
        address = self.story.broker
        return iter(BulkPull(instance.api, address, "Bulk", queue, 0, end, rules))

    def start(self):
        self._take(next(self.object))
        self.state = "running"

    def shutdown(self):
        self.state = "ended"

    def _take(self, chunk):
        for message in decode_messages(chunk.records, BROKER_NAME):
            self._seen[message.queue_offset] += 1

    def rest(self):
        for chunk in self.object:
            self._take(chunk)
        return sorted(self._seen.items()) == [(n, 1) for n in range(MESSAGES // QUEUES)]

    def steps(self):
        return {"rest": self.rest}


def _instance_or_address(instance):
    return {"namesrv": instance} if isinstance(instance, str) else {"instance": instance}


KINDS = (
    ProducerRole,
    ProducerRole,
    LiteRole,
    LiteRole,
    ConcurrentRole,
    OrderlyRole,
    BroadcastRole,
    AdminRole,
    BulkRole,
)


def queue_of(topic, number):
    return MessageQueue(topic, BROKER_NAME, number)
