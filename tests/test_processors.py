"""All processors behind one dispatcher: every supported request has a handler."""

from support.brokers.connections import finished
from support.brokers.every_request import TO_CLIENTS
from support.brokers.in_process import on_broker, tell
from support.clients.remoting_clients import send_request
from support.disks.faulty_disk import FaultyDisk

from rmq_spark.wire.codes import RequestCode


@on_broker
async def test_dispatcher_has_every_processor_and_no_client_request(broker):
    codes = broker.controller.processors.dispatch.codes
    assert not codes & TO_CLIENTS
    for code in (
        *(
            RequestCode.SEND_MESSAGE,
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.SEND_BATCH_MESSAGE,
        ),
        *(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.PULL_CHUNK),
        *(RequestCode.EXTENSIONS, RequestCode.APPEND_CHUNK, RequestCode.CONSUMER_SEND_MSG_BACK),
        RequestCode.PULL_PLACES,
        *(RequestCode.STAGE_CHUNK, RequestCode.COMMIT_BATCH),
        *(RequestCode.ABORT_BATCH, RequestCode.LAST_BATCH),
        *(RequestCode.FORGET_SINK, RequestCode.ALL_SINKS),
        *(
            RequestCode.HEART_BEAT,
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            RequestCode.QUERY_MESSAGE,
        ),
        *(
            RequestCode.QUERY_CONSUMER_OFFSET,
            RequestCode.LOCK_BATCH_MQ,
            RequestCode.PUT_KV_CONFIG,
        ),
        *(RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.GET_CONSUME_STATS),
        *(RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_CONSUMER_RUNNING_INFO),
    ):
        assert code in codes


@on_broker
async def test_disconnected_client_leaves_its_groups_and_the_send_cache(broker):
    client = await broker.connect()
    await client.heartbeat("G", "T")
    await client.put("a")
    await client.put("behind the first, which has waited for its topic")
    processors = broker.controller.processors
    assert processors.consumers.group("G").subscriptions
    assert processors.sends._cache
    client.abort()
    await broker.until(lambda: not processors.sends._cache)
    assert processors.consumers.group("G") is None


@on_broker
async def test_processors_count_into_stats_windows(broker):
    client = await broker.connect()
    await client.put("a", "b")
    processors = broker.controller.processors
    finished(processors.stats.sample(processors.broker.now_ms() + 10_000))
    assert processors.stats.topic_put_tps("T") > 0


def test_busy_sends_are_logged_once_with_their_end(tmp_path, caplog):
    disk = FaultyDisk(slow="commitlog")

    async def story(broker):
        broker.make_topic()
        processors, client = broker.controller.processors, await broker.connect()
        await client.put("a")
        disk.keep_waiting()
        client.send(send_request("waits"))
        await broker.until(lambda: processors.acknowledger.queue().size)
        broker.move(3)
        for _ in range(2):
            processors.log_busy()
        disk.let_go()
        await client.receive()
        for _ in range(2):
            processors.log_busy()

    tell(story, tmp_path, disk, flushDiskType="SYNC_FLUSH", osPageCacheBusyTimeOutMills=1_000)
    refused, taken = [
        record.getMessage() for record in caplog.records if record.name.endswith(".processors")
    ]
    assert refused.startswith("refusing sends: broker busy, the disk has kept a send waiting")
    assert taken == "accepting sends again"
