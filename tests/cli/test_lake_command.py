"""``rocketpoll lake`` writes each message of a topic to a Delta table exactly once."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.faults.preloaded_libraries import KILL_AT_A_CHANGE, kill_variables, preload

from rmq_spark.cli.main import main
from rmq_spark.client.admin.admin import Admin
from rocketpoll import EmbeddedBroker, wait_until

SMALL_FILES = {"mappedFileSizeCommitLog": 1 << 16, "maxMessageSize": 30_000}


@pytest.fixture
def broker(monkeypatch):
    """Run a broker at the commands' default address, with a topic of two queues."""
    with EmbeddedBroker(**SMALL_FILES) as started:
        monkeypatch.setenv("NAMESRV_ADDR", started.address)
        started.create_topic("orders", queues=2)
        yield started


@pytest.fixture
def table(tmp_path):
    return str(tmp_path / "lake" / "orders")


def send(broker, *numbers):
    broker.send("orders", *map(str, numbers))


def rows_of(table):
    """Return the rows of a table; check that each message occurs once."""
    rows = pa.table(DeltaTable(table).to_pyarrow_table()).to_pylist()
    places = {(row["brokerName"], row["queueId"], row["queueOffset"]) for row in rows}
    assert len(places) == len(rows)
    return rows


def numbers_of(table):
    return sorted(int(row["body"]) for row in rows_of(table))


def test_lake_writes_the_columns_of_the_source_and_resumes(run, broker, table):
    broker.send("orders", "0", tags="paid", keys="k")
    first = run("lake", "orders", table)
    assert (first.code, first.err) == (0, "")
    assert first.out == "version 1: 1 messages of orders\n"
    [row] = rows_of(table)
    assert list(row) == broker.read_table("orders").column_names
    assert (row["tags"], row["keys"], row["body"]) == ("paid", "k", b"0")
    assert run("lake", "orders", table).out == ""
    send(broker, 1, 2)
    assert run("lake", "orders", table).out == "version 2: 2 messages of orders\n"
    assert numbers_of(table) == [0, 1, 2]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([("--until", "+2")], [0, 1, 2, 3]),
        ([("--from", "-1")], [18, 19]),
        ([("--from", "-1"), ()], [18, 19]),
        ([("--from", "end"), ("--from", "end")], []),
        ([("--from", "-1"), ("--from", "start")], range(20)),
        ([("--from", "-2"), ("--from", "+7", "--commit-messages", "1")], range(14, 20)),
        ([("--from", "+3", "--until", "+5"), ("--from", "+9")], range(6, 20)),
        ([("--from", "@2020-01-01", "--until", "+1"), ()], range(20)),
        ([("--commit-messages", "3")], range(20)),
    ],
)
def test_lake_holds_one_range_of_each_queue_that_grows_at_both_ends(
    run, broker, table, steps, expected
):
    for number in range(20):
        send(broker, number)
    for step in steps:
        assert run("lake", "orders", table, *step).code == 0
    assert numbers_of(table) == list(expected)


def test_lake_started_at_the_end_writes_all_later_messages(run, broker, table):
    send(broker, 0, 1)
    assert run("lake", "orders", table, "--from", "end").out == "version 1: 0 messages of orders\n"
    send(broker, 2, 3, 4)
    assert run("lake", "orders", table, "--from", "end").code == 0
    assert numbers_of(table) == [2, 3, 4]


def test_lake_reads_queues_that_are_new_from_their_first_message(run, broker, table):
    send(broker, 0)
    run("lake", "orders", table, "--from", "end")
    assert run("topic", "alter", "orders", "--queues", 4).code == 0
    run("produce", "orders", stdin=b"1\n2\n3\n4\n5\n6\n7\n8\n")
    assert run("lake", "orders", table, "--from", "end").code == 0
    assert {row["queueId"] for row in rows_of(table)} == {0, 1, 2, 3}
    assert numbers_of(table) == list(range(1, 9))


def test_lake_keeps_several_topics_in_one_table(run, broker, table):
    send(broker, 0, 1)
    broker.create_topic("bills", queues=2)
    broker.send("bills", "2")
    for topic in ("orders", "bills", "orders"):
        assert run("lake", topic, table).code == 0
    rows = pa.table(DeltaTable(table).to_pyarrow_table()).to_pylist()
    assert sorted((row["topic"], row["body"]) for row in rows) == [
        ("bills", b"2"), ("orders", b"0"), ("orders", b"1"),
    ]  # fmt: skip


def test_lake_resumes_from_a_checkpoint_of_a_table_that_others_compact(run, broker, table):
    for number in range(4):
        send(broker, number)
        run("lake", "orders", table)
    DeltaTable(table).optimize.compact()
    DeltaTable(table).create_checkpoint()
    for version in range(4):
        (Path(table) / "_delta_log" / f"{version:020}.json").unlink()
    send(broker, 4)
    assert run("lake", "orders", table).code == 0
    assert numbers_of(table) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("count", [0, 1, 30])
def test_lake_refuses_a_topic_that_was_deleted_and_created_again(run, broker, table, count):
    send(broker, 0, 1, 2, 3)
    run("lake", "orders", table)
    broker.delete_topic("orders")
    broker.create_topic("orders", queues=2)
    for number in range(count):
        send(broker, number)
    refused = run("lake", "orders", table)
    assert refused.code == 1
    assert "of orders on broker-a is not the queue that the table has up to offset" in refused.err
    assert refused.err.endswith("from an older copy. Write to another table\n")
    assert numbers_of(table) == [0, 1, 2, 3]


def test_lake_refuses_to_skip_messages_that_the_broker_has_deleted(run, broker, table):
    send(broker, 0, 1)
    run("lake", "orders", table)
    broker.send("orders", *(os.urandom(20_000) for _ in range(60)))
    broker.clock.advance(timedelta(days=3))
    send(broker, 8, 9)
    broker.clock.advance(timedelta(days=1))
    wait_until(lambda: len(broker.messages("orders")) < 60)
    refused = run("lake", "orders", table)
    assert refused.code == 1
    assert "the broker has deleted offsets 1 to " in refused.err
    assert "which the table does not have yet. Add --skip-lost to go on at offset" in refused.err
    assert numbers_of(table) == [0, 1]
    assert run("lake", "orders", table, "--skip-lost").code == 0
    assert {b"0", b"1", b"8", b"9"} <= {row["body"] for row in rows_of(table)}
    assert run("lake", "orders", table).out == ""


def test_lake_losing_to_another_writer_fails_without_duplicates(run, broker, table, monkeypatch):
    send(broker, 0, 1)
    run("lake", "orders", table)
    send(broker, 2, 3)
    read = Admin.read_table

    def overtaken(admin, *arguments, **named):
        rows = read(admin, *arguments, **named)
        monkeypatch.undo()
        main(["lake", "orders", table, "--namesrv", broker.address])
        return rows

    monkeypatch.setattr(Admin, "read_table", overtaken)
    lost = run("lake", "orders", table)
    assert lost.code == 1
    assert "Another process has written orders to this table at the same time" in lost.err
    assert numbers_of(table) == [0, 1, 2, 3]


def test_lake_commits_nothing_if_the_topic_is_recreated_while_it_reads(
    run, broker, table, monkeypatch
):
    send(broker, 0, 1)
    run("lake", "orders", table)
    send(broker, 2, 3)
    read = Admin.read_table

    def recreated(admin, *arguments, **named):
        broker.delete_topic("orders")
        broker.create_topic("orders", queues=2)
        send(broker, *range(10, 18))
        return read(admin, *arguments, **named)

    monkeypatch.setattr(Admin, "read_table", recreated)
    refused = run("lake", "orders", table)
    assert refused.code == 1
    assert "is not the queue that the table has" in refused.err
    assert numbers_of(table) == [0, 1]


@contextmanager
def following(table, *more):
    """Run the command with --follow in a process that is interrupted at the end."""
    words = [sys.executable, "-m", "rocketpoll", "lake", "orders", table, "--follow"]
    process = subprocess.Popen(
        [*words, "--interval", "0.1", *more], stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def has_numbers(table, count):
    return DeltaTable.is_deltatable(table) and numbers_of(table) == list(range(count))


def test_lake_follows_new_messages_through_a_restart_of_the_broker(broker, table):
    with following(table) as process:
        for number in range(5):
            send(broker, number)
            wait_until(lambda seen=number: has_numbers(table, seen + 1), timeout=60)
        broker.restart()
        send(broker, 5)
        wait_until(lambda: has_numbers(table, 6), timeout=60)
        assert process.poll() is None
    assert process.returncode == 130


def test_lake_without_deltalake_names_the_extra(run, monkeypatch, broker, table):
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.setitem(sys.modules, "deltalake.exceptions", None)
    refused = run("lake", "orders", table)
    assert refused.code == 1
    assert "rocketpoll lake needs the package deltalake. Run" in refused.err
    assert refused.err.endswith("-m pip install deltalake\n")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--follow", "--until", "end"), "--follow and --until exclude each other. Give one"),
        (("--interval", "5"), "--interval needs --follow. Add it, or leave out --interval"),
        (("--interval", "0", "--follow"), "0 is not above 0"),
        (("--columns", "bdy"), "(did you mean body?)"),
        (("--columns", ""), "--columns "),
        (("--columns", "body,body"), "one name or more, each once"),
        (("--from", "yesterday"), "'yesterday' is not a position"),
        (("--on-bad-record", "ignore"), "there is no 'ignore'. Use one of"),
        (("--commit-messages", "0"), "0 is not a whole number"),
    ],
)
def test_lake_refuses_options_that_contradict(run, broker, table, more, said):
    refused = run("lake", "orders", table, *more)
    assert refused.code == 2
    assert said in refused.err


def test_lake_names_a_table_that_is_deleted_meanwhile(broker, table):
    send(broker, 0)
    with following(table) as process:
        wait_until(lambda: has_numbers(table, 1), timeout=60)
        shutil.rmtree(table)
        said = process.stderr.read()
    assert process.returncode == 1
    assert said.startswith("rocketpoll lake: cannot use the Delta table ")


@pytest.mark.parametrize(
    ("there", "more", "said"),
    [
        ({"body": [b"x"]}, ("--columns", "body,keys"), "has the columns body, not body,keys"),
        ({"amount": [1]}, (), "has the column amount, which messages do not have"),
        ({"body": [[1]]}, (), "has the column body with the type array, and messages have bin"),
        ({"body": ["x"]}, (), "the type string, and messages have binary. Write to another table"),
        ({"storeTimestamp": [1]}, (), "has the column storeTimestamp with the type long, and mess"),
    ],
)
def test_lake_refuses_tables_of_another_form(run, broker, table, there, more, said):
    write_deltalake(table, pa.table(there))
    send(broker, 0)
    refused = run("lake", "orders", table, *more)
    assert refused.code == 1
    assert said in refused.err
    assert DeltaTable(table).version() == 0


def test_lake_names_an_unwritable_table_path(run, broker, tmp_path):
    (tmp_path / "file").write_text("x")
    refused = run("lake", "orders", tmp_path / "file" / "orders")
    assert refused.code == 1
    assert "cannot use the Delta table" in refused.err
    assert len(refused.err.splitlines()) == 1


# ---- kills at each file change of a table's commit


@pytest.mark.deep
def test_lake_is_exactly_once_through_a_kill_at_each_change_of_a_file(
    broker, tmp_path, monkeypatch
):
    """Each table is written by a process that is killed one file change later than the previous
    one."""
    preload(tmp_path, monkeypatch, KILL_AT_A_CHANGE)
    for number in range(6):
        send(broker, number)
    step, held = 1, []
    while lake_is_killed(step, table := str(tmp_path / f"lake-{step}")):
        held.append(len(numbers_of(table)) if DeltaTable.is_deltatable(table) else 0)
        assert not lake_is_killed(0, table)
        assert numbers_of(table) == [0, 1, 2, 3, 4, 5]
        step += 1
    assert numbers_of(table) == [0, 1, 2, 3, 4, 5]
    assert set(held) == {0, 3, 6}, "kills before, between and after both commits"
    assert step > 10, "two commits change files more often"


def lake_is_killed(step, table):
    """Run the command, which is killed at a file change; return whether it got there."""
    words = [sys.executable, "-m", "rocketpoll", "lake", "orders", table, "--commit-messages", "3"]
    variables = {**os.environ, **kill_variables(table, step)}
    done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0
