"""Deletions by retention are visible: log, metrics, runtime information, health."""

import pytest
from support.brokers.in_process import on_broker, tell
from support.brokers.metrics_endpoint import scrape
from support.brokers.state_tables import offsets_in
from support.disks.faulty_disk import FillingDisk, ManualClock

from rmq_spark.cli.cluster.cluster_command import BrokerStatus, check_broker
from rmq_spark.wire.bodies.body_codec import decode_body
from rmq_spark.wire.bodies.operators import KVTable
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.names import SCHEDULE_TOPIC
from rocketpoll.broker.common.recent_losses import RecentLosses
from rocketpoll.broker.process.operator_log import TextFormatter
from rocketpoll.broker.runtime.deletion_log import DeletionLog
from rocketpoll.broker.store.config import StoreConfig
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.results import DeletedFiles, DeletedSpan

NOW = 1_700_000_000_000
HOUR = 3_600_000
MIB = 1 << 20


@pytest.fixture
def clock():
    return ManualClock(NOW)


class Recorded:
    """A deletion log with offsets of groups and delay levels."""

    def __init__(self, root, clock):
        self.offsets = offsets_in(root)
        self.delivered = {}
        self.losses = RecentLosses(clock)
        config = StoreConfig(store_path_root_dir=root)
        self.log = DeletionLog(lambda: config, self.offsets, lambda: self.delivered, self.losses)


@pytest.fixture
def recorded(tmp_path, clock):
    return Recorded(tmp_path, clock)


def deleted(*spans, expired=0, forced=0):
    return DeletedFiles(
        expired_files=expired,
        forced_files=forced,
        size_bytes=(expired + forced) * MIB,
        first_ms=NOW - HOUR,
        next_ms=NOW,
        used_ratio=0.91,
        log_offset=5 * MIB,
        spans=tuple(DeletedSpan(*span) for span in spans),
    )


def the_lines(caplog):
    """Return level and lines of one deletion; check that all lines fit 200 columns."""
    loggers = "deletion_log", "recent_losses"
    records = [each for each in caplog.records if each.name.endswith(loggers)]
    caplog.clear()
    (level,) = {each.levelname for each in records}
    assert all(len(TextFormatter().format(each)) <= 200 for each in records)
    return level, "\n".join(each.getMessage() for each in records)


def test_expired_messages_that_all_groups_consumed_are_routine(recorded, caplog):
    caplog.set_level("INFO")
    recorded.offsets.commit("G", "T", 0, 100)
    recorded.log.report(deleted(("T", 0, 0, 100), expired=2))
    level, text = the_lines(caplog)
    assert level == "INFO"
    assert "deleted 2 files of the commit log (2.0 MiB, 100 messages stored from 20" in text
    assert recorded.losses.recent() == ()
    assert (recorded.log.expired_files, recorded.log.forced_files) == (2, 0)
    assert recorded.log.unconsumed_messages == 0


def test_expired_messages_that_a_group_has_not_consumed_are_a_warning_that_names_it(
    recorded, caplog
):
    recorded.offsets.commit("slow", "T", 0, 90)
    recorded.offsets.commit("slower", "T", 0, 3)
    recorded.offsets.commit("quick", "T", 0, 100)
    recorded.offsets.commit("elsewhere", "T", 1, 0)
    recorded.log.report(deleted(("T", 0, 5, 100), expired=1))
    level, text = the_lines(caplog)
    assert level == "WARNING"
    assert "Groups that had not consumed them: slower (95), slow (10)." in text
    assert "Raise fileReservedTime (72 hours)" in text
    assert recorded.log.unconsumed_messages == 105
    [loss] = recorded.losses.recent()
    assert (loss.kind, loss.is_failure, loss.count) == ("expired unconsumed", False, 105)
    assert "slower (95), slow (10)." in loss.text


def test_deletion_log_names_only_the_groups_that_lost_most(recorded, caplog):
    for number in range(8):
        recorded.offsets.commit(f"G{number}", "T", 0, number)
    recorded.log.report(deleted(("T", 0, 0, 8), expired=1))
    _, text = the_lines(caplog)
    assert "G0 (8), G1 (7), G2 (6), G3 (5), G4 (4), and 3 more." in text


def test_undelivered_delayed_messages_are_counted(recorded, caplog):
    recorded.delivered = {3: 40}
    recorded.log.report(deleted((SCHEDULE_TOPIC, 2, 10, 50), expired=1))
    level, text = the_lines(caplog)
    assert level == "WARNING"
    assert "Delayed messages that were not delivered yet: 10." in text
    assert recorded.log.unconsumed_messages == 10


def test_forced_deletion_is_a_warning_and_stays_a_recent_loss_for_an_hour(recorded, clock, caplog):
    recorded.log.report(deleted(("T", 0, 0, 7), forced=3, expired=1))
    level, text = the_lines(caplog)
    assert level == "WARNING"
    assert "The disk is 91% full (diskSpaceCleanForciblyRatio), and 1 file had expired" in text
    assert "cleanFileForciblyEnable=false" in text
    assert (recorded.log.expired_files, recorded.log.forced_files) == (1, 3)
    [loss] = recorded.losses.recent()
    assert (loss.kind, loss.is_failure, loss.count) == ("deleted early", True, 7)
    assert "deleted 4 files" in loss.text
    clock.now_ms += HOUR
    assert recorded.losses.recent() == (loss,)
    clock.now_ms += 1
    assert recorded.losses.recent() == ()


async def health_of(client, code=RequestCode.GET_BROKER_RUNTIME_INFO):
    info = decode_body(KVTable, (await client.ask(code)).body).table
    return {check.subject: check for check in check_broker(BrokerStatus("C", "a", 0, "a:1", info))}


def test_full_disk_that_deletes_unread_messages_shows_in_log_metrics_and_health(tmp_path, caplog):
    disk = FillingDisk(LocalDisk())

    async def story(broker):
        client = await broker.connect()
        broker.make_topic("T")
        await client.put(*["x" * 1_000] * 40)
        broker.controller.tables.offsets.commit("billing", "T", 0, 0)
        retention = (await health_of(client))["broker a: losses"]
        assert (retention.remedy, retention.detail[:22]) == (None, "nothing was lost in th")
        disk.ratio = 0.87
        broker.controller.housekeeping.clean()
        await broker.controller.housekeeping.wait_idle()
        low = broker.store.queue_offsets("T", 0).first
        assert 0 < low < 40
        _, text = the_lines(caplog)
        assert f"Groups that had not consumed them: billing ({low})." in text
        metrics = await scrape(broker.controller.metrics_port)
        assert metrics("rocketpoll_files_deleted_total", reason="disk_full") > 0
        assert metrics("rocketpoll_files_deleted_total", reason="expired") == 0
        assert metrics("rocketpoll_unconsumed_messages_deleted_total") == low
        assert metrics("rocketpoll_disk_deleted_from_ratio") == 0.85
        retention = (await health_of(client))["broker a: deleted early"]
        assert not retention.is_ok
        assert "read the broker's log" in retention.remedy
        assert f"billing ({low})" in retention.detail

    sizes = {"mappedFileSizeCommitLog": 8_192, "maxMessageSize": 4_096}
    tell(story, tmp_path, disk, metricsPort=0, mappedFileSizeConsumeQueue=400, **sizes)


@on_broker(metricsPort=0, cleanFileForciblyEnable=False)
async def test_disk_ratio_from_which_messages_are_refused_stands_in_where_none_are_deleted(broker):
    metrics = await scrape(broker.controller.metrics_port)
    assert metrics("rocketpoll_disk_deleted_from_ratio") == 0.9
