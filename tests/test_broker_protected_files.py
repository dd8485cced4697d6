"""Files that cannot be changed, opened or extended: the broker names the file in its error, and has
all acknowledged messages when access is permitted again."""

import asyncio
import shutil
import subprocess

import pytest
from support.brokers.processes import BrokerProcess
from support.clients.remoting_clients import BrokerClients, pull_request, send_request
from support.suite.selection import some
from test_broker_bad_stores import (
    BOUND_BY_PERMISSIONS,
    FIRST_LOG,
    FIRST_QUEUE,
    IS_ROOT,
    QUEUE,
    SIZES,
    answer_to,
    found_in,
    refusal,
    served,
)

CHATTR = shutil.which("chattr")
QUICK = {**SIZES, "checkpointIntervalMills": "200"}
BEFORE = [f"before {number} " + "x" * 3_000 for number in range(5)]


async def sent(broker, count, prefix):
    """Send this number of messages; return the acknowledged ones, and the errors of the others."""
    taken, refused = [], []
    async with BrokerClients(broker.port) as clients:
        client = await clients.connect()
        for number in range(count):
            body = f"{prefix} {number} " + "x" * 3_000
            answer = await client.call(send_request(body))
            (refused if answer.code else taken).append(answer.remark if answer.code else body)
    return taken, refused


@pytest.fixture
def store(tmp_path):
    """Return the store of a stopped broker."""
    with BrokerProcess(tmp_path, **QUICK) as broker:
        assert asyncio.run(sent(broker, len(BEFORE), "before")) == (BEFORE, [])
        broker.stop()
    return tmp_path / "store"


@pytest.fixture
def attributes(tmp_path):
    """Return a function that sets or removes file attributes; all are removed at the end."""

    def change(sign, paths):
        for path in paths:
            subprocess.run([CHATTR, sign, str(path)], check=True, capture_output=True)

    tried = tmp_path / "tried"
    tried.touch()
    try:
        change("+i", [tried])
        change("-i", [tried])
    except (OSError, TypeError, subprocess.CalledProcessError):
        pytest.skip("nobody may set attributes of files here")
    yield change
    subprocess.run([CHATTR, "-R", "-f", "-i", "-a", str(tmp_path)], check=False)


def live_on(tmp_path):
    """Start, send, and stop; return the acknowledged messages, and all texts sent to clients and
    logged."""
    with BrokerProcess(tmp_path, **QUICK) as broker:
        taken, refused = asyncio.run(sent(broker, 45, "then"))
        broker.stop()
        return taken, refused + broker.log()


SERVED = {
    "the checkpoint": "checkpoint",
    "the tables": "config",
    "the manifest": "config/manifest.json",
    "a queue": QUEUE,
}
REFUSED = {"the store": ".", "the lock": "lock", "a file of the log": FIRST_LOG}
ATTRIBUTES = {"never changed": "i", "only made longer": "a"}


@pytest.mark.parametrize(
    ("place", "attribute"),
    some(
        [
            pytest.param(place, attribute, id=f"{name}, {what}")
            for what, attribute in ATTRIBUTES.items()
            for name, place in SERVED.items()
            if (place, attribute) != (QUEUE, "a")  # append-only is enough for a queue
        ],
        "ROCKETPOLL_PROTECTED",
        3,
    ),
)
def test_immutable_or_append_only_files_are_reported_and_lose_nothing(
    store, attributes, place, attribute
):
    attributes(f"+{attribute}", [store / place])
    taken, said = live_on(store.parent)
    attributes(f"-{attribute}", [store / place])
    assert taken
    assert any("(see lsattr)" in line and str(store / place) in line for line in said)
    assert [line for line in said if "Traceback" in line or "resolved: " in line] == []
    assert served(store.parent) == (BEFORE + taken, [])


@pytest.mark.parametrize("place", REFUSED.values(), ids=REFUSED)
def test_immutable_store_file_is_refused_at_start(store, attributes, place):
    attributes("+i", [store / place])
    said = refusal(store)
    attributes("-i", [store / place])
    assert "Operation not permitted" in said
    assert str(store / place) in said
    assert served(store.parent) == (BEFORE, [])


@pytest.mark.skipif(IS_ROOT and not shutil.which("setpriv"), reason="permissions do not bind root")
def test_unreadable_queue_file_is_named_and_not_taken_for_damaged(store):
    (store / FIRST_QUEUE).chmod(0)
    with BrokerProcess(store.parent, by=BOUND_BY_PERMISSIONS, **QUICK) as broker:
        answer = answer_to(broker, pull_request(0))
        assert (answer.code, "Permission denied" in answer.remark) == (14, True)
        taken, _ = asyncio.run(sent(broker, 3, "then"))
        assert broker.stop() == 0
        said = broker.log()
    assert f"{store / FIRST_QUEUE} cannot be read: Permission denied" in said[0]
    assert "are not compared with the log" in said[0]
    assert not any("damaged" in line or "resolved: " in line for line in said)
    (store / FIRST_QUEUE).chmod(0o600)
    assert served(store.parent) == (BEFORE + taken, [])


@pytest.mark.parametrize("blocks", [8, 100])
def test_file_size_limit_is_reported_and_loses_nothing(store, blocks):
    """As with `ulimit -f` in a shell, or LimitFSIZE= of a service."""
    by = ["sh", "-c", f'ulimit -f {blocks} && exec "$@"', "sh"]
    with BrokerProcess(store.parent, by=by, **QUICK) as broker:
        taken, refused = asyncio.run(sent(broker, 25, "then"))
        assert found_in(broker) == BEFORE + taken
        broker.stop()
    log = store / "commitlog" / ("0" * 20)
    assert refused
    assert all("(ulimit -f)" in each and str(log) in each for each in refused)
    assert served(store.parent) == (BEFORE + taken, [])
