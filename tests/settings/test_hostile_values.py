"""Invalid values of each setting are refused with the bounds; the broker serves at the bounds. New
settings are covered without a change here."""

import asyncio
from dataclasses import fields

import pytest
from support.brokers.in_process import SMALL, tell
from support.brokers.processes import BrokerProcess
from support.clients.remoting_clients import (
    BrokerClients,
    batch_request,
    pull_request,
    send_request,
)
from support.suite.selection import some

from rocketpoll.broker.settings.settings import KEYS, SECTIONS, ConfigError, config_of

BOUNDS = {
    name: key.setting.value_type.bounds
    for name, key in KEYS.items()
    if key.setting.value_type.bounds
}
NO_NUMBERS = ["", "abc", "nan", "inf", "-1", "1e3", "0x10", "1_0", "1.5", "+1", "\u0663", "1 0"]
LARGE = [1 << bits for bits in (31, 32, 62, 63, 64, 100)]

# Settings whose lowest value refuses what their name says.
REFUSING = {
    "brokerPermission": "0",
    "maxGroups": "1",
    "maxMessageSize": "1",
    "maxQueues": "1",
    "maxSubscriptionBytes": "1",
    "maxTopics": "1",
}
SAID = {
    "brokerPermission": "the broker sending message is forbidden",
    "maxMessageSize": "is over 1",
}
# Settings whose lowest value disconnects clients that are a moment late, as a slow machine is (see
# the last test), or requires an empty disk.
MOMENTS = {
    "clientExpiredTimeoutMills",
    "diskSpaceWarningLevelRatio",
    "firstFrameTimeoutMills",
    "osPageCacheBusyTimeOutMills",
    "partialFrameTimeoutMills",
    "serverChannelMaxIdleTimeMills",
    "slowReaderTimeoutMills",
}
FULL = {"diskSpaceWarningLevelRatio": "1"}
PORTS = {"listenPort": "0", "metricsPort": ""}
LOWEST = {name: str(low) for name, (low, _) in BOUNDS.items() if name not in {*REFUSING, *MOMENTS}}
HIGHEST = {name: str(high) for name, (_, high) in BOUNDS.items()}


@pytest.mark.parametrize("name", BOUNDS)
def test_number_setting_out_of_bounds_is_refused(name):
    low, high = BOUNDS[name]
    texts = [*NO_NUMBERS, str(low - 1), *map(str, (high + 1, *(n for n in LARGE if n > high)))]
    empty_says_none = name == "metricsPort"
    for text in texts[empty_says_none:]:
        with pytest.raises(ConfigError, match=f"{name} must be a number from {low} to {high}, not"):
            config_of({name: text})


def test_numeric_settings_have_bounds_without_overflow():
    config = config_of({})
    for section in SECTIONS:
        values = getattr(config, section) if section else config
        for field in fields(values):
            if type(getattr(values, field.name)) in {int, float}:
                key = field.metadata["setting"].key
                assert BOUNDS[key][1] <= 1 << 50, key


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("messageDelayLevel", "36501d"),
        ("messageDelayLevel", "999999999d"),
        ("messageDelayLevel", " ".join(["1s"] * 1_025)),
        ("messageDelayLevel", "\u0663s"),
        ("deleteWhen", "\u0663"),
        ("deleteWhen", ""),
    ],
)
def test_lists_of_numbers_have_bounds_too(name, text):
    with pytest.raises(ConfigError, match=f"{name} must be"):
        config_of({name: text})


async def exchange(client, before):
    """Send in several ways; return the bodies in two queues."""
    sent = {0: [f"{before}-{number}" * 20 for number in range(5)], 1: [f"{before} tagged", "x"]}
    for text in sent[0]:
        assert (await client.call(send_request(text))).code == 0
    more = {"properties": {"KEYS": "key", "TAGS": "a", "WAIT": "true"}, "queue_id": 1}
    assert (await client.call(send_request(sent[1][0], **more))).code == 0
    assert (await client.call(batch_request("x", queue_id=1))).code == 0
    delayed = {"properties": {"DELAY": "18"}, "queue_id": 1}
    assert (await client.call(send_request("late", **delayed))).code == 0
    await client.heartbeat("G", "T")
    return sent


async def all_of(client, queue_id, count):
    """Return this number of bodies of a queue; a pull may return a single message."""
    found, asked = [], 0
    while len(found) < count and (asked := asked + 1) < 2_000:
        answer = await client.pull(len(found), queue_id=queue_id, suspend_ms=100)
        found += answer.bodies
    return found


@pytest.mark.parametrize("bounds", [LOWEST, HIGHEST], ids=["the lowest", "the highest"])
def test_broker_with_all_settings_at_their_bounds_serves_after_a_restart(tmp_path, bounds):
    kept = {0: [], 1: []}

    async def story(broker):
        client = await broker.connect()
        broker.make_topic("T")
        for queue_id, texts in (await exchange(client, len(kept[0]))).items():
            kept[queue_id] += texts
        for queue_id, texts in kept.items():
            assert await all_of(client, queue_id, len(texts)) == texts

    settings = {**bounds, **PORTS}
    if bounds is LOWEST:  # at which a request and a log file must still have room
        settings |= {"maxMessageSize": "900"}
    tell(story, tmp_path, **settings)
    tell(story, tmp_path, **settings)


@pytest.mark.parametrize("name", REFUSING)
def test_lowest_settings_refuse_requests_with_a_reason(tmp_path, name):
    async def story(broker):
        client = await broker.connect()
        answers = [await client.call(send_request("body", topic=t)) for t in ("T", "U")]
        answers.append(await client.call(pull_request(0, suspend_ms=1)))
        assert SAID.get(name, f"({name}=1)") in " ".join(
            [*(each.remark or "" for each in answers), await beat(client)]
        )

    async def beat(client):
        try:
            await client.heartbeat("G", "T")
        except AssertionError as refused:
            return str(refused)
        return ""

    tell(story, tmp_path, **{name: REFUSING[name]})


# ---- each setting alone, on a broker process that is killed

ALONE = [
    (name, str(bound))
    for name, bounds in BOUNDS.items()
    for bound in bounds
    if name not in PORTS and REFUSING.get(name) != str(bound) != FULL.get(name)
]


@pytest.mark.deep
@pytest.mark.parametrize(("name", "value"), some(ALONE, "ROCKETPOLL_HOSTILE_SETTINGS", 12))
def test_broker_with_one_setting_at_a_bound_serves_after_a_kill(tmp_path, name, value):
    settings = {name: value}
    if name in {"maxFrameBytes", "mappedFileSizeCommitLog"} and int(value) < int(
        SMALL["maxMessageSize"]
    ):
        settings["maxMessageSize"] = "900"
    if name == "suspendTimeoutMillsMin":
        settings["suspendTimeoutMillsMax"] = str(BOUNDS[name][1])
    if name == "maxMessageSize":
        settings["mappedFileSizeCommitLog"] = str(1 << 25)
    kept = {0: [], 1: []}

    async def life(port):
        async with BrokerClients(port) as clients:
            client = await clients.connect()
            for queue_id, texts in (await exchange(client, len(kept[0]))).items():
                kept[queue_id] += texts
            for queue_id, texts in kept.items():
                assert await all_of(client, queue_id, len(texts)) == texts

    for _ in range(2):
        with BrokerProcess(tmp_path, **settings) as broker:
            asyncio.run(asyncio.wait_for(life(broker.port), 60))
            broker.kill()
            assert not [line for line in broker.said() if "ERROR" in line or "Traceback" in line]
