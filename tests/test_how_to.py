"""How-to pages: their programs run and do what they say."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from support.brokers.tls_cluster import behind_tls
from support.programs.python_programs import python
from support.rocketmq.real_broker import free_broker_port
from support.servers.tls import certificate

from rmq_spark.cli.spark.spark_runtime import java_fault
from rocketpoll import (
    Admin,
    ConsumeFromWhere,
    EmbeddedBroker,
    LitePullConsumer,
    PushConsumer,
    PushSettings,
    wait_until,
)

ROOT = Path(__file__).parent.parent
PAGES = {path.stem: path for path in (ROOT / "docs" / "how-to").glob("*.md")}
ORDER = '{"id": 1, "customer": "ada", "total": 9.5}'
ON_SPARK = {
    "read-in-spark": ORDER[-5:-1],
    "start-from-a-timestamp": "2 messages since",
    "from-kafka": "order-1",
    "exactly-once": "2 bills count",
    "debezium": "| id|name|credit|\n+---+----+------+\n|  1| ada|  9.50|\n|  3| eve|  1.00|\n+---+",
}
"""Pages whose programs need Spark, and what each prints."""
SEPARATELY = {"docker-and-nat", "use-tls", "tls-and-acls", "move-to-rocketmq", "test-a-pipeline"}
SEPARATELY |= {"into-delta", "into-iceberg"}  # tests/spark/test_lake_pages.py
"""Pages that need more than a broker at an address."""


def text_of(page):
    return PAGES[page].read_text(encoding="utf-8")


def block_of(page, language="python"):
    [block] = re.findall(rf"```{language}\n(.*?)```", text_of(page), re.DOTALL)
    return block


def run(block, address="localhost:9876", **names):
    """Run a page's program against this address."""
    text = block.replace("localhost:9876", address)
    exec(compile(text, "page", "exec"), names)  # noqa: S102  # our own text


@pytest.fixture
def broker():
    """Run a broker with one order that billing has consumed, and one that it has not."""
    with EmbeddedBroker() as started:
        started.create_topic("orders", queues=1)
        started.send("orders", ORDER, tags="created", keys="order-1")
        started.send("orders", ORDER, tags="paid", keys="order-1")
        with Admin(started.address) as admin:
            [queue] = admin.topic_offsets("orders")
            admin.set_offset("billing", queue, 1, missing_ok=True)
        yield started


def fail_an_order(broker):
    """Let a listener fail until the order is a dead letter."""

    def listen(messages, context):
        raise RuntimeError("no bill today")

    settings = PushSettings(
        max_reconsume_times=0, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    )
    with (
        Admin(broker.address) as admin,
        PushConsumer("billing", broker.address, listener=listen, settings=settings) as consumer,
    ):
        consumer.subscribe("orders")
        wait_until(lambda: "%DLQ%billing" in admin.topics() and broker.messages("%DLQ%billing"))


def capture_customers(broker):
    """Send the changes that Debezium captured, with and without their schemas."""
    ada, bob, eve = (
        {"id": number, "name": name, "credit": "1.00"}
        for number, name in enumerate(("ada", "bob", "eve"), 1)
    )
    source = {"connector": "postgresql", "snapshot": "false"}
    changes = [
        ("r", None, ada),
        ("c", None, bob),
        ("u", ada, {**ada, "credit": "9.50"}),
        ("d", {"id": 2, "name": "", "credit": None}, None),
        ("c", None, eve),
    ]
    broker.create_topic("shop_public_customers", queues=1)
    for number, (op, before, after) in enumerate(changes):
        value = {"before": before, "after": after, "source": source, "op": op, "ts_ms": number}
        body = value if number % 2 else {"schema": {"type": "struct"}, "payload": value}
        key = str((after or before)["id"])
        broker.send("shop_public_customers", json.dumps(body), keys=key)
    broker.send("shop_public_customers", '{"schema": null, "payload": null}')


BEFORE = {"dead-letters": fail_an_order}


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("read-a-day", "created    1"),
        ("find-a-message", 'created b\'{"id": 1'),
        ("send-a-group-back", "continues at 0"),
        ("replay-from-yesterday", 'paid b\'{"id": 1'),
        ("consumer-is-stuck", "0 1 behind, held by None\nnext: MessageExt("),
        ("dead-letters", 'orders order-1 b\'{"id": 1'),
        ("send-json", "ada\n"),
        ("keep-the-order", "created\npaid\nshipped\n"),
        ("delay-a-message", "SEND_OK"),
        ("send-with-a-database", "sent order 1 for 9.50 SEND_OK\n"),
    ],
)
def test_how_to_page_program_answers_its_question(capsys, broker, page, said):
    BEFORE.get(page, lambda _: None)(broker)
    capsys.readouterr()
    run(block_of(page), broker.address)
    assert said in capsys.readouterr().out


def test_how_to_pages_are_questions_and_tried():
    tried = {"read-a-day", "find-a-message", "send-a-group-back", "replay-from-yesterday"}
    tried |= {"consumer-is-stuck", "dead-letters", "send-json", "keep-the-order"}
    tried |= {"delay-a-message", "send-with-a-database"}
    assert set(PAGES) == tried | SEPARATELY | set(ON_SPARK)
    for page in PAGES:
        assert re.match(r"# (How|Why|Where) .*\?\n", text_of(page)), page


def test_how_to_resent_dead_letters_are_in_their_topic(broker):
    fail_an_order(broker)
    dead = len(broker.messages("%DLQ%billing"))
    before = len(broker.messages("orders"))
    run(block_of("dead-letters"), broker.address)
    assert len(broker.messages("orders")) == before + dead
    assert dead > 0


def test_how_to_delay_a_message_delivers_after_the_delay_of_the_page(broker):
    page = block_of("delay-a-message")
    run(page, broker.address)
    run(page.replace("producer.recall", "print"), broker.address)
    assert broker.messages("reminders") == []
    broker.clock.advance(timedelta(seconds=91))
    broker.wait_until_arrived("reminders", 1)
    [reminder] = broker.messages("reminders")
    assert reminder.body == b"pay order 1"


def test_how_to_consumer_is_stuck_names_the_stuck_consumer(capsys, broker):
    with LitePullConsumer("billing", broker.address) as consumer:
        consumer.subscribe("orders")
        assert consumer.poll(timeout_ms=5_000)
        run(block_of("consumer-is-stuck"), broker.address)
        with Admin(broker.address) as admin:
            [owner] = set(admin.queue_owners("billing").values())
        assert f"held by {owner}\nlast tried at " in capsys.readouterr().out


def test_broker_addresses_page_reaches_a_broker_through_nat(capsys):
    away = "192.0.2.1"  # an address without a machine: RFC 5737
    with EmbeddedBroker(brokerIP1=away) as broker:
        run(block_of("docker-and-nat"), broker.address)
    assert "SEND_OK" in capsys.readouterr().out


def test_how_to_page_on_tls_sends_a_message(capsys, tmp_path):
    block = block_of("use-tls")
    for name in ("ca.pem", "client.pem"):
        block = block.replace(f'"{name}"', f'"{certificate(name)}"')
    with behind_tls(tmp_path) as (_, terminator):
        run(block, terminator.address)
    assert "SEND_OK" in capsys.readouterr().out


def test_how_to_move_to_rocketmq_commands_verify_the_store(tmp_path):
    with EmbeddedBroker(tmp_path / "store") as broker:
        broker.send("orders", ORDER)
    said = []
    for line in block_of("move-to-rocketmq", "sh").splitlines():
        words = [word.replace("~", str(tmp_path)) for word in shlex.split(line)]
        if words[0] == "rocketpoll":
            words = [sys.executable, "-m", *words]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        said.append(done.stdout)
    assert said[1] == "no faults found\n"
    assert "orders" in said[2]


@pytest.mark.deep
@pytest.mark.skipif(java_fault() is not None, reason="Spark needs Java")
def test_how_to_page_spark_programs_answer_their_questions(broker, tmp_path):
    """All programs run in one Spark, one after the other."""
    capture_customers(broker)
    program = "\nprint('====')\n".join(map(block_of, ON_SPARK))
    program = program.replace("localhost:9876", broker.address)
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    done = python("-u", "program.py", cwd=tmp_path)  # unbuffered, in order with Spark's output
    assert done.returncode == 0, done.stderr
    for said, printed in zip(ON_SPARK.values(), done.stdout.split("====\n"), strict=True):
        assert said in printed, done.stdout


@pytest.mark.deep
@pytest.mark.skipif(java_fault() is not None, reason="Spark needs Java")
def test_entry_for_the_list_of_data_sources_prints_its_example(tmp_path, monkeypatch):
    settings = "--conf spark.sql.shuffle.partitions=1 --conf spark.ui.enabled=false"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--master local[2] {settings} pyspark-shell")
    page = (ROOT / "docs" / "assets" / "pyspark-data-sources.md").read_text(encoding="utf-8")
    program = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    program = program.replace("/tmp/rocketmq-example", str(tmp_path / "checkpoint"))  # noqa: S108  # the page's directory
    with EmbeddedBroker() as broker:
        program = program.replace("localhost:9876", broker.address)
        (tmp_path / "program.py").write_text(program, encoding="utf-8")
        done = python("program.py", cwd=tmp_path)
        copies = [each.body for each in broker.messages("copies")]
    assert done.returncode == 0, done.stderr
    [table] = re.findall(r"```\n(\+.*?)```", page, re.DOTALL)
    assert table in done.stdout
    assert sorted(copies) == [b"4.0", b"9.5"]


@pytest.mark.deep
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
def test_how_to_page_pipeline_test_passes(tmp_path):
    (tmp_path / "test_totals.py").write_text(block_of("test-a-pipeline"), encoding="utf-8")
    done = python("-m", "pytest", "-p", "no:cacheprovider", cwd=tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the page needs the openssl command")
def test_commands_for_a_company_set_up_tls_and_acls_as_written(tmp_path):
    """A shell runs the commands as written, except for the port; then three users try
    their rights."""
    program = tmp_path / "bin" / "rocketpoll"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m rocketpoll "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    port = free_broker_port()
    set_up, questions = re.findall(r"```sh\n(.*?)```", text_of("tls-and-acls"), re.DOTALL)
    started = "rocketpoll broker -c broker.conf &\n"
    assert started in set_up
    waiting = (
        f"rocketpoll broker -c broker.conf listenPort={port} > broker.log 2>&1 & BROKER=$!\n"
        "trap 'kill $BROKER; wait $BROKER' EXIT\n"
    )
    users = "".join(
        f"[{name}]\nnamesrv = localhost:{port}\ntls-ca-file = ca.pem\naccess-key = {name}\n"
        "secret-key = correct-horse\n"
        for name in ("shop", "billing")
    )
    script = tmp_path / "script.sh"
    script.write_text(
        "set -eu\n"
        + set_up.replace(started, waiting).replace("localhost:9876", f"localhost:{port}")
        + f"cat >> profiles.ini << END\n{users}END\n"
        + questions.replace("--topic orders", "--topic orders || true")  # Java may be missing
        + "echo one | rocketpoll produce orders --profile shop\n"
        "rocketpoll consume orders --profile shop && exit 1\n"
        "echo two | rocketpoll produce orders --profile billing && exit 1\n"
        f"rocketpoll topic list --namesrv localhost:{port} --tls-ca-file ca.pem && exit 1\n"
        f"rocketpoll topic list --namesrv localhost:{port} && exit 1\n"
        "echo all is as it should be\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        ["/bin/sh", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={
            **{
                name: text for name, text in os.environ.items() if not name.startswith("ROCKETPOLL")
            },
            "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "ROCKETPOLL_USER_PASSWORD": "correct-horse",
            "HOME": str(tmp_path),
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all is as it should be" in done.stdout
    assert "has a certificate for localhost, 127.0.0.1, issued by Example Inc" in done.stdout
    assert "accepted from user operator" in done.stdout
    assert "orders exists" in done.stdout
    assert "billing  Topic:orders   Sub" in done.stdout
    assert "User:shop has no permission to access" in done.stderr
    assert "User:billing has no permission to access Topic:orders" in done.stderr
    assert "Pass the access key and the secret key" in done.stderr
    for name in ("broker.conf", "profiles.ini", "ca.key", "server.key"):
        assert (tmp_path / "rocketpoll" / name).stat().st_mode & 0o077 == 0, name
