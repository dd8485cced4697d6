"""Programs that fork while they use clients; `test_forks` runs each as a process.

    python forking_programs.py PROGRAM NAME_SERVER BROKER TOPIC GROUP

prints its outcome as JSON in the last line. BROKER is the address of broker-a. A child reports
through a pipe, and exits without its parent's cleanup.
"""

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.consumer.group_lifecycle import ServiceState
from rmq_spark.client.errors import GroupNotFound
from rmq_spark.client.reading.bulk_pull import BulkPull, PullRules
from rmq_spark.client.transport.pending_requests import ForkSafeFuture
from rmq_spark.client.transport.remoting_client import RemotingClient
from rmq_spark.wire.bodies.clients import ConsumeFromWhere
from rocketpoll import (
    Admin,
    ClientError,
    ClientInstance,
    LitePullConsumer,
    LitePullSettings,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    PushSettings,
)

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
BROKER, TOPIC, GROUP = sys.argv[3:]
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
PATIENCE_S = 30
MESSAGES = 100


class Child:
    """A forked process, whose outcome is reported to the parent."""

    def __init__(self, action):
        reading, writing = os.pipe()
        self.process_id = os.fork()
        if self.process_id == 0:
            os.close(reading)
            signal.alarm(PATIENCE_S)
            try:
                said = action()
            except BaseException:
                said = {"raised": traceback.format_exc()}
            os.write(writing, json.dumps(said).encode())
            os._exit(0)
        os.close(writing)
        self._reading = reading

    def said(self):
        """Return the outcome after the child has ended."""
        with os.fdopen(self._reading) as pipe:
            said = json.loads(pipe.read() or "null")
        os.waitpid(self.process_id, 0)
        return said


def until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it has not come to that"
        time.sleep(0.01)
    return found


def members_of(admin):
    try:
        return admin.members(GROUP)
    except GroupNotFound:  # no consumer has started yet
        return ()


def message_of(error):
    return f"{type(error).__name__}: {error}"


def raised_by(action):
    try:
        return f"nothing, but gave {action()!r}"
    except Exception as error:
        return message_of(error)


def send_all(producer, who):
    """Send messages; return the position of each."""
    found = []
    for number in range(MESSAGES):
        result = producer.send(Message(TOPIC, f"{who}-{number}".encode()), QUEUE)
        found.append([f"{who}-{number}", result.queue_offset, result.message_id])
    return found


# ---- producers


def producer_made_before(address):
    """Create a producer in the parent, and start it in each child."""
    producer = Producer("P", address)

    def work():
        with producer:
            return {"sent": send_all(producer, os.getpid()), "client": producer.instance.client_id}

    children = [Child(work) for _ in range(2)]
    return {"parent": work(), "children": [child.said() for child in children]}


def producer_started_before(address):
    """Start a producer in the parent; parent and children use it concurrently."""
    producer = Producer("P", address)
    producer.start()
    producer.send(Message(TOPIC, b"before"), QUEUE)
    own = producer.instance.connections.get(BROKER).connection

    def work():
        sent = send_all(producer, os.getpid())
        client = producer.instance.client_id
        producer.shutdown()
        return {"sent": sent, "client": client}

    children = [Child(work) for _ in range(3)]
    found = {"sent": send_all(producer, os.getpid()), "client": producer.instance.client_id}
    said = [child.said() for child in children]
    producer.send(Message(TOPIC, b"behind"), QUEUE)
    is_kept = producer.instance.connections.get(BROKER).connection is own
    producer.shutdown()
    return {"parent": found, "children": said, "connection is kept": is_kept}


def futures_of_the_parent(address):
    """Fork while a future is pending: it completes in the parent, which also runs its callbacks."""
    called = []
    with Producer("P", address) as producer:
        producer.send(Message(TOPIC, b"before"), QUEUE)
        futures = [
            producer.send_async(Message(TOPIC, b"%d" % n), QUEUE, 20_000) for n in range(MESSAGES)
        ]
        for future in futures:
            future.add_done_callback(lambda _: called.append(os.getpid()))
        before = [future for future in futures if not future.done()][-1:]

        def work():
            refused = [raised_by(lambda future=future: future.result(5)) for future in before]
            own = producer.send_async(Message(TOPIC, b"own"), QUEUE).result(10).send_status.name
            return {"refused": refused, "own": own, "called here": called.count(os.getpid())}

        said = Child(work).said()
        offsets = [future.result(20).queue_offset for future in futures]
        until(lambda: len(called) == MESSAGES)
    return {"child": said, "parent": offsets, "waited": len(before)}


def requests_of_the_parent(address):
    """Fork while a request is pending: the parent gets the reply; the child sends its
    own request."""
    may_reply = threading.Event()
    replier = Producer("R", address)

    def reply(messages, _):
        may_reply.wait(PATIENCE_S)
        for each in messages:
            replier.reply(each, each.body * 2)

    settings = PushSettings(consume_from_where=FIRST)
    consumer = PushConsumer(GROUP, address, listener=reply, settings=settings)
    consumer.subscribe(TOPIC)
    with replier, consumer, Producer("P", address) as producer:
        future = producer.request_async(Message(TOPIC, b"1"), QUEUE, 20_000)

        def work():
            refused = raised_by(lambda: future.result(5))
            waiting = producer.health().pending_requests
            own = producer.request(Message(TOPIC, b"2"), QUEUE, 20_000).body.decode()
            return {"refused": refused, "waiting": waiting, "own": own}

        child = Child(work)
        may_reply.set()
        said = child.said()
        parent = future.result(20).body.decode()
    return {"child": said, "parent": parent}


# ---- consumers


def polled_by(consumer, seconds):
    """Return a consumer's messages in this time, after it has got its queues."""
    found = []
    with consumer:
        consumer.subscribe(TOPIC)
        until(consumer.assignment)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found += [message.body.decode() for message in consumer.poll(100)]
    return found


def lite_made_before(address):
    """Create a consumer in the parent, and start it in two children, which share the queues."""
    consumer = LitePullConsumer(GROUP, address, LitePullSettings(consume_from_where=FIRST))
    return shared_by([Child(lambda: polled_by(consumer, 4)) for _ in range(2)], address)


def shared_by(children, address):
    """Return what two children see of messages that are sent once both are members."""
    with Admin(address) as admin:
        until(lambda: len(members_of(admin)) == 2)
        clients = [member.client_id for member in members_of(admin)]
    time.sleep(0.5)
    sent = send_to_all_queues(address)
    return {"sent": sent, "seen": [child.said() for child in children], "clients": clients}


def push_made_before(address):
    """Do what `lite_made_before` does, with a listener."""
    seen = []
    consumer = PushConsumer(
        GROUP,
        address,
        listener=lambda messages, _: seen.extend(each.body.decode() for each in messages),
        settings=PushSettings(consume_from_where=FIRST),
    )

    def work():
        consumer.subscribe(TOPIC)
        with consumer:
            time.sleep(4)
        return seen

    return shared_by([Child(work) for _ in range(2)], address)


def send_to_all_queues(address):
    with Producer("Senders", address) as producer:
        queues = producer.publish_queues(TOPIC)
        for number in range(40):
            producer.send(Message(TOPIC, f"{number}".encode()), queues[number % len(queues)])
    return [f"{number}" for number in range(40)]


def lite_started_before(address):
    """Start a consumer in the parent: the child's copy refuses with an error, and does not affect
    the parent's."""
    consumer = LitePullConsumer(GROUP, address, LitePullSettings(consume_from_where=FIRST))
    consumer.subscribe(TOPIC)
    consumer.start()
    until(consumer.assignment)

    def work():
        refused = [
            raised_by(action)
            for action in (
                consumer.poll,
                consumer.commit,
                consumer.start,
                lambda: consumer.subscribe("U"),
                lambda: consumer.unsubscribe(TOPIC),
                lambda: consumer.register_topic_message_queue_change_listener(
                    TOPIC, lambda *_: None
                ),
            )
        ]
        consumer.shutdown()
        return {
            "refused": refused,
            "is_running": consumer.is_running,
            "queues": len(consumer.assignment()),
        }

    said = Child(work).said()
    sent = send_to_all_queues(address)
    found = []
    until(
        lambda: (
            found.extend(message.body.decode() for message in consumer.poll(500))
            or len(found) >= 40
        )
    )
    with Admin(address) as admin:
        members = len(members_of(admin))
    consumer.shutdown()
    return {"child": said, "sent": sent, "seen": found, "members": members}


def lite_whose_end_was_asked_for(address):
    """Fork after a thread has requested a shutdown that has not begun: only the parent
    shuts down."""
    consumer = LitePullConsumer(GROUP, address, LitePullSettings(consume_from_where=FIRST))
    consumer.subscribe(TOPIC)
    consumer.start()
    until(consumer.assignment)
    consumer._impl._state_machine.compare_and_set(
        ServiceState.RUNNING, ServiceState.SHUTDOWN_ALREADY
    )

    def work():
        consumer.shutdown()
        return consumer.is_running

    child = Child(work).said()
    with Admin(address) as admin:
        members = [len(members_of(admin))]
        consumer.shutdown()
        until(lambda: not members_of(admin))
    return {"child": child, "members": members}


def lite_that_another_thread_changes(address):
    """Fork while another thread is within `assign`: the child's copy is not locked."""
    consumer = LitePullConsumer(GROUP, address, LitePullSettings(consume_from_where=FIRST))
    consumer.assign([QUEUE])
    member = consumer._impl
    locks = (member._tasks_lock, member._assigned_queues._mutex, member._auto_commit._mutex)
    is_held, may_go = threading.Event(), threading.Event()

    def hold():
        with locks[0], locks[1], locks[2]:
            is_held.set()
            may_go.wait(PATIENCE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait(PATIENCE_S)

    def work():
        before = sorted(consumer.assignment())
        consumer.assign([QUEUE, MessageQueue(TOPIC, "broker-a", 1)])
        return [len(before), len(consumer.assignment())]

    said = Child(work).said()
    may_go.set()
    thread.join()
    return {"child": said, "parent": len(consumer.assignment())}


def push_started_before(address):
    """Do what `lite_started_before` does, with a listener that the child's copy does not call."""
    seen = []
    consumer = PushConsumer(
        GROUP,
        address,
        listener=lambda messages, _: seen.extend(
            (os.getpid(), each.body.decode()) for each in messages
        ),
        settings=PushSettings(consume_from_where=FIRST),
    )
    consumer.subscribe(TOPIC)
    consumer.start()
    until(consumer.assignment)

    def work():
        refused = [
            raised_by(action)
            for action in (
                consumer.start,
                lambda: consumer.subscribe("U"),
                lambda: consumer.unsubscribe(TOPIC),
                consumer.suspend,
                consumer.resume,
            )
        ]
        time.sleep(2)  # while the parent's listener runs
        consumer.shutdown()
        return {"refused": refused, "seen": seen, "is_running": consumer.is_running}

    child = Child(work)
    sent = send_to_all_queues(address)
    until(lambda: len(seen) == 40)
    said = child.said()
    with Admin(address) as admin:
        members = len(members_of(admin))
    consumer.shutdown()
    return {"child": said, "sent": sent, "seen": [body for _, body in seen], "members": members}


def listener_that_forks(address):
    """Fork in a listener; the child returns from it, and must not do the work of the parent's
    threads."""
    children, seen, reading = [], [], None
    reading, writing = os.pipe()

    def listen(messages, _):
        body = messages[0].body.decode()
        os.write(writing, f"{body}\n".encode())
        if body == "0" and not children:
            child = os.fork()
            if child == 0:
                raise RuntimeError("in the child")  # the child must not send the message back
            children.append(child)
        seen.append(body)

    settings = PushSettings(consume_from_where=FIRST, consume_thread_max=1)
    consumer = PushConsumer(GROUP, address, listener=listen, settings=settings)
    sent = send_to_all_queues(address)
    consumer.subscribe(TOPIC)
    consumer.start()
    until(lambda: len(seen) == 40)
    until(lambda: os.waitpid(children[0], os.WNOHANG) != (0, 0))
    time.sleep(1.5)  # a message sent back would have arrived by now
    consumer.shutdown()
    os.close(writing)
    with os.fdopen(reading) as pipe:
        calls = pipe.read().split()
    return {"sent": sent, "seen": seen, "calls": calls}


# ---- parts of clients


def instance_started_before(address):
    """Start a shared instance in the parent: in the child it has no members, and
    accepts new ones."""
    instance = ClientInstance(address)
    instance.start()
    with Producer("P", instance=instance) as producer:
        producer.send(Message(TOPIC, b"before"), QUEUE)

        def work():
            with Producer("P", instance=instance) as own:
                return {"sent": send_all(own, os.getpid()), "client": instance.client_id}

        said = Child(work).said()
        found = {"sent": send_all(producer, os.getpid()), "client": instance.client_id}
    instance.stop()
    return {"parent": found, "children": [said]}


def instance_with_a_given_id(address):
    """Check that the child gets another client id: brokers would take two equal ids for
    one client."""
    instance = ClientInstance(address, client_id="given")
    consumer = LitePullConsumer(
        GROUP, instance=instance, settings=LitePullSettings(consume_from_where=FIRST)
    )

    def work():
        with instance:
            seen = polled_by(consumer, 3)
            return {"seen": seen, "client": instance.client_id, "lasting": instance.persistent_id}

    sent = send_to_all_queues(address)
    children = [Child(work) for _ in range(2)]
    return {"sent": sent, "children": [child.said() for child in children], "pid": os.getpid()}


def instance_in_a_with_statement(address):
    """Use an instance in the child as well, with one producer after another."""
    with ClientInstance(address) as instance:

        def work():
            sent = []
            for _ in range(2):
                with Producer("P", instance=instance) as own:
                    sent.append(own.send(Message(TOPIC, b"x"), QUEUE).send_status.name)
            return {"sent": sent, "is over": instance.is_shut_down}

        found = Child(work).said()
    return {"child": found}


def callback_that_forks(address):
    """Fork in a callback: the child runs no other callback of the parent, and ends with this
    thread."""
    reading, writing = os.pipe()
    children, futures, called = [], [], []
    # the callback runs immediately if the response has arrived already
    main = threading.current_thread()
    with Producer("P", address) as producer:
        producer.send(Message(TOPIC, b"before"), QUEUE)

        def call(number):
            os.write(writing, f"{os.getpid()} ".encode())
            if number == 0 and threading.current_thread() is not main:
                until(lambda: all(future.done() for future in futures))
                child = os.fork()
                if child:
                    children.append(child)
            called.append(number)

        while not children:
            futures[:] = [producer.send_async(Message(TOPIC, b"x"), QUEUE) for _ in range(20)]
            called.clear()
            for number, future in enumerate(futures):
                future.add_done_callback(lambda _, number=number: call(number))
            until(lambda: len(called) == len(futures))
        ended = until(lambda: os.waitpid(children[0], os.WNOHANG)[0])
    os.close(writing)
    with os.fdopen(reading) as pipe:
        calls = pipe.read().split()
    return {"ended": ended == children[0], "calls": calls, "pid": os.getpid()}


def signal_that_forks(_address):
    """Fork in a signal handler while a response is pending; the child keeps waiting."""
    reading, writing = os.pipe()
    children = []

    def fork(*_):
        children.append(os.fork())

    signal.signal(signal.SIGUSR1, fork)
    me = threading.main_thread().ident
    threading.Timer(0.2, lambda: signal.pthread_kill(me, signal.SIGUSR1)).start()
    said = raised_by(lambda: ForkSafeFuture().result(2))
    if children == [0]:
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        found = pipe.read()
    os.waitpid(children[0], 0)
    return {"parent": said, "child": found}


def queues_watched_before(address):
    """Watch a topic's queues with a consumer that is not started; it consumes in a child."""
    consumer = LitePullConsumer(GROUP, address, LitePullSettings(consume_from_where=FIRST))
    consumer.register_topic_message_queue_change_listener(TOPIC, lambda *_: None)
    sent = send_to_all_queues(address)
    child = Child(lambda: polled_by(consumer, 3))
    return {"sent": sent, "seen": child.said()}


def consumers_made_while_it_forks(address):
    """Fork while other threads create consumers, which are incomplete in the child."""
    producer = Producer("P", address)
    stopped = threading.Event()

    def make():
        while not stopped.is_set():
            PushConsumer(GROUP, address, listener=lambda *_: None)
            LitePullConsumer(GROUP, address)

    producer.start()
    threads = [threading.Thread(target=make) for _ in range(3)]
    for thread in threads:
        thread.start()
    said = []
    for _ in range(20):
        child = Child(lambda: producer.send(Message(TOPIC, b"x"), QUEUE).send_status.name)
        said.append(child.said())
    stopped.set()
    for thread in threads:
        thread.join()
    producer.shutdown()
    return {"children": said}


def admin_and_api_used_before(address):
    """Use admin and API in the child, each on its own connection."""
    connections = RemotingClient()
    api = BrokerApi(connections)
    with Admin(address) as admin:
        before = [admin.topics() is not None, api.max_offset(BROKER, QUEUE)]

        def work():
            return [admin.topics() is not None, api.max_offset(BROKER, QUEUE)]

        return {"before": before, "child": Child(work).said(), "parent": work()}


def bulk_pull_half_way(address):
    """Fork within a bulk pull, which continues in child and parent."""
    with Producer("P", address) as producer:
        send_all(producer, "x")
    connections = RemotingClient()
    pulls = iter(
        BulkPull(
            BrokerApi(connections), BROKER, GROUP, QUEUE, 0, MESSAGES, PullRules(chunk_bytes=1_000)
        )
    )
    first = next(pulls)

    def work():
        return [chunk.next_offset for chunk in pulls][-1]

    return {"first": first.next_offset, "child": Child(work).said(), "parent": work()}


def parent_that_is_killed(address):
    """Kill the parent: its sockets in a child must not hide its death from the broker."""
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        consumer = LitePullConsumer(GROUP, address)
        consumer.subscribe(TOPIC)
        consumer.start()
        until(consumer.assignment)
        if os.fork() == 0:
            os.write(writing, f"{os.getpid()}".encode())
            time.sleep(PATIENCE_S)
            os._exit(0)
        time.sleep(PATIENCE_S)
        os._exit(0)
    grandchild = int(os.read(reading, 100))
    with Admin(address) as admin:
        before = len(members_of(admin))
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        until(lambda: not members_of(admin))
    os.kill(grandchild, signal.SIGKILL)
    return {"before": before}


def threads_that_fork(address):
    """Fork at random moments while many threads use a producer, so that any lock may be held."""
    stopped, failures = threading.Event(), []
    with Producer("P", address) as producer:
        producer.send(Message(TOPIC, b"before"), QUEUE)

        def send():
            try:
                while not stopped.is_set():
                    producer.send_async(Message(TOPIC, b"x")).result(20)
            except ClientError as error:
                failures.append(message_of(error))

        threads = [threading.Thread(target=send) for _ in range(6)]
        for thread in threads:
            thread.start()
        said = []
        for _ in range(40):
            child = Child(lambda: producer.send(Message(TOPIC, b"child")).send_status.name)
            said.append(child.said())
        stopped.set()
        for thread in threads:
            thread.join()
    return {"children": said, "failures": failures}


# ---- servers that fork


class Application:
    """The module of a web service, which creates and uses its clients on import."""

    def __init__(self, address):
        self.producer = Producer("P", address)
        self.producer.start()
        self.producer.send(Message(TOPIC, b"before"), QUEUE)
        self.consumer = LitePullConsumer(GROUP, address, LitePullSettings(consume_from_where=FIRST))
        self.consumer.subscribe(TOPIC)


application = None


def preloaded_workers(address):
    """Fork as gunicorn with --preload and Celery's prefork pool do: one parent, workers that come
    and go. A worker exits with `sys.exit` and atexit functions, or is killed and replaced."""
    app = Application(address)
    reading, writing = os.pipe()

    def worker():
        child = os.fork()
        if child:
            return child
        signal.alarm(PATIENCE_S)
        sent = send_all(app.producer, os.getpid())
        os.write(
            writing,
            (json.dumps({"sent": sent, "client": app.producer.instance.client_id}) + "\n").encode(),
        )
        if len(sent) and os.getpid() % 2:
            app.producer.shutdown()  # some programs do, others leave it to atexit
        sys.exit(7)

    workers = [worker() for _ in range(3)]
    doomed = os.fork()
    if doomed == 0:
        app.producer.send(Message(TOPIC, b"doomed"))
        time.sleep(PATIENCE_S)
    os.kill(doomed, signal.SIGKILL)
    os.waitpid(doomed, 0)
    workers.append(worker())
    codes = [os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in workers]
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = [json.loads(line) for line in pipe]
    found = {"sent": send_all(app.producer, os.getpid()), "client": app.producer.instance.client_id}
    app.producer.shutdown()
    return {"parent": found, "children": said, "codes": codes}


def work_of_a_pool(task):
    """Run a task in a pool process, with clients that were created before the pool."""
    return {"sent": send_all(application.producer, f"{os.getpid()}-{task}")}


def pool_of_forks(address):
    """Use `multiprocessing` with the start method "fork"."""
    global application  # noqa: PLW0603  # the pool's functions find it in the module
    application = Application(address)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        tasks = pool.map(work_of_a_pool, range(6), chunksize=1)
    found = {"sent": send_all(application.producer, os.getpid())}
    application.producer.shutdown()
    return {"parent": found, "children": tasks}


if __name__ == "__main__":
    program = globals()[sys.argv[1]]
    sys.stdout.write(json.dumps(program(sys.argv[2])) + "\n")
