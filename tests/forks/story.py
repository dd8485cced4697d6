"""One story: a parent with clients in random states forks at random moments, and continues.

python -m forks.story SEED BROKER DIRECTORY

What all of its processes note is in DIRECTORY/notes; the last line that it prints lists what the
model objects to. The same seed draws the same objects, moments and steps. Threads run as they like,
so that a failure may need some runs to come again.
"""

import json
import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from forks.cast import KINDS, MESSAGES, QUEUES, LiteRole, ProducerRole, queue_of
from forks.judge import judge
from forks.notes import NotedErrors, Notes
from forks.ways import CHILD_SECONDS, COPIES, ENDS, NESTED, PROCESSES, end, wait_for, watch_child

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.errors import GroupNotFound
from rmq_spark.client.message import decode_messages
from rmq_spark.client.reading.bulk_pull import BulkPull
from rmq_spark.client.transport.remoting_client import RemotingClient
from rocketpoll import Admin, ClientError, ClientInstance, Message, Producer

PATIENCE_SECONDS = 30
STATES = ("made", "running", "running", "running", "starting", "ending", "ended")
_LOOK_SECONDS = 0.01
_CHANGES = ("start", "shutdown", "suspend", "pause")

_FROM_A_THREAD = {"sys.exit": "os._exit", "an exception": "os._exit"}
"""Ends of a child that another thread has forked: as one of its threads it would end alone."""


class Story:
    """The state of a story in one process; a child has its own copy."""

    def __init__(self, seed, broker, directory, path=""):
        self.seed = seed
        self.broker = broker
        self.directory = Path(directory)
        self.tale = self.directory.name.replace("-", "_")  # a new name for each run
        self.topic = f"{self.tale}-{seed}"
        self.notes = Notes(self.directory / "notes")
        self.path = path
        self.rng = random.Random(f"{seed} {path}")
        self.roles = []
        self.is_over = threading.Event()
        self._bodies = 0
        self._due = None  # place and kind of the next fork
        self._forking = threading.Lock()
        self._children = []
        self._is_main = True
        logging.getLogger().addHandler(NotedErrors(self.notes))

    # ---- methods for roles

    def queue(self, number):
        return queue_of(self.topic, number)

    def new_body(self):
        self._bodies += 1
        return f"{os.getpid()}-{threading.get_ident() % 10_000}-{self._bodies}"

    def processed(self, role, message, began):
        self.notes.note(
            "processed",
            group=role.group_name(),
            kind=role.kind,
            queue=message.queue.queue_id,
            offset=message.queue_offset,
            body=message.body.decode(),
            began=began,
        )

    def at(self, place):
        """Fork here, if the next fork is at this place."""
        if self._due is None or self._due[0] != place:
            return
        with self._forking:
            if self._due is None:
                return
            (_, way, number), self._due = self._due, None
            self._fork(way, number, goes_on=number % 2 == 1)

    # ---- the parent

    def run(self):
        multiprocessing.set_start_method("fork")
        sys.setswitchinterval(self.rng.choice((0.00001, 0.0005, 0.005)))
        with Admin(self.broker) as admin:
            admin.create_topic(self.topic, QUEUES)
        self._send_first()
        shared_id = f"given-{self.seed}" if self.rng.random() < 0.5 else None
        with ClientInstance(self.broker, client_id=shared_id) as shared:
            self._cast(shared)
            busy = self._busy()
            kept = self._connections()
            self._forks()
            if self.path:
                self.notes.note("strays")
                os._exit(1)
            self._wait_for_children()
            self._compare(kept)
            self._sweep()
            self.is_over.set()
            for thread in busy:
                thread.join(PATIENCE_SECONDS)
                if thread.is_alive():
                    self.notes.note("hangs", who=thread.name)
            self._members()
            for role in self.roles:
                if role.state in ("running", "starting", "ending"):
                    role.shutdown()
        return judge(self.notes.all(), self._stored(), os.getpid())

    def _send_first(self):
        with Producer("First", self.broker) as producer:
            for number in range(MESSAGES):
                body = f"first-{number}"
                self.notes.note("tries", body=body)
                result = producer.send(
                    Message(self.topic, body.encode()), self.queue(number % QUEUES)
                )
                self.notes.note(
                    "sent",
                    body=body,
                    queue=result.queue.queue_id,
                    offset=result.queue_offset,
                    id=result.message_id,
                )

    def _cast(self, shared):
        """Make the objects, and bring each into its state, or close to it."""
        names = iter("abcdefghij")
        for kind in self.rng.sample(KINDS, self.rng.randint(3, 5)):
            is_shared = kind.kind == "bulk" or self.rng.random() < 0.5
            role = kind(self, next(names), shared if is_shared else self.broker)
            wanted = self.rng.choice(STATES)
            if kind.kind == "bulk" and wanted == "starting":  # a single thread reads it
                wanted = "running"
            self.notes.note("cast", role=role.name, kind=role.kind, state=wanted, shared=is_shared)
            if wanted in ("running", "ending", "ended"):
                role.start()
            if wanted == "ended":
                role.shutdown()
            self.roles.append(role)
            role.wanted = wanted

    def _busy(self):
        """Run threads that send, poll and commit, and others that start or end objects."""
        threads = []
        for role in self.roles:
            if role.wanted == "starting":
                role.state = "starting"
                threads.append(
                    self._thread(lambda r=role: self._starts(r), f"starts {role.name}", later=True)
                )
            elif role.wanted == "ending":
                role.state = "ending"
                threads.append(self._thread(role.shutdown, f"ends {role.name}", later=True))
            elif role.state == "running" and isinstance(role, (ProducerRole, LiteRole)):
                work = self._sends if isinstance(role, ProducerRole) else self._polls
                threads.append(self._thread(lambda r=role, w=work: w(r), f"busy {role.name}"))
        return threads

    def _thread(self, action, name, *, later=False):
        delay = self.rng.random() * 0.05 if later else 0

        def run():
            time.sleep(delay)
            try:
                action()
            except ClientError as error:
                self.notes.note("raised", who=name, says=str(error))

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def _sends(self, role):
        rng, count = random.Random(f"{self.seed} {role.name}"), 0
        steps = ("send", "send_async", "send_batch", "send_one_way", "send to a queue")
        while not self.is_over.is_set() and count < 60:
            role.run(rng.choice(steps))
            count += 1
            time.sleep(rng.random() * 0.01)

    def _starts(self, role):
        role.start()
        if role.kind == "lite":
            self._polls(role)

    def _polls(self, role):
        rng = random.Random(f"{self.seed} {role.name}")
        while not self.is_over.is_set():
            role.run("poll")
            if rng.random() < 0.3:
                role.run("commit")

    # ---- forks

    def _forks(self):
        for number in range(self.rng.randint(1, 3)):
            time.sleep(self.rng.random() * 0.1)
            way = self.rng.choice(COPIES + PROCESSES)
            self.notes.note("forks", way=way, number=number)
            if way in PROCESSES:
                self._process(way, number)
            elif way == "main":
                self._fork(way, number)
            elif way == "thread":
                thread = threading.Thread(target=self._fork, args=(way, number), daemon=True)
                thread.start()
                thread.join()
            elif way.startswith("signal"):
                self._fork_in_a_signal(way, number)
            else:
                self._fork_at(way, number)

    def _fork(self, way, number, *, goes_on=False):
        pid = os.fork()
        if pid:
            self._children.append((pid, way, number, lambda seconds: wait_for(pid, seconds)))
            return
        self._become(number)
        self._is_main &= way == "main" or way.startswith("signal")
        if goes_on:
            self.notes.note("goes on", way=way)
            return
        how = self._live()
        end(how if self._is_main else _FROM_A_THREAD.get(how, how))

    def _become(self, number):
        """Set up a new child: record its inherited state, and draw from its own seed."""
        watch_child(self.notes)
        self.path = f"{self.path}/{number}"
        self.rng = random.Random(f"{self.seed} {self.path}")
        self._due, self._children = None, []
        self._forking = threading.Lock()
        for role in self.roles:
            role.forked()

    def _fork_at(self, place, number):
        """Fork in the thread that next reaches a place, or here if none does."""
        self._due = (place, place, number)
        runs = [role for role in self.roles if role.state == "running"]
        producer = next((each for each in runs if each.kind == "producer"), None)
        if place == "callback" and producer is not None:
            body = self.new_body()
            self.notes.note("tries", body=body)
            future = producer.object.send_async(Message(self.topic, body.encode()))
            here = threading.get_ident()  # called immediately if the response has arrived already

            def elsewhere(_):
                if threading.get_ident() != here:
                    self.at("callback")

            future.add_done_callback(elsewhere)
        elif place == "rebalance":
            for role in [each for each in runs if each.kind == "lite"][:1]:
                other = type(role)(self, role.name, self.broker)
                other.start()
                other.shutdown()
        elif place == "listener" and producer is not None:
            producer.run("send")
        deadline = time.monotonic() + 1
        while self._due is not None and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        with self._forking:
            is_left, self._due = self._due is not None, None
        if is_left:
            self._fork("main", number)

    def _fork_in_a_signal(self, way, number):
        """Fork in a signal handler while this thread is in a call."""
        handled = []

        def handle(*_):
            if not handled:
                handled.append(way)
                self._fork(way, number, goes_on=way.endswith("goes on"))

        before = signal.signal(signal.SIGUSR1, handle)
        delay, me = self.rng.random() * 0.02, threading.main_thread().ident
        path = self.path  # before the signal, which may come in the next line

        def interrupt():
            time.sleep(delay)
            signal.pthread_kill(me, signal.SIGUSR1)

        threading.Thread(target=interrupt, daemon=True).start()
        role = self.rng.choice([each for each in self.roles if each.kind != "bulk"])
        step = self.rng.choice([each for each in role.steps() if each not in _CHANGES])
        while not handled:
            role.run(step)
        if self.path != path:
            end(self._live())
        signal.signal(signal.SIGUSR1, before)

    def _process(self, method, number):
        """Let `multiprocessing` create the child, which ends as such children do."""
        context = multiprocessing.get_context(method)
        if method == "fork":
            process = context.Process(target=self._be_process, args=(number,))
        else:
            about = (self.seed, self.broker, str(self.directory), f"{self.path}/{number}")
            process = context.Process(target=live_alone, args=about)
        process.start()

        def code(seconds):
            process.join(seconds)
            if process.is_alive():
                process.kill()
                process.join()
                return None
            return process.exitcode

        self._children.append((process.pid, method, number, code))

    def _be_process(self, number):
        self._become(number)
        end(self._live())

    # ---- a child

    def _live(self):
        """Run random steps on the objects; return how to end."""
        how = self.rng.choice(list(ENDS))
        self.notes.note("lives", how=how)
        if self.path.count("/") < NESTED and self.rng.random() < 0.25:
            self._fork("main", 9)
        for _ in range(self.rng.randint(2, 6)):
            if not self.roles or self.rng.random() < 0.25:
                kind = self.rng.choice([k for k in KINDS if k.kind not in ("bulk", "orderly")])
                role = kind(self, self.rng.choice("abcdefghij"), self.broker)
                role.state = "made"
                self.roles.append(role)
                role.run("start")
            role = self.rng.choice(self.roles)
            role.run(self.rng.choice(list(role.steps())))
        for role in self.roles:
            is_own = role.kind == "orderly" and role.state == "running"
            if is_own and not self._is_parents(role):
                role.run("shutdown")  # a killed client keeps its locks for a minute
        self._wait_for_children()
        self.notes.note("lived", how=how)
        return how

    def _is_parents(self, role):
        return role.belongs_to_parent and not role.object.is_running

    def _wait_for_children(self):
        for pid, way, number, code_within in self._children:
            code = code_within(CHILD_SECONDS + 5)
            self.notes.note("ended", child=pid, way=way, number=number, code=code)

    # ---- final checks of the parent

    def _connections(self):
        """Return the parent's connections, by object."""
        time.sleep(0.05)
        return {
            each.address: (role.name, each)
            for role in self.roles
            if role.state == "running" and hasattr(role, "instance") and role.kind != "bulk"
            for each in _connections_of(role)
        }

    def _compare(self, kept):
        lost = [f"{name}: {address}" for address, (name, each) in kept.items() if each.is_closed]
        if lost:
            self.notes.note("lost connections", of=lost)

    def _groups(self):
        """Return the groups that share queues, with the class and the member name of each."""
        found = {}
        kinds = {kind.kind: kind for kind in KINDS}
        for note in self.notes.all():
            if note["what"] == "member":
                kind, name, _ = note["group"].split("-")
                if kind != "broadcast":
                    found[note["group"]] = kinds[kind], name
        return found

    def _missing(self, group):
        notes = self.notes.all()
        sent = {note["body"] for note in notes if note["what"] == "sent"}
        seen = {n["body"] for n in notes if n["what"] == "processed" and n["group"] == group}
        return sent - seen

    def _sweep(self):
        """Let all groups consume everything that was sent, with a new member if needed."""
        for group, (kind, name) in self._groups().items():
            if self._until(lambda group=group: not self._missing(group), 1):
                continue
            sweeper = kind(self, name, self.broker)
            sweeper.start()
            polls = sweeper.poll if kind is LiteRole else lambda: None
            if not self._until(
                lambda group=group, polls=polls: (polls(), not self._missing(group))[1],
                PATIENCE_SECONDS,
            ):
                self.notes.note("unprocessed", group=group, bodies=sorted(self._missing(group)))
            sweeper.shutdown()

    def _until(self, condition, seconds):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_SECONDS * 3)
        return True

    def _members(self):
        """Record the final members of the groups: only the parent's may be left."""
        living = {}
        for role in self.roles:
            if role.state == "running" and role.kind in ("lite", "concurrent", "orderly"):
                living.setdefault(role.group_name(), set()).add(role.instance().client_id)
        with Admin(self.broker) as admin:
            for group, ids in living.items():
                found = set()

                def agree(group=group, ids=ids):
                    nonlocal found
                    with suppress(GroupNotFound):  # no consumer has started yet
                        found = {each.client_id for each in admin.members(group)}
                    return found == ids

                if not self._until(agree, 10):
                    self.notes.note("members", group=group, needed=sorted(ids), found=sorted(found))

    def _stored(self):
        connections = RemotingClient()
        api = BrokerApi(connections)
        found = []
        for number in range(QUEUES):
            queue = self.queue(number)
            most = api.max_offset(self.broker, queue)
            for chunk in BulkPull(api, self.broker, "Readers", queue, 0, most):
                found += [
                    (number, each.queue_offset, each.body.decode(), each.message_id)
                    for each in decode_messages(chunk.records, queue.broker_name)
                ]
        connections.shutdown()
        return found


def _connections_of(role):
    with suppress(AttributeError):
        return role.instance().connections.connections()
    return ()


def live_alone(seed, broker, directory, path):
    """Run the life of a process that was spawned: it makes all its objects."""
    story = Story(seed, broker, directory, path)
    watch_child(story.notes)
    end(story._live())


if __name__ == "__main__":
    told = Story(int(sys.argv[1]), sys.argv[2], sys.argv[3])
    objections = told.run()
    sys.stdout.write(json.dumps(objections) + "\n")
