"""The programs of examples/transactions: killed at each of their steps, they lose no message."""

import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from support.brokers.broker_kinds import wait_until
from support.brokers.in_process import BrokerThread, small_broker

from rocketpoll import read_table

EXAMPLES = Path(__file__).parent.parent / "examples" / "transactions"
OUTBOXES = ("sqlalchemy_outbox", "django_outbox")
KILLED_AT = '''
import os, runpy, signal, sys, threading
at, path = int(sys.argv[1]), sys.argv[2]
sys.argv = sys.argv[2:]
steps = 0

def trace(frame, event, _):
    """Count the lines of the program's functions; kill the process before one of them."""
    global steps
    if frame.f_code.co_filename != path or not frame.f_code.co_flags & 1:
        return None
    if event == "line":
        steps += 1
        if steps == at:
            os.kill(os.getpid(), signal.SIGKILL)
    return trace

threading.settrace(trace)
sys.settrace(trace)
runpy.run_path(path, run_name="__main__")
print(steps)
'''
"""A program that runs another one and kills it at one of its steps."""


@pytest.fixture
def broker(tmp_path):
    config = small_broker(
        tmp_path / "store",
        flushDiskType="SYNC_FLUSH",
        transactionTimeOut=200,
        transactionCheckInterval=200,
        transactionCheckMax=1_000,
    )
    with BrokerThread(config) as running:
        yield running


def address_of(broker):
    return f"127.0.0.1:{broker.port}"


def run(program, *arguments, at=0):
    """Run a program, killed at a step unless that is 0; return the number of its steps."""
    path = str(EXAMPLES / f"{program}.py")
    ran = subprocess.run(
        [sys.executable, "-c", KILLED_AT, str(at), path, *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    if at and ran.returncode == -signal.SIGKILL:
        return at
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout)


def delivered(broker):
    """Return the number of deliveries of each order, by order number."""
    if broker.ask(lambda controller: controller.tables.topics.get("orders")) is None:
        return Counter()
    table = read_table("orders", address_of(broker), columns=["keys"])
    return Counter(int(keys.partition("-")[2]) for keys in table["keys"].to_pylist())


def orders_in(database, table):
    """Return the numbers of the orders in a database."""
    with closing(sqlite3.connect(database)) as connection:
        if not connection.execute(
            "SELECT 1 FROM sqlite_master WHERE name = ?", (table,)
        ).fetchone():
            return set()
        return {number for (number,) in connection.execute(f"SELECT id FROM {table}")}  # noqa: S608  # our own name


@pytest.mark.parametrize("program", OUTBOXES)
def test_outbox_program_sends_what_it_stores(broker, tmp_path, program):
    database = tmp_path / "orders.db"
    for _ in range(2):  # the second run finds nothing to do
        run(program, database, address_of(broker), 1, 2, 3)
        assert delivered(broker) == {1: 1, 2: 1, 3: 1}


@pytest.mark.deep
@pytest.mark.parametrize("program", OUTBOXES)
def test_outbox_program_that_is_killed_at_any_step_loses_no_message(broker, tmp_path, program):
    table = "orders" if program == "sqlalchemy_outbox" else "shop_order"
    steps = run(program, tmp_path / "0.db", address_of(broker), 1_000)
    assert steps > 10
    was_stored = set()
    for at in range(1, steps + 1):
        database = tmp_path / f"{at}.db"
        run(program, database, address_of(broker), at, at=at)
        run(program, database, address_of(broker))
        found = delivered(broker)
        is_stored = at in orders_in(database, table)
        assert (found[at] > 0) == is_stored, at
        assert found[at] <= 2
        was_stored.add(is_stored)
    assert was_stored == {True, False}


@pytest.mark.deep
def test_transactional_program_that_is_killed_at_any_step_loses_no_message(broker, tmp_path):
    database = tmp_path / "orders.db"
    steps = run("transactional_orders", database, address_of(broker), 1_000)
    assert steps > 10
    for at in range(1, steps):
        run("transactional_orders", database, address_of(broker), at, at=at)
    run("transactional_orders", database, address_of(broker))
    wait_until(
        "the end of all transactions",
        lambda: broker.ask(lambda controller: controller.transactions.pending_count == 0),
    )
    stored = orders_in(database, "orders")
    assert 0 < len(stored) < steps
    assert delivered(broker).keys() == stored
