"""Retention and exactly once: manifests outlive their rows, and the broker keeps a sink's last
batch id longest.

The brokers here keep messages for three days, in small files, and the tests move their clock.
"""

from contextlib import contextmanager
from datetime import timedelta

import pytest
from support.spark.exactly_once_sink import CommittingSink
from support.spark.streaming_engine import Engine, assert_read

from rmq_spark.client.manifest import commits_topic_name, decode_manifest
from rmq_spark.spark.errors import DataLoss, WriteError
from rocketpoll import EmbeddedBroker, read_committed

FILE_BYTES = 1 << 16
ROWS = 150  # per batch: most of a log file
DAY = timedelta(hours=24)
DAYS_KEPT, DAYS = 3, 6
VISIBLE_TO = [pytest.param("committed_readers", marks=pytest.mark.deep), "all"]


pytestmark = pytest.mark.usefixtures("own_producers")


@contextmanager
def keeping(tmp_path):
    settings = {
        "mappedFileSizeCommitLog": FILE_BYTES,
        "maxMessageSize": FILE_BYTES,
        "fileReservedTime": DAYS_KEPT * 24,
    }
    with EmbeddedBroker(tmp_path / "store", **settings) as broker:
        broker.create_topic("T", 2)
        yield broker


class Life:
    """Commits a batch a day; batches are found by number."""

    def __init__(self, broker, sink):
        self._broker, self._sink = broker, sink
        self.batches = {}

    def days(self, count):
        for _ in range(count):
            batch = len(self.batches)
            self.batches[batch] = self._sink.write(batch, self._sink.rows(ROWS, ROWS))
            self._broker.clock.advance(DAY)

    @property
    def named(self):
        """Return the batches that still have a manifest."""
        commits = self._broker.messages(commits_topic_name("T"))
        return sorted({decode_manifest(message.body).id.batch_id for message in commits})

    @property
    def whole(self):
        """Return the batches whose rows all still exist."""
        left = {message.text for message in self._broker.messages("T")}
        return [batch for batch, rows in self.batches.items() if left.issuperset(rows)]

    def rows(self, batches):
        return [row for batch in batches for row in self.batches[batch]]


@pytest.mark.parametrize("visible_to", VISIBLE_TO)
def test_manifest_is_retained_as_long_as_its_rows(monkeypatch, tmp_path, visible_to):
    with keeping(tmp_path) as broker:
        life = Life(broker, CommittingSink(monkeypatch, broker, "T", visibleTo=visible_to))
        behind = Engine(broker.address, subscribe="T", isolation="committed")
        life.days(1)
        behind.start()
        behind.run()
        behind.stop()
        life.days(DAYS)
        assert 0 < len(life.whole) < len(life.batches), "nothing has expired, or all"
        assert set(life.named) >= set(life.whole)

        table = read_committed("T", broker.address)
        assert sorted(body.decode() for body in table["body"].to_pylist()) == sorted(
            life.rows(life.whole)
        )
        anew = Engine(broker.address, subscribe="T", isolation="committed")
        anew.start()
        anew.run()
        assert_read(anew, life.rows(life.whole))
        anew.stop()

        behind.start()
        with pytest.raises(DataLoss):
            behind.run()
        behind.options["failOnDataLoss"] = "false"
        behind.start()
        behind.run()
        found = {row.body for row in behind.rows()}
        assert found >= {*life.batches[0], *life.rows(life.whole)}
        assert len(found) == len(behind.rows()), "a row came twice"
        behind.stop()


def test_last_batch_of_a_sink_survives_retention_and_restarts(monkeypatch, tmp_path):
    with keeping(tmp_path) as broker:
        sink = CommittingSink(monkeypatch, broker, "T", visibleTo="all", retryTimeoutMs="300")
        life = Life(broker, sink)
        life.days(2)
        for _ in range(2 * DAYS):  # the sink is idle while others send
            broker.send("T", "other" * (FILE_BYTES // 10))
            broker.clock.advance(DAY)
        assert life.whole == []
        broker.restart()

        again = sink.send(1, [life.batches[1]])  # Spark repeats its last batch
        assert all(report.rows.staged.is_committed for report in again)
        sink.commit(1, again)
        assert life.whole == []
        with pytest.raises(WriteError, match="has committed batch 1 of"):
            sink.send(0, sink.rows(1))
        anew = CommittingSink(
            monkeypatch, broker, "T", "another", visibleTo="all", retryTimeoutMs="300"
        )
        with pytest.raises(WriteError, match="If the checkpoint was deleted, restore it"):
            anew.send(0, anew.rows(1))
        life.days(1)
        assert life.whole == [2]
