"""This broker's own metrics: each is moved by what it says."""

from __future__ import annotations

from broker_clients import pull_request
from broker_stories import tell
from scrapes import scrape

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.command import RemotingCommand


def test_pulls_that_wait_and_requests_that_are_refused_are_counted(tmp_path):
    async def story(broker):
        broker.make_topic()
        client, other = await broker.connect(), await broker.connect()
        client.send(pull_request(0, suspend_ms=60_000))
        await broker.held(1)
        for code in (RequestCode.GET_CONSUMER_LIST_BY_GROUP, 987_654, 987_655):
            other.send(RemotingCommand(code, ext_fields={"consumerGroup": "nobody"}))
            await other.receive()
        samples = await scrape(broker.controller.metrics_port)
        assert samples("rocketpoll_pulls_held") == 1
        assert samples("rocketpoll_queues_held") == 1
        assert samples("rocketpoll_pulls_rescued_total") == 0
        assert samples("rocketpoll_connections") == 2
        refused = "rocketpoll_requests_refused_total"
        assert samples(refused, request="GET_CONSUMER_LIST_BY_GROUP", reason="SYSTEM_ERROR") == 1
        assert samples(refused, request="unknown", reason="REQUEST_CODE_NOT_SUPPORTED") == 2

    tell(story, tmp_path, metricsPort=0)


def test_flushes_and_turns_of_reput_are_in_histograms(tmp_path):
    async def story(broker):
        client = await broker.connect()
        await client.put("a")
        samples = await scrape(broker.controller.metrics_port)
        assert samples("rocketpoll_flush_seconds_count") >= 1
        assert samples("rocketpoll_flush_seconds_bucket", le="+Inf") >= 1
        assert samples("rocketpoll_reput_seconds_count") >= 1
        assert samples("rocketpoll_reput_seconds_sum") > 0

    tell(story, tmp_path, metricsPort=0, flushDiskType="SYNC_FLUSH")


def test_how_late_the_loop_is_shows_once_it_has_been_late(tmp_path):
    async def story(broker):
        broker.move(0.5)
        lag = broker.controller._metrics._loop_lag
        await broker.until(lambda: list(lag.cumulative())[-1][1])
        samples = await scrape(broker.controller.metrics_port)
        assert samples("rocketpoll_loop_lag_seconds_count") >= 1

    tell(story, tmp_path, metricsPort=0)


def test_clients_that_are_turned_away_are_counted_by_the_limit(tmp_path):
    async def story(broker):
        client = await broker.connect()
        await client.put("a")
        turned_away = await broker.connect()
        await broker.until(lambda: broker.controller.server.refused)
        samples = await scrape(broker.controller.metrics_port)
        assert samples("rocketpoll_connections_refused_total", reason="maxConnections") == 1
        turned_away.close()

    tell(story, tmp_path, metricsPort=0, maxConnections=1)


def test_disk_tables_and_process_are_shown_with_their_limits(tmp_path):
    async def story(broker):
        samples = await scrape(broker.controller.metrics_port)
        assert 0 < samples("rocketpoll_disk_free_bytes") <= samples("rocketpoll_disk_total_bytes")
        assert samples("rocketpoll_disk_refused_from_ratio") == 0.9
        assert samples("rocketpoll_topics") == len(broker.controller.tables.topics.topics)
        assert samples("rocketpoll_topics_max") == 10_000
        assert samples("rocketpoll_groups_max") == 5_000
        assert samples("rocketpoll_consumer_offsets") == 0
        assert samples("rocketpoll_delayed_messages", level="3") == 0
        assert samples("process_resident_memory_bytes") > 1 << 20
        assert samples("process_cpu_seconds_total") > 0
        assert samples("rocketpoll_ready") == 1
        assert samples("rocketpoll_hindered") == 0
        assert samples("rocketpoll_info", node_id="broker-a") == 1

    tell(story, tmp_path, metricsPort=0)
