"""Every public call of the client with every hostile value succeeds, or raises an error that names
the expected value.

Calls are found by their signatures. A new public method or parameter needs a valid example in
`calls_of`, and is then tested with all values of `hostile_arguments`.
"""

import inspect
import time
from concurrent.futures import wait
from contextlib import ExitStack
from dataclasses import replace

import pyarrow as pa
import pytest
from support.brokers.in_process import BrokerThread, small_broker
from support.brokers.secured import client_of, secured_broker
from support.clients.hostile_arguments import Call, faults_of, may_be_raised, parameters_of
from support.messages.received_messages import several
from support.servers.tls import certificate

from rmq_spark.client.admin.access_lists import AclPolicy
from rmq_spark.client.admin.admin import Admin, read_table
from rmq_spark.client.consumer.lite_pull_consumer import Consumer
from rmq_spark.client.consumer.push_consumer import PushConsumer
from rmq_spark.client.consumer.settings import LitePullSettings, PushSettings
from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message
from rmq_spark.client.producer import arrow_sender
from rmq_spark.client.producer.prepared_message import SendRules
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.subscriptions import by_sql, by_tag
from rmq_spark.client.transport.remoting_client import Credentials
from rmq_spark.client.transport.tls.settings import TlsSettings
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.message_queue import MessageQueue

QUEUE = MessageQueue("T", "broker-a", 0)
SUBSCRIBED = MessageQueue("S", "broker-a", 0)
LETTER = replace(several(1)[0], properties={"colour": "red"})
MESSAGE = Message("T", b"x", tags="red", keys=["k"], properties={"colour": "red"}, sharding_key="k")
NOW_MS = 1_750_000_000_000

CLASSES = (Producer, Admin, Consumer, PushConsumer, ClientInstance)
FUNCTIONS = (
    read_table,
    by_tag,
    by_sql,
    Credentials,
    SendRules,
    Message,
    TlsSettings,
    TlsSettings.of_files,
)

OF_THE_CLIENT_ITSELF = {
    "Producer": {"publish_queues"},
    "Admin": set(),
    "Consumer": set(),
    "PushConsumer": set(),
    "ClientInstance": {
        "ensure_registered",
        *("register_consumer", "unregister_consumer", "register_producer", "unregister_producer"),
    },
}
"""Methods with parameters that only the client itself calls."""


def public_calls():
    """Return the names of all public calls with parameters."""
    for kind in CLASSES:
        yield kind.__name__
        for name, function in inspect.getmembers(kind, inspect.isfunction):
            is_of_users = (
                not name.startswith("_") and name not in OF_THE_CLIENT_ITSELF[kind.__name__]
            )
            if is_of_users and inspect.signature(function).parameters.keys() > {"self"}:
                yield f"{kind.__name__}.{name}"
    yield from (function.__name__ for function in FUNCTIONS)


def listen(_, __):
    pass


def answered(future):
    """Return a finished future: the shutdown would fail a pending one."""
    wait([future], timeout=10)
    return future


class World:
    """A broker with two topics, and a running client of each kind."""

    def __init__(self, stack, root):
        self.broker = stack.enter_context(BrokerThread(small_broker(root)))
        self.address = f"127.0.0.1:{self.broker.port}"
        self.instance = stack.enter_context(ClientInstance(self.address))
        self.admin = stack.enter_context(Admin(instance=self.instance))
        self.users = stack.enter_context(
            Admin(instance=client_of(stack.enter_context(secured_broker())))
        )
        self.users.create_user("U", "secret")
        for topic in ("T", "T_COMMITS", "S", "R", "Changed", "Gone"):
            self.admin.create_topic(topic, 1)
        self.admin.set_offset("Idle", QUEUE, 0, missing_ok=True)
        self.producer = stack.enter_context(Producer("P", instance=self.instance))
        self.sent = self.producer.send(MESSAGE)
        self.replying = PushConsumer("Replying", instance=self.instance, listener=self._reply)
        self.replying.subscribe("R")
        stack.enter_context(self.replying)
        self.asked = self.asked_of_itself()
        self.assigned = Consumer("Assigned", instance=self.instance)
        self.assigned.assign([QUEUE])
        stack.enter_context(self.assigned)
        self.subscribed = Consumer("Subscribed", instance=self.instance)
        self.subscribed.subscribe("S")
        stack.enter_context(self.subscribed)
        self.push = PushConsumer("Pushed", instance=self.instance, listener=listen)
        self.push.subscribe("S")
        stack.enter_context(self.push)

    def asked_of_itself(self):
        """Return a request of this client, so that it accepts replies."""
        found = self.admin.message_by_offset_id(self.sent.offset_message_id)
        correlation = {"CORRELATION_ID": "1", "REPLY_TO_CLIENT": self.instance.client_id}
        return replace(found, properties={**found.properties, **correlation})

    def reply(self, request, **arguments):
        request = self.asked if request == "asked" else request  # users do not set its fields
        return self.producer.reply(request, **arguments)

    def _reply(self, messages, _):
        self.producer.send_one_way(messages[0].reply(b"answer"))

    def poll(self, timeout_ms):
        """Poll while there is a message: otherwise a poll without a timeout would
        block, correctly."""
        self.assigned.assign([QUEUE])
        self.assigned.resume([QUEUE])
        self.assigned.seek_to_begin(QUEUE)
        return self.assigned.poll(timeout_ms)

    def instance_of(self, **arguments):
        with (
            ClientInstance(**arguments) as instance,
            Producer("Other", instance=instance) as producer,
        ):
            producer.send(Message("T", b"x"))
            return answered(producer.send_async(Message("T", b"x")))

    def producer_of(self, **arguments):
        with Producer(**arguments) as producer:
            producer.send(MESSAGE)
            return answered(producer.send_async(Message("T", b"x" * 5_000)))

    def lite_of(self, **arguments):
        consumer = Consumer(**arguments)
        consumer.subscribe("S")
        with consumer:
            consumer.poll(1)

    def push_of(self, **arguments):
        arguments.pop("orderly_listener")
        consumer = PushConsumer(**arguments)
        consumer.subscribe("S")
        with consumer:
            consumer.assignment()

    def administered(self, **arguments):
        with Admin(**arguments) as admin:
            return admin.route("T")

    def commit(self, offsets):
        self.assigned.assign([QUEUE])
        self.assigned.commit(offsets)

    def with_queue(self, function):
        """Return a call for which the consumer is first assigned its queue again."""

        def run(**arguments):
            self.assigned.assign([QUEUE])
            self.assigned.resume([QUEUE])
            return function(**arguments)

        return run

    def still_works(self):
        """Send and read a message with the same clients."""
        self.assigned.assign([QUEUE])
        self.assigned.resume([QUEUE])
        sent = self.producer.send(Message("T", b"y"), QUEUE)
        self.assigned.seek(QUEUE, sent.queue_offset)
        deadline = time.monotonic() + 5
        while not (found := self.assigned.poll(100)):
            assert time.monotonic() < deadline, "nothing can be read any more"
        assert found[0].body == b"y"

    def select(self, by, expression):
        return Consumer("Selecting", instance=self.instance).subscribe("S", by(expression))

    def signed(self, **arguments):
        credentials = Credentials(**arguments)
        with Admin(instance=ClientInstance(self.address, credentials=credentials)) as admin:
            return admin.route("T")

    def under_tls(self, make):
        """Create settings, and a client with them that does not connect."""
        return lambda **arguments: ClientInstance(self.address, tls=make(**arguments))

    def ruled(self, **arguments):
        with Producer("Ruled", instance=self.instance, rules=SendRules(**arguments)) as producer:
            return producer.send(Message("T", b"x" * 100))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with ExitStack() as stack:
        yield World(stack, tmp_path_factory.mktemp("hostile") / "store")


def calls_of(world):
    """Return each public call with valid arguments for all parameters."""
    table = pa.table({"body": ["x"], "tags": ["red"]})
    bulk = {"queue": QUEUE, "in_flight": 2, "chunk_bytes": 1 << 16, "timeout_ms": 3_000}
    send = {"message": MESSAGE, "queue": QUEUE, "timeout_ms": 3_000}
    request = {"message": replace(MESSAGE, topic="R"), "queue": None, "timeout_ms": 3_000}
    span = {"start": {QUEUE: 0}, "end": {QUEUE: 1}, "columns": ["body"], "tags": "red"}
    span |= {"on_bad_record": "skip", "bytes_max": 1 << 30}
    consumer = {"group": "Made", "namesrv": world.address, "instance": world.instance}
    consumer |= {"namespace": None}
    producer, admin, lite, push = world.producer, world.admin, world.assigned, world.push
    users, where = world.users, {"cluster": None, "broker_name": None}
    policy = AclPolicy("U", "Topic:T", ("Pub",), ("10.0.0.0/8",))
    files = {
        "ca_file": certificate("ca.pem"),
        "cert_file": certificate("client.crt"),
        "key_file": certificate("locked.key"),
    }
    tls = TlsSettings.of_files(**files, key_password="rocketpoll")
    key = {"topic": "T", "key": "k", "begin_ms": 0, "end_ms": NOW_MS, "messages_max": 8}
    key |= {"bytes_max": 1 << 20}

    return {
        "Producer": Call(
            Producer,
            {
                "group": "Made",
                "namesrv": world.address,
                "instance": world.instance,
                "namespace": None,
                "rules": None,
                "send_timeout_ms": 3_000,
                "retries": 1,
                "retry_another_broker_when_not_store_ok": False,
                "send_latency_fault_enable": False,
                "pending_max": 10,
                "pending_bytes_max": 10_000,
                "serializer": "json",
                "member": None,
                "enable_trace": True,
                "trace_topic": "T",
            },
            world.producer_of,
        ),
        "Producer.send": Call(producer.send, send),
        "Producer.send_async": Call(producer.send_async, send),
        "Producer.send_one_way": Call(producer.send_one_way, {"message": MESSAGE, "queue": QUEUE}),
        "Producer.request": Call(producer.request, request),
        "Producer.request_async": Call(
            producer.request_async,
            request,
            lambda **arguments: answered(producer.request_async(**arguments)),
        ),
        "Producer.recall": Call(
            producer.recall,
            {
                "handle": producer.send(Message("T", b"x", deliver_after="1h")).recall_handle,
                "timeout_ms": 3_000,
            },
        ),
        "Producer.reply": Call(
            producer.reply,
            {"request": "asked", "body": b"x", "properties": {"a": "b"}, "timeout_ms": 3_000},
            world.reply,
        ),
        "Producer.send_batch": Call(
            producer.send_batch, {"messages": [MESSAGE], "timeout_ms": 3_000}
        ),
        "Producer.send_table": Call(
            producer.send_table,
            {"table": table, "topic": "T", **bulk},
            also_named={"table": "rows"},
            more=arrow_sender.send_batches,
        ),
        "Producer.send_batches": Call(
            producer.send_batches,
            {"batches": [table], "topic": "T", **bulk},
            also_named={"batches": "rows"},
            more=arrow_sender.send_batches,
        ),
        "Admin": Call(
            Admin,
            {"namesrv": [world.address], "instance": None, "namespace": None},
            world.administered,
        ),
        "Admin.route": Call(admin.route, {"topic": "T"}),
        "Admin.masters": Call(admin.masters, {"cluster": None}),
        "Admin.broker_info": Call(admin.broker_info, {"address": world.address}),
        "Admin.topic_configs": Call(admin.topic_configs, {"topic": "T"}),
        "Admin.timer_count": Call(admin.timer_count, {"topic": "T"}),
        "Admin.topic_size": Call(admin.topic_size, {"topic": "T"}),
        "Admin.queue_owners": Call(admin.queue_owners, {"group": "Pushed"}),
        "Admin.queue_reports": Call(admin.queue_reports, {"group": "Pushed"}),
        "Admin.progress": Call(admin.progress, {"group": "Pushed"}),
        "Admin.describe_group": Call(admin.describe_group, {"group": "Pushed"}),
        "Admin.dead_letters": Call(admin.dead_letters, {"group": "Pushed", "messages_max": 8}),
        "Admin.resend": Call(admin.resend, {"letters": [LETTER], "to": "T"}),
        "Admin.clone_offsets": Call(
            admin.clone_offsets, {"source": "Idle", "target": "Cloned", "topic": "T"}
        ),
        "Admin.topics": Call(admin.topics, {"cluster": "DefaultCluster"}),
        "Admin.create_topic": Call(
            admin.create_topic,
            {
                "topic": "Changed",
                "queues": 1,
                "cluster": None,
                "broker_name": None,
                "config": TopicConfig(topic_name="Changed"),
            },
        ),
        "Admin.create_topics": Call(
            admin.create_topics,
            {
                "topics": ["Changed", "Changed2"],
                "queues": 1,
                "cluster": None,
                "broker_name": None,
                "config": TopicConfig(topic_name="Changed"),
            },
        ),
        "Admin.all_topic_configs": Call(admin.all_topic_configs, {"cluster": "DefaultCluster"}),
        "Admin.delete_topic": Call(
            admin.delete_topic, {"topic": "Gone", "cluster": None, "missing_ok": True}
        ),
        "Admin.find_topic": Call(admin.find_topic, {"topic": "T", "cluster": None}),
        "Admin.topic_offsets": Call(admin.topic_offsets, {"topic": "T"}),
        "Admin.create_group": Call(
            admin.create_group,
            {
                "group": "Changed",
                "cluster": None,
                "config": SubscriptionGroupConfig(group_name="Changed"),
            },
        ),
        "Admin.delete_group": Call(
            admin.delete_group, {"group": "Changed", "cluster": None, "with_offsets": True}
        ),
        "Admin.users": Call(users.users, where),
        "Admin.user": Call(users.user, {"name": "U", **where}),
        "Admin.create_user": Call(
            users.create_user, {"name": "U", "password": "secret", "is_super": False, **where}
        ),
        "Admin.update_user": Call(
            users.update_user,
            {"name": "U", "password": "secret", "is_super": False, "is_enabled": True, **where},
        ),
        "Admin.delete_user": Call(users.delete_user, {"name": "Gone", **where}),
        "Admin.acls": Call(users.acls, {"user": "U", **where}),
        "Admin.create_acl": Call(users.create_acl, {"policy": policy, **where}),
        "Admin.delete_acl": Call(
            users.delete_acl, {"user": "U", "resource": "Topic:Gone", **where}
        ),
        "Admin.groups_of_topic": Call(admin.groups_of_topic, {"topic": "T"}),
        "Admin.members": Call(admin.members, {"group": "Pushed"}),
        "Admin.lag": Call(admin.lag, {"group": "Pushed", "topic": "S"}),
        "Admin.set_offset": Call(
            admin.set_offset,
            {"group": "Idle", "queue": QUEUE, "queue_offset": 0, "missing_ok": True},
        ),
        "Admin.reset_to_time": Call(
            admin.reset_to_time,
            {"group": "Idle", "topic": "T", "timestamp_ms": NOW_MS, "is_force": True},
        ),
        "Admin.message_by_offset_id": Call(
            admin.message_by_offset_id, {"offset_message_id": world.sent.offset_message_id}
        ),
        "Admin.message_traces": Call(
            admin.message_traces, {"message_id": world.sent.message_id, "trace_topic": "T"}
        ),
        "Admin.messages_by_key": Call(admin.messages_by_key, key),
        "Admin.messages_by_unique_id": Call(
            admin.messages_by_unique_id,
            {"topic": "T", "message_id": world.sent.message_id, "bytes_max": 1 << 20},
        ),
        "Admin.message_at": Call(admin.message_at, {"queue": QUEUE, "queue_offset": 0}),
        "Admin.read_table": Call(admin.read_table, {"topic": "T", **span, "body": "text"}),
        "Admin.read_committed": Call(
            admin.read_committed,
            {
                "topic": "T",
                "start": 0,
                "end": NOW_MS,
                "columns": ["body"],
                "tags": "red",
                "bytes_max": 1 << 30,
            },
        ),
        "read_table": Call(
            read_table,
            {
                "topic": "T",
                "namesrv": world.address,
                **span,
                "body": "text",
                "instance": world.instance,
                "namespace": None,
            },
        ),
        "Consumer": Call(
            Consumer,
            {
                **consumer,
                "settings": LitePullSettings(),
                "message_queue_listener": None,
                "start": "-1h",
            },
            world.lite_of,
        ),
        "Consumer.subscribe": Call(
            world.subscribed.subscribe, {"topic": "S", "selector": by_tag("red || blue")}
        ),
        "Consumer.unsubscribe": Call(world.subscribed.unsubscribe, {"topic": "T"}),
        "Consumer.assign": Call(lite.assign, {"queues": [QUEUE], "selector": by_tag("*")}),
        "Consumer.fetch_message_queues": Call(lite.fetch_message_queues, {"topic": "T"}),
        "Consumer.register_topic_message_queue_change_listener": Call(
            lite.register_topic_message_queue_change_listener, {"topic": "T", "listener": listen}
        ),
        "Consumer.poll": Call(lite.poll, {"timeout_ms": 1_000}, world.poll),
        "Consumer.commit": Call(lite.commit, {"offsets": {QUEUE: 0}}, world.commit),
        "Consumer.committed": Call(
            lite.committed, {"queue": QUEUE}, world.with_queue(lite.committed)
        ),
        "Consumer.seek": Call(
            lite.seek, {"queue": QUEUE, "offset": 0}, world.with_queue(lite.seek)
        ),
        "Consumer.seek_to_begin": Call(
            lite.seek_to_begin, {"queue": QUEUE}, world.with_queue(lite.seek_to_begin)
        ),
        "Consumer.seek_to_end": Call(
            lite.seek_to_end, {"queue": QUEUE}, world.with_queue(lite.seek_to_end)
        ),
        "Consumer.seek_to_time": Call(
            lite.seek_to_time,
            {"queue": QUEUE, "timestamp_ms": NOW_MS},
            world.with_queue(lite.seek_to_time),
        ),
        "Consumer.offset_for_timestamp": Call(
            lite.offset_for_timestamp, {"queue": QUEUE, "timestamp_ms": NOW_MS}
        ),
        "Consumer.pause": Call(lite.pause, {"queues": [QUEUE]}, world.with_queue(lite.pause)),
        "Consumer.resume": Call(lite.resume, {"queues": [QUEUE]}, world.with_queue(lite.resume)),
        "PushConsumer": Call(
            PushConsumer,
            {
                **consumer,
                "listener": listen,
                "orderly_listener": None,
                "settings": PushSettings(),
                "start": "-1h",
            },
            world.push_of,
        ),
        "PushConsumer.subscribe": Call(
            push.subscribe, {"topic": "S", "selector": by_tag("red || blue")}
        ),
        "PushConsumer.unsubscribe": Call(push.unsubscribe, {"topic": "T"}),
        "ClientInstance": Call(
            ClientInstance,
            {
                "namesrv": world.address,
                "credentials": None,
                "tls": None,
                "client_id": "somebody",
                "extensions": frozenset(Extension),
                "reads_itself": False,
                "broker_addresses": {"broker-a": world.address},
                "request_timeout_ms": 3_000,
                "connect_timeout_ms": 3_000,
                "route_interval_ms": 30_000,
                "heartbeat_interval_ms": 30_000,
                "max_body_bytes": 1 << 20,
                "namespace": "eu",
            },
            world.instance_of,
        ),
        "by_tag": Call(
            by_tag, {"expression": "red"}, lambda expression: world.select(by_tag, expression)
        ),
        "by_sql": Call(
            by_sql, {"condition": "a > 1"}, lambda condition: world.select(by_sql, condition)
        ),
        "Credentials": Call(
            Credentials,
            {"access_key": "key", "secret_key": "secret", "security_token": "token"},
            world.signed,
        ),
        "TlsSettings": Call(
            TlsSettings,
            {
                "ca": tls.ca,
                "certificate": tls.certificate,
                "key": tls.key,
                "key_password": "rocketpoll",
                "verify": True,
                "server_name": "broker-a",
            },
            world.under_tls(TlsSettings),
        ),
        "of_files": Call(
            TlsSettings.of_files,
            {**files, "key_password": "rocketpoll", "verify": True, "server_name": "broker-a"},
            world.under_tls(TlsSettings.of_files),
        ),
        "SendRules": Call(
            SendRules,
            {
                "producer_group": "Ruled",
                "create_topic_key": "TBW102",
                "default_topic_queue_nums": 4,
                "max_message_bytes": 1 << 16,
                "compress_body_bytes": 50,
                "compress_type": SendRules("Ruled").compress_type,
                "compress_level": 5,
            },
            world.ruled,
        ),
        "Message": Call(
            Message,
            {
                "topic": "T",
                "body": b"x",
                "tags": "red",
                "keys": ["k"],
                "properties": {"colour": "red"},
                "delay_level": 0,
                "flag": 0,
                "sharding_key": "k",
                "wait_store_ok": True,
                "key": None,
                "deliver_at": None,
                "deliver_after": None,
            },
            lambda key, keys, **fields: world.producer.send(
                Message(key=key, keys=keys if key is None else None, **fields)
            ),
        ),
    }


def test_every_public_client_call_has_a_valid_example(world):
    calls = calls_of(world)
    assert set(calls) == set(public_calls())
    lacking = {
        name: sorted(set(parameters_of(call.function, call.more)) ^ set(call.valid))
        for name, call in calls.items()
    }
    assert not {name: which for name, which in lacking.items() if which}
    for kind in CLASSES:
        assert all(hasattr(kind, name) for name in OF_THE_CLIENT_ITSELF[kind.__name__])


@pytest.mark.parametrize("name", sorted(public_calls()))
def test_client_call_with_hostile_values_succeeds_or_explains_what_it_needs(world, name):
    faults = faults_of(calls_of(world)[name])
    world.still_works()
    assert not faults, "\n".join(
        [f"{len(faults)} calls of {name} end in what teaches nothing:", *faults]
    )


NOT_UTF8 = b"\xff\xfe"
BYTES = pa.array([NOT_UTF8], pa.binary())
PAIRS = pa.map_(pa.binary(), pa.binary())
TEXTS = {
    "binary": BYTES,
    "large binary": BYTES.cast(pa.large_binary()),
    **({"binary view": BYTES.cast(pa.binary_view())} if hasattr(pa, "binary_view") else {}),
    "fixed size binary": pa.array([NOT_UTF8], pa.binary(2)),
    "dictionary": BYTES.dictionary_encode(),
    "string": BYTES.cast(pa.string(), safe=False),
    "large string": BYTES.cast(pa.string(), safe=False).cast(pa.large_string(), safe=False),
}
CELLS = {
    **dict.fromkeys(("topic", "keys", "tags"), TEXTS),
    "body": {
        "empty": pa.array([b""]),
        "null": pa.nulls(1),
        "lists": pa.array([[1]]),
        "numbers": pa.array([1.5]),
    },
    "properties": {
        "bytes": pa.array([[(b"colour", NOT_UTF8)]], PAIRS),
        "a name in bytes": pa.array([[(NOT_UTF8, b"red")]], PAIRS),
        "no text": pa.array([[(b"colour", NOT_UTF8)]], PAIRS).view(
            pa.map_(pa.string(), pa.string())
        ),
        "structs of bytes": pa.array([{"colour": NOT_UTF8}]),
        "numbers": pa.array([{"colour": 1}]),
        "structs of structs": pa.array([{"colour": {"a": "b"}}]),
        "lists of three": pa.array([[{"a": "b", "c": "d", "e": "f"}]]),
    },
    "flag": {
        "33 bits": pa.array([2**31]),
        "64 bits": pa.array([2**63], pa.uint64()),
        "halves": pa.array([1.5]),
        "no number": pa.array([float("nan")]),
        "booleans": pa.array([True]),
        "a text": pa.array(["1"]),
    },
    "bornTimestamp": {
        "64 bits": pa.array([2**63], pa.uint64()),
        "seconds": pa.array([2**62], pa.timestamp("s")),
        "halves": pa.array([1.5]),
        "a text": pa.array(["now"]),
    },
}


@pytest.mark.parametrize("name", CELLS)
def test_unsendable_column_is_refused_by_its_name(world, name):
    for kind, column in CELLS[name].items():
        rows = {"body": pa.array([b"x"]), name: column}
        with pytest.raises((TypeError, MessageRejected), match=name) as refused:
            world.producer.send_table(pa.table(rows), None if name == "topic" else "T")
        assert may_be_raised(refused.value, (name,)), kind
    world.still_works()
