"""Lifecycle of an embedded broker: ready when the call returns, stopped with its owner, private."""

import os
import pickle
import re
import signal
import socket
from ipaddress import ip_address
from itertools import product
from pathlib import Path

import pytest
from support.programs.python_programs import python_program, started_python_program
from support.suite.selection import spread

from rmq_spark.client.errors import ClientError, SendFailed
from rocketpoll import Admin, LitePullConsumer, Message
from rocketpoll import ConfigError as PublicConfigError
from rocketpoll.broker.controller import BrokerController
from rocketpoll.broker.embedded import EmbeddedBroker, EmbeddedBrokerError
from rocketpoll.broker.settings.settings import ConfigError
from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.files.disk import DiskUsage, LocalDisk

pytestmark = pytest.mark.usefixtures("temporary")


def bodies(broker, topic="orders"):
    return [message.body for message in broker.messages(topic)]


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# ---- start and stop


def test_embedded_broker_is_ready_when_started_and_leaves_no_files(kind, temporary):
    with EmbeddedBroker(**kind) as broker:
        broker.send("orders", "one", b"two")
        assert bodies(broker) == [b"one", b"two"]
        assert broker.address == f"127.0.0.1:{broker.port}"
        assert broker.directory.parent == temporary
        port = broker.port
    assert not listens(port)
    assert list(temporary.iterdir()) == []


def test_given_directory_of_an_embedded_broker_is_kept(kind, tmp_path):
    with EmbeddedBroker(tmp_path, **kind) as broker:
        broker.send("orders", "one")
        assert broker.directory == tmp_path
    assert not (tmp_path / "abort").exists()
    with EmbeddedBroker(str(tmp_path)) as broker:
        assert bodies(broker) == [b"one"]


def test_embedded_broker_starts_and_stops_by_hand(kind):
    broker = EmbeddedBroker(**kind)
    for use in (
        lambda: broker.address,
        lambda: broker.send("orders", "one"),
        broker.restart,
        broker.pause,
    ):
        with pytest.raises(EmbeddedBrokerError, match="does not run yet: start it"):
            use()
    assert broker.start() is broker
    with pytest.raises(EmbeddedBrokerError, match=f"runs already, at {broker.address}"):
        broker.start()
    broker.stop()
    broker.stop()
    for use in (lambda: broker.directory, broker.start, broker.restart):
        with pytest.raises(EmbeddedBrokerError, match="was stopped: create another one"):
            use()


def test_exception_in_an_embedded_broker_block_stops_the_broker(kind, temporary):
    with pytest.raises(KeyboardInterrupt), EmbeddedBroker(**kind):
        raise KeyboardInterrupt
    assert list(temporary.iterdir()) == []


def test_first_of_two_embedded_broker_errors_is_raised(temporary, caplog):
    def fail():
        with EmbeddedBroker(own_process=True) as broker:
            broker._runner._process.kill()
            broker.send("orders", "one")

    with pytest.raises(ClientError):
        fail()
    assert "it ended with exit code -9" in caplog.text
    assert list(temporary.iterdir()) == []


# ---- settings


def test_embedded_broker_checks_its_settings_by_name_at_construction():
    with EmbeddedBroker(
        defaultTopicQueueNums=1, autoCreateTopicEnable=True, brokerName="mine"
    ) as broker:
        (sent,) = broker.send("orders", "one")
        assert (sent.queue.broker_name, sent.queue.queue_id) == ("mine", 0)
    with pytest.raises(ConfigError, match="did you mean flushDiskType"):
        EmbeddedBroker(flushDiskTyp="SYNC_FLUSH")
    assert f"{ConfigError.__module__}.{ConfigError.__qualname__}" == "rocketpoll.ConfigError"
    assert PublicConfigError is ConfigError
    with pytest.raises(ConfigError, match="listenPort must be a number"):
        EmbeddedBroker(port=70_000)
    with pytest.raises(EmbeddedBrokerError, match="storePathRootDir is given as directory"):
        EmbeddedBroker(storePathRootDir="~/store")


@pytest.mark.parametrize(
    ("is_temporary", "settings", "flushes"),
    [
        (True, {}, "ASYNC_FLUSH"),
        (True, {"flushDiskType": FlushDiskType.SYNC_FLUSH}, "SYNC_FLUSH"),
        (False, {}, "SYNC_FLUSH"),
    ],
    ids=["temporary", "temporary, but told otherwise", "given"],
)
def test_temporary_embedded_broker_does_not_wait_for_flushes(
    tmp_path, api, is_temporary, settings, flushes
):
    with EmbeddedBroker(None if is_temporary else tmp_path, **settings) as broker:
        assert api.admin.broker_config(broker.address)["flushDiskType"] == flushes


def test_embedded_broker_on_all_interfaces_is_reached_at_loopback():
    with EmbeddedBroker(
        bindAddress=str(ip_address(0)), allowRemoteWithoutAuthentication=True
    ) as broker:
        assert broker.address == f"127.0.0.1:{broker.port}"
        broker.send("orders", "one")
    with EmbeddedBroker(bindAddress="::1") as broker:
        assert broker.address == f"[::1]:{broker.port}"
        broker.send("orders", "one")


# ---- ports and directories in use


def test_embedded_broker_port_in_use_is_named_and_start_can_be_retried(kind, temporary):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        broker = EmbeddedBroker(port=port, **kind)
        with pytest.raises(EmbeddedBrokerError, match=f"cannot listen on 127.0.0.1:{port}"):
            broker.start()
        assert list(temporary.iterdir()) == []
    with broker:
        assert broker.port == port


def test_embedded_broker_on_a_directory_in_use_is_refused(kind, tmp_path):
    with EmbeddedBroker(tmp_path) as broker:
        broker.send("orders", "one")
        with pytest.raises(EmbeddedBrokerError, match=f"{tmp_path} is in use by "):
            EmbeddedBroker(tmp_path, **kind).start()
        assert bodies(broker) == [b"one"]


# ---- injected faults


def test_embedded_broker_restart_keeps_address_messages_and_clients(kind):
    with EmbeddedBroker(**kind) as broker, LitePullConsumer("billing", broker.address) as consumer:
        broker.create_topic("orders", queues=1)
        consumer.subscribe("orders")
        address = broker.address
        broker.send("orders", "one")
        seen = []
        while not seen:
            seen += consumer.poll(1_000)
        broker.restart()
        assert broker.address == address
        broker.send("orders", "two")
        while len(seen) < 2:
            seen += consumer.poll(1_000)
        assert [message.body for message in seen] == bodies(broker) == [b"one", b"two"]


def test_paused_embedded_broker_answers_no_client(kind):
    with EmbeddedBroker(**kind) as broker:
        broker.send("orders", "one")
        producer = broker.producer()
        (queue,) = {message.queue for message in broker.messages("orders")}
        broker.pause()
        broker.pause()
        late = producer.send_async(Message("orders", b"two"), queue)
        assert not late.done()
        broker.resume()
        late.result(10)
        assert bodies(broker) == [b"one", b"two"]
        broker.pause()  # and it can still be stopped


def test_killed_embedded_broker_restarts_with_its_messages():
    with EmbeddedBroker(own_process=True, flushDiskType="SYNC_FLUSH") as broker:
        broker.send("orders", "one")
        broker.kill()
        with pytest.raises(ClientError):
            broker.send("orders", "two")
        broker.restart()
        assert bodies(broker) == [b"one"]
        broker.kill()


def test_embedded_broker_in_a_thread_cannot_be_killed():
    with EmbeddedBroker() as broker, pytest.raises(EmbeddedBrokerError, match=r"own_process=True"):
        broker.kill()


def test_embedded_broker_process_that_died_is_reported_at_stop(temporary):
    with (
        pytest.raises(EmbeddedBrokerError, match="it ended with exit code -9"),
        EmbeddedBroker(own_process=True) as it,
    ):
        it._runner._process.kill()
    assert list(temporary.iterdir()) == []


def test_failed_embedded_broker_restart_can_be_retried(kind):
    with EmbeddedBroker(**kind) as broker:
        port = broker.port
        broker._end_runner()
        with socket.create_server(("127.0.0.1", port)):
            with pytest.raises(EmbeddedBrokerError, match="cannot listen"):
                broker.restart()
            with pytest.raises(EmbeddedBrokerError, match="did not start again after a restart"):
                broker.send("orders", "one")
        broker.restart()
        broker.send("orders", "one")


# ---- ownership


def test_embedded_broker_cannot_be_pickled():
    with pytest.raises(TypeError, match="pass its address"):
        pickle.dumps(EmbeddedBroker())


FORK = """
    import multiprocessing, os, sys
    from rocketpoll.broker.embedded import EmbeddedBroker, EmbeddedBrokerError

    def use(broker):
        broker.send("orders", "of the child")
        for forbidden in (broker.restart, broker.pause, broker.kill):
            try:
                forbidden()
            except EmbeddedBrokerError as error:
                assert "from which it was forked" in str(error), error
            else:
                raise AssertionError("a fork may not do that")
        broker.stop()
        with EmbeddedBroker() as own:
            own.send("orders", "to its own")
            assert own.address != broker.address

    with EmbeddedBroker(own_process=sys.argv[1] == "process") as broker:
        broker.send("orders", "of the parent")
        if sys.argv[2] == "multiprocessing":
            child = multiprocessing.get_context("fork").Process(target=use, args=(broker,))
            child.start()
            child.join()
            code = child.exitcode
        else:
            pid = os.fork()
            if not pid:
                use(broker)
                sys.exit(0)  # through the with statement and all that is done at exit
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print("child", code)
        print(*[message.body.decode() for message in broker.messages("orders")], sep=", ")
        print(broker.directory.exists())
    print(broker._directory)
"""


@pytest.mark.parametrize(
    ("mode", "how"), spread(2, product(["thread", "process"], ["fork", "multiprocessing"]))
)
def test_forked_child_can_use_but_not_stop_the_embedded_broker(mode, how, tmp_path):
    done = python_program(FORK, mode, how, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["child 0", "of the parent, of the child", "True", "None"]
    assert "Traceback" not in done.stderr


KEPT_OPEN = """
    import os, sys, time
    from rocketpoll.broker.embedded import EmbeddedBroker
    from rocketpoll import LitePullConsumer, Message

    broker = EmbeddedBroker(own_process=sys.argv[1] == "process").start()
    broker.send("orders", "one")
    alive, end = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(end)
        os.read(alive, 1)  # until the parent has done its work
        os._exit(0)
    os.close(alive)
    broker.restart()  # its port is free again, although the fork goes on
    print(len(broker.messages("orders")))
    broker.stop()
    os.close(end)
    os.waitpid(pid, 0)
"""


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_forked_child_keeps_no_port_or_process_of_the_embedded_broker(mode, tmp_path):
    done = python_program(KEPT_OPEN, mode, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1"]


FORGOTTEN = """
    import sys
    from rocketpoll.broker.embedded import EmbeddedBroker
    broker = EmbeddedBroker(*sys.argv[2:], own_process=sys.argv[1] == "process").start()
    broker.send("orders", "one")
    producer = broker.producer()
    raise SystemExit(3)
"""


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_forgotten_embedded_broker_stops_in_order_at_exit(mode, tmp_path, temporary):
    done = python_program(FORGOTTEN, mode, tmp_path / "given", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (3, "")
    assert not (tmp_path / "given" / "abort").exists()
    done = python_program(FORGOTTEN, mode, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (3, "")
    assert list(temporary.iterdir()) == []


INTERRUPTED = """
    import sys
    from rocketpoll.broker.embedded import EmbeddedBroker
    with EmbeddedBroker(own_process=sys.argv[1] == "process") as broker:
        broker.send("orders", "one")
        try:
            print(broker.port, flush=True)
            sys.stdin.read()
        except KeyboardInterrupt:
            print(len(broker.messages("orders")), flush=True)
            raise
"""


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_ctrl_c_ends_the_program_before_its_embedded_broker(mode, tmp_path, temporary):
    with started_python_program(INTERRUPTED, mode, cwd=tmp_path, quiet=True) as program:
        port = int(program.stdout.readline())
        os.killpg(program.pid, signal.SIGINT)  # like a terminal: to all processes of the program
        assert program.stdout.readline() == "1\n"
        assert program.wait(30) == -signal.SIGINT
    assert not listens(port)
    assert list(temporary.iterdir()) == []


def test_interrupt_during_embedded_broker_start_leaves_no_files(temporary, monkeypatch):
    start = BrokerController.start

    async def start_interrupted(controller):
        os.kill(os.getpid(), signal.SIGINT)  # it reaches the main thread, which waits for this one
        return await start(controller)

    broker = EmbeddedBroker()
    with monkeypatch.context() as patched:
        patched.setattr(BrokerController, "start", start_interrupted)
        with pytest.raises(KeyboardInterrupt):
            broker.start()
    assert list(temporary.iterdir()) == []
    with broker:
        broker.send("orders", "one")


@pytest.mark.parametrize(
    ("arguments", "kind", "why"),
    [
        ({"queues": 2}, ConfigError, "no setting 'queues': .*defaultTopicQueueNums=.*create_topic"),
        ({"namesrvAddr": "localhost"}, ConfigError, "namesrvAddr must be addresses as host:port"),
        ({"brokerId": 1}, ConfigError, "no setting 'brokerId': .*masters and slaves"),
        ({"directory": 9876}, TypeError, r"directory: needed a path, found int 9876; .*port=9876"),
        *(
            (
                {"directory": address},
                EmbeddedBrokerError,
                rf"first argument is the directory .* address '{re.escape(address)}'; .*port=",
            )
            for address in ("localhost:9876", "127.0.0.1:0", ":9876", "[::1]:9876", "mq-1.a:1")
        ),
        ({"port": "9876"}, TypeError, r"port: needed a whole number .*found str '9876'; for"),
        ({"port": True}, TypeError, "port: .*found bool True"),
        ({"port": None}, TypeError, "port: .*found NoneType None"),
        ({"port": 65_536}, ConfigError, "65536"),
        (
            {"listenPort": 9876},
            EmbeddedBrokerError,
            "listenPort is given as port",
        ),
        (
            {"directory": "a\0b"},
            EmbeddedBrokerError,
            r"directory: needed a path without NUL, found 'a\\x00b'",
        ),
        (
            {"own_process": "false"},
            TypeError,
            "own_process: needed True or False, found str 'false'",
        ),
        (
            {"own_process": None},
            TypeError,
            "own_process: needed True or False, found NoneType None",
        ),
        ({"own_process": 0}, TypeError, "own_process: needed True or False, found int 0"),
    ],
)
def test_unknown_embedded_broker_setting_is_refused_with_advice(arguments, kind, why):
    with pytest.raises(kind, match=why):
        EmbeddedBroker(**arguments)


def test_embedded_broker_directory_may_contain_a_colon(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for directory in ("./localhost:9876", Path("b:1"), "c:d", str(tmp_path / "e:1")):
        with EmbeddedBroker(directory) as broker:
            assert broker.directory == tmp_path / directory


def test_embedded_broker_repr_shows_address_and_state():
    broker = EmbeddedBroker()
    assert (
        repr(broker)
        == "<EmbeddedBroker that does not run yet: start it, or use it in a with statement>"
    )
    assert "does not run yet" in broker._repr_html_()
    with broker:
        assert repr(broker) == f"<EmbeddedBroker {broker.address}, running in a thread>"
        broker.pause()
        assert repr(broker) == f"<EmbeddedBroker {broker.address}, paused in a thread>"
        assert (
            broker._repr_html_()
            == f"<div>EmbeddedBroker {broker.address}, paused in a thread</div>"
        )
        broker.resume()
        broker.restart()
        assert "running" in repr(broker)
    assert "was stopped" in repr(broker)


def test_killed_embedded_broker_repr_shows_it():
    with EmbeddedBroker(own_process=True) as broker:
        assert "running in a process of its own" in repr(broker)
        broker.kill()
        assert "killed" in repr(broker)
        assert "killed" in broker._repr_html_()
        broker.restart()
        assert "running" in repr(broker)


def test_notebook_view_of_an_embedded_broker_lists_user_topics():
    with EmbeddedBroker() as broker:
        assert "<table>" not in broker._repr_html_()
        broker.create_topic("orders", queues=2)
        broker.send("orders", "one", "two")
        for number in range(30):
            broker.create_topic(f"t{number:02}", queues=1)
        shown = broker._repr_html_()
    assert "<td>orders</td><td>2</td><td>2</td>" in shown
    assert "<td>t00</td><td>1</td><td>0</td>" in shown
    assert shown.endswith("<div>and 11 more</div>")
    assert "TBW102" not in shown
    assert "broker-a</td>" not in shown


def test_notebook_display_says_that_topics_are_unavailable(monkeypatch):
    def gone(_):
        raise EmbeddedBrokerError("<gone>")

    with EmbeddedBroker() as broker:
        monkeypatch.setattr(Admin, "topics", gone)
        assert "its topics cannot be shown: &lt;gone&gt;" in broker._repr_html_()


@pytest.mark.parametrize(("settings", "takes"), [({}, True), ({"kept": True}, False)])
def test_temporary_embedded_broker_takes_messages_on_a_95_percent_full_disk(
    monkeypatch, tmp_path, settings, takes
):
    """A persistent store refuses from 90 % on; a temporary one is small and short-lived."""
    monkeypatch.setattr(LocalDisk, "usage", lambda *_: DiskUsage(100, 95, 5))
    directory = tmp_path / "kept" if settings else None
    with EmbeddedBroker(directory, cleanResourceInterval=10) as broker:
        for refused in range(2):
            try:
                broker.send("orders", "one")
            except SendFailed as error:
                assert "the disk is 95% full, over 90%" in str(error)
                assert not takes
            else:
                assert takes
            broker.clock.advance(1 + refused)  # the disk is checked


@pytest.mark.parametrize("settings", ["", "maxOpenFiles=4096"])
def test_embedded_broker_uses_few_of_the_processs_descriptors(tmp_path, settings):
    """All 300 queues get messages, each of which needs a file; the program itself opens 100."""
    ended = python_program(
        f"""
        import logging, resource
        logging.basicConfig(level=logging.WARNING)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        from rocketpoll import EmbeddedBroker, Message
        with EmbeddedBroker({settings}) as broker:
            broker.create_topic("orders", queues=300)
            with broker.producer() as producer:
                for number in range(300):
                    producer.send(Message("orders", b"%d" % number))
            files = [open("/dev/null") for _ in range(100)]
            print(len(broker.messages("orders")))
        """,
        cwd=tmp_path,
    )
    assert ended.stdout == "300\n", ended.stderr
    assert ("maxOpenFiles is 64 instead of 4096" in ended.stderr) is bool(settings)
    assert "Too many open files" not in ended.stderr
