"""The types that a user's program sees: `mypy --strict` accepts it, and finds typical mistakes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PYARROW = "class Table:\n    def to_pydict(self) -> dict[str, list[object]]: ...\n"
"""The part of `pyarrow-stubs` that the tests need; pyarrow itself has no types."""

PROGRAM = """
from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta, timezone

from typing_extensions import assert_type

import pyarrow as pa

import rocketpoll
from rocketpoll import (
    Admin,
    ClientInstance,
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    Consumer,
    LitePullConsumer,
    Message,
    MessageExt,
    NotInTime,
    Producer,
    PushConsumer,
    SendResult,
    SimpleConsumer,
    aio,
    by_sql,
)
from rocketpoll.errors import ClientError, SendFailed
from rocketpoll.spark import OptionError


def listen(messages: list[MessageExt], context: ConsumeConcurrentlyContext) -> None:
    messages.sort(key=lambda each: each.queue_offset)


def look(
    messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext
) -> ConsumeConcurrentlyStatus:
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def in_order(messages: list[MessageExt], context: ConsumeOrderlyContext) -> None: ...


def send(instance: ClientInstance) -> None:
    with Producer("shop", namesrv="localhost:9876", retries=3, serializer="json") as producer:
        message = Message("orders", {"id": 1}, tags="created", key="order-1")
        assert_type(message.key, str | None)
        assert_type(producer.send(message), SendResult)
        assert_type(producer.send_async(message), Future[SendResult])
        try:
            producer.send(message)
        except SendFailed as error:
            assert_type(error.tries, tuple[ClientError, ...])
    Producer("shop", instance=instance).close()


def consume() -> None:
    with Consumer("billing", ["localhost:9876"], start="-1h") as consumer:
        consumer.subscribe("orders", by_sql("total > 5"))
        for message in consumer.poll(timeout_ms=100):
            assert_type(message, MessageExt)
            assert_type(message.keys, tuple[str, ...])
        consumer.close()
    same: LitePullConsumer = consumer
    same.close()
    PushConsumer("a", "localhost:9876", listener=listen).close()
    PushConsumer("b", "localhost:9876", listener=look).close()
    PushConsumer("c", "localhost:9876", orderly_listener=in_order).close()


def read() -> None:
    since = datetime.now(timezone.utc) - timedelta(hours=1)
    assert_type(rocketpoll.read_table("orders", "localhost:9876", start=since), pa.Table)
    with Admin("localhost:9876") as admin:
        admin.create_topic("orders", queues=4)
        assert_type(admin.read_table("orders", body="json"), pa.Table)
        assert_type(admin.read_committed("orders"), pa.Table)


async def loop() -> None:
    async with aio.Client("localhost:9876") as client:
        async with aio.Producer("shop", client=client, retries=0) as producer:
            assert_type(await producer.send(Message("orders", b"x")), SendResult)
        async with aio.Consumer("billing", client=client) as consumer:
            async for message in consumer:
                assert_type(message, MessageExt)
        async with aio.SimpleConsumer("packing", client=client, start="earliest") as simple:
            await simple.subscribe("orders", by_sql("total > 5"))
            found = await simple.receive(16, invisible_ms=30_000)
            assert_type(found, list[MessageExt])
            assert_type(await simple.change_invisible_duration(found[0], 0), MessageExt)
            await simple.ack(found)


def pop(instance: ClientInstance) -> None:
    with SimpleConsumer("packing", ["localhost:9876"]) as consumer:
        consumer.subscribe("orders")
        for message in consumer.receive():
            assert_type(message, MessageExt)
            consumer.ack(message)
    SimpleConsumer("packing", instance=instance).close()


def timeouts(error: NotInTime, other: OptionError) -> tuple[TimeoutError, str]:
    return error, other.option
"""

MISTAKES = """
from rocketpoll import Admin, Consumer, Message, Producer, PushConsumer, aio, ConsumeOrderlyContext
from rocketpoll import ConsumeConcurrentlyContext, MessageExt


async def listen(messages: list[MessageExt], context: ConsumeConcurrentlyContext) -> None: ...
def one(message: MessageExt) -> None: ...
def tell(messages: list[MessageExt], context: ConsumeConcurrentlyContext) -> bool:
    return True
def in_order(messages: list[MessageExt], context: ConsumeOrderlyContext) -> None: ...


def wrong(producer: Producer, consumer: Consumer, admin: Admin) -> None:
    consumer.poll(timeout=5)  # call-arg
    producer.send("orders", b"x")  # arg-type
    Message("orders", b"x", key=["a", "b"])  # arg-type
    Message("orders")  # call-arg
    Producer("shop", name_servers="localhost:9876")  # call-arg
    Producer("shop", retries="3")  # arg-type
    PushConsumer("a", listener=listen)  # arg-type
    PushConsumer("a", listener=one)  # arg-type
    PushConsumer("a", listener=tell)  # arg-type
    PushConsumer("a", listener=in_order)  # arg-type
    admin.create_topic("orders", queues="4")  # arg-type
    admin.read_table("orders", columns=5)  # arg-type


async def wrong_in_the_loop(producer: aio.Producer, consumer: aio.Consumer) -> None:
    (await producer.send(Message("orders", b"x"))).offset  # attr-defined
    consumer.subscribe("orders")  # unused-coroutine
    async for message in consumer:
        message.body.encode()  # attr-defined


async def wrong_pops(simple: aio.SimpleConsumer) -> None:
    await simple.receive(timeout=5)  # call-arg
    await simple.ack("orders")  # arg-type
    simple.receive()  # unused-coroutine
"""


def checked(tmp_path, program):
    """Return mypy's output for a program outside of the project."""
    (tmp_path / "stubs" / "pyarrow").mkdir(parents=True)
    (tmp_path / "stubs" / "pyarrow" / "__init__.pyi").write_text(PYARROW, encoding="utf-8")
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]
    options = ["--python-version=3.10", "--hide-error-context", "--no-pretty"]
    done = subprocess.run(
        [*mypy, *options, "--config-file=", "--cache-dir=cache", "program.py"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": f"{tmp_path / 'stubs'}{os.pathsep}{ROOT}"},
    )
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    return done.stdout


@pytest.mark.deep
def test_mypy_accepts_a_users_program_with_the_types_that_it_expects(tmp_path):
    said = checked(tmp_path, PROGRAM)
    assert said.startswith("Success"), said


@pytest.mark.deep
def test_mypy_finds_each_mistake_of_a_users_program(tmp_path):
    expected = {
        number: line.partition("  # ")[2]
        for number, line in enumerate(MISTAKES.splitlines(), 1)
        if "  # " in line
    }
    found = re.findall(
        r"^program\.py:(\d+): error: .*\[([\w-]+)\]$", checked(tmp_path, MISTAKES), re.MULTILINE
    )
    assert {int(number): code for number, code in found} == expected
