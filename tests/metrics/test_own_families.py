"""Metrics that only this broker has change with the events that they count."""

from zlib import crc32

from support.brokers.in_process import on_broker
from support.brokers.metrics_endpoint import scrape
from support.clients.remoting_clients import pull_request
from support.stores.staged_batches import sized

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.staged_batches import CommitBatchRequestBody, StagedAttempt
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers.members import BatchRequestHeader, StageChunkRequestHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.signature import signed_fields

SECRET = "12345678"  # noqa: S105  # used by the tests only


@on_broker(metricsPort=0)
async def test_metrics_count_held_pulls_and_refused_requests(broker):
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


@on_broker(metricsPort=0, flushDiskType="SYNC_FLUSH")
async def test_metrics_have_histograms_of_flushes_and_reput_turns(broker):
    client = await broker.connect()
    await client.put("a")
    samples = await scrape(broker.controller.metrics_port)
    assert samples("rocketpoll_flush_seconds_count") >= 1
    assert samples("rocketpoll_flush_seconds_bucket", le="+Inf") >= 1
    assert samples("rocketpoll_reput_seconds_count") >= 1
    assert samples("rocketpoll_reput_seconds_sum") > 0


@on_broker(metricsPort=0)
async def test_loop_lag_metric_counts_a_late_loop(broker):
    broker.move(0.5)
    lag = broker.controller._metrics._loop_lag
    await broker.until(lambda: list(lag.cumulative())[-1][1])
    samples = await scrape(broker.controller.metrics_port)
    assert samples("rocketpoll_loop_lag_seconds_count") >= 1


@on_broker(metricsPort=0, maxConnections=1)
async def test_refused_clients_are_counted_by_limit(broker):
    client = await broker.connect()
    await client.put("a")
    turned_away = await broker.connect()
    await broker.until(lambda: broker.controller.server.refused)
    samples = await scrape(broker.controller.metrics_port)
    assert samples("rocketpoll_connections_refused_total", reason="maxConnections") == 1
    turned_away.close()


@on_broker(metricsPort=0)
async def test_metrics_show_disk_tables_and_process_with_their_limits(broker):
    for topic in ("T", "%RETRY%g"):
        broker.make_topic(topic)
    samples = await scrape(broker.controller.metrics_port)
    assert 0 < samples("rocketpoll_disk_free_bytes") <= samples("rocketpoll_disk_total_bytes")
    assert samples("rocketpoll_disk_refused_from_ratio") == 0.9
    assert samples("rocketpoll_topics") == 2  # without the system topics
    assert samples("rocketpoll_topics_max") == 10_000
    assert samples("rocketpoll_groups_max") == 5_000
    assert samples("rocketpoll_consumer_offsets") == 0
    assert samples("rocketpoll_delayed_messages", level="3") == 0
    assert samples("process_resident_memory_bytes") > 1 << 20
    assert samples("process_cpu_seconds_total") > 0
    assert samples("rocketpoll_ready") == 1
    assert samples("rocketpoll_hindered") == 0
    assert samples("rocketpoll_info", node_id="broker-a") == 1


@on_broker(metricsPort=0)
async def test_staged_batches_are_counted_from_staging_to_the_end(broker):
    broker.make_topic()
    client = await broker.connect()
    await client.agree(Extension.STAGED_BATCHES)
    _, _, body = sized(["a", "b"])

    async def ask(code, header, body=b""):
        fields = HEADERS[code].request.encode(header)
        command = RemotingCommand(code, opaque=code, ext_fields=fields, body=body)
        answer = await client.call(command)
        assert (answer.code, answer.opaque) == (0, code), answer.remark

    async def stage(batch_id):
        chunk = StageChunkRequestHeader("s", batch_id, "q", "a", 0, "T", 0)
        await ask(RequestCode.STAGE_CHUNK, chunk, body)

    async def found(*names):
        # so that each scrape is computed again
        broker.controller._metrics._exposition._cached_until = 0.0
        samples = await scrape(broker.controller.metrics_port)
        return [samples(f"rocketpoll_{name}") for name in names]

    await stage(0)
    counted = "staged_bytes", "sinks", "batches_committed_total", "batches_aborted_total"
    assert await found(*counted) == [len(body) + 16, 0, 0, 0]
    attempt = StagedAttempt(attempt="a", chunks=1, rows=2, crc=crc32(body))
    commit = encode_body(CommitBatchRequestBody(attempts=(attempt,)))
    await ask(RequestCode.COMMIT_BATCH, BatchRequestHeader("s", 0, "q"), commit)
    await stage(1)
    await ask(RequestCode.ABORT_BATCH, BatchRequestHeader("s", 1, "q"))
    assert await found(*counted) == [0, 1, 1, 1]
    assert await found("batch_hold_seconds_count", "batches_rolled_back_total") == [1, 0]
    assert await found("sinks_max", "staged_bytes_max") == [4_096, 1 << 30]


@on_broker(
    metricsPort=0,
    authenticationEnabled="true",
    initAuthenticationUser='{"username":"root","password":"12345678"}',
)
async def test_metrics_count_failed_authentication_and_denials(broker):
    client = await broker.connect()
    for key in (None, "root"):
        fields = {"topic": "T"}
        if key is not None:
            fields = signed_fields(
                fields, b"", access_key=key, secret_key="12345678"
            )  # samples of this broker
        client.send(RemotingCommand(RequestCode.GET_TOPIC_CONFIG, ext_fields=fields))
        answer = await client.receive()
        assert (answer.code == ResponseCode.NO_PERMISSION) == (key is None)
    samples = await scrape(broker.controller.metrics_port)
    assert samples("rocketpoll_authentication_failures_total") == 1
    assert samples("rocketpoll_authorization_denials_total") == 0
