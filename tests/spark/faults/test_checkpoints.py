"""Edited, truncated or mixed-up checkpoints give the planned rows or a clear error."""

import json
import re
import shutil

import pytest
from support.spark.driver_processes import Query
from support.spark.streaming_engine import send

TOPIC = "test_checkpoints"


@pytest.fixture(scope="module")
def sent(rocketpoll_broker):
    """Return the bodies sent so far."""
    rocketpoll_broker.create_topic(TOPIC)
    return send(rocketpoll_broker, TOPIC, 20)


@pytest.fixture(scope="module")
def four_batches(driver, rocketpoll_broker, sent, tmp_path_factory):
    """Return the directory of a query that has committed four batches."""
    directory = tmp_path_factory.mktemp("query")
    query = query_in(directory, rocketpoll_broker)
    assert run(driver, query) is None
    assert query.logged("commits") == [0, 1, 2, 3]
    return directory


@pytest.fixture
def query(four_batches, rocketpoll_broker, tmp_path):
    """Copy that query."""
    query = query_in(tmp_path, rocketpoll_broker)
    shutil.copytree(four_batches, tmp_path, dirs_exist_ok=True)
    return query


def query_in(directory, broker):
    return Query(
        directory,
        namesrvAddr=broker.address,
        subscribe=TOPIC,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=5,
    )


def run(driver, query):
    """Run the query once over all messages; return its error, if any."""
    driver.start(query, trigger={"availableNow": True})
    return driver.end()


def remove(query, log, number):
    (query.checkpoint / log / str(number)).unlink()
    (query.checkpoint / log / f".{number}.crc").unlink(missing_ok=True)


def rewrite(query, number, change):
    """Change the text of a batch's file in the offset log."""
    path = query.checkpoint / "offsets" / str(number)
    text = path.read_text()
    (query.checkpoint / "offsets" / f".{number}.crc").unlink(missing_ok=True)
    path.write_text(change(text))


def test_batch_without_its_commit_log_entry_is_run_again_with_the_same_rows(driver, query, sent):
    # first of the last batch, then of the last two, so that batch 3 is planned again
    for number in (3, 2):
        for log in ("commits",) if number == 3 else ("commits", "offsets"):
            remove(query, log, 3)
        if number == 2:
            remove(query, "commits", 2)
        assert run(driver, query) is None
        assert query.differing() == []
        assert sorted(body for *_, body in query.rows()) == sorted(sent)


def _newer(text):
    head, offset = text.rstrip().rsplit("\n", 1)
    return f"{head}\n{json.dumps({**json.loads(offset), 'v': 2})}"


def _of_another(text):
    return re.sub(r'"test_[^"]*"', '"other"', text)


def _foreign(text):
    return text.rstrip().rsplit("\n", 1)[0] + '\n{"checkpoints":{"0":5,"1":5}}'


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_newer, "the checkpoint's offset has version 2, and this release of rocketpoll reads 1"),
        (_of_another, "the checkpoint is of other, but option subscribe names test_"),
        (_foreign, "the checkpoint has an offset that is not rocketpoll's (it has no version)"),
        (lambda text: text[: len(text) - 30], "JSON"),
        (lambda _: "", "offset"),
    ],
    ids=["newer", "another", "foreign", "cut", "empty"],
)
def test_invalid_offset_in_a_checkpoint_ends_the_query(
    driver, rocketpoll_broker, query, sent, change, words
):
    path = query.checkpoint / "offsets" / "3"
    before = path.read_text()
    rewrite(query, 3, change)
    sent += send(rocketpoll_broker, TOPIC, 5)
    rows = query.rows()
    assert words in run(driver, query)
    assert query.rows() == rows
    rewrite(query, 3, lambda _: before)
    assert run(driver, query) is None
    assert sorted(body for *_, body in query.rows()) == sorted(sent)


def test_temporary_files_beside_checkpoint_logs_are_ignored(driver, rocketpoll_broker, query, sent):
    for log in ("offsets", "commits"):
        (query.checkpoint / log / ".4.0123-4567.tmp").write_text("v1\n{")
        (query.checkpoint / log / ".500.crc").write_text("none")
    sent += send(rocketpoll_broker, TOPIC, 5)
    assert run(driver, query) is None
    assert sorted(body for *_, body in query.rows()) == sorted(sent)
