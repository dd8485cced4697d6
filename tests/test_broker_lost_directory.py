"""A store directory is moved, deleted or replaced under a running broker: every acknowledged
message survives the next start, and the broker does not touch a replacement."""

import asyncio
import shutil

import pytest
from support.brokers.processes import BrokerProcess
from support.clients.remoting_clients import BrokerClients, send_request
from test_broker_bad_stores import found_in

from rocketpoll.broker.testing import wait_until

BEFORE = ["before 0", "before 1"]
QUICK = {
    "flushDiskType": "SYNC_FLUSH",
    "syncFlushTimeout": "200",
    "checkpointIntervalMills": "200",
}


def move_away(store, aside):
    store.rename(aside)


def move_the_directory_above(store, aside):
    store.parent.rename(aside)


def replace_by_a_copy(store, aside):
    store.rename(aside)
    shutil.copytree(aside, store)


def delete(store, _):
    shutil.rmtree(store)


def empty(store, _):
    for path in store.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def delete_the_log(store, _):
    shutil.rmtree(store / "commitlog")


def replace_a_file_of_the_log(store, aside):
    shutil.move(store / "commitlog" / ("0" * 20), aside)
    shutil.copy(aside, store / "commitlog" / ("0" * 20))


LOSSES = [
    move_away,
    move_the_directory_above,
    replace_by_a_copy,
    delete,
    empty,
    delete_the_log,
    replace_a_file_of_the_log,
]
WITHOUT_THEIR_DIRECTORY = LOSSES[:4]


def files_in(root):
    """Return the files below a directory."""
    return {path: path.is_file() and path.read_bytes() for path in sorted(root.rglob("*"))}


async def sent(port, *bodies, topic="T"):
    """Send messages; return the response codes, and the last remark."""
    async with BrokerClients(port) as clients:
        client, codes = await clients.connect(), []
        for body in bodies:
            client.send(send_request(body, topic))
            answer = await client.receive()
            codes.append(answer.code)
        return codes, answer.remark


def broker_in(tmp_path, **settings):
    """Run a broker in a subdirectory."""
    (tmp_path / "own").mkdir()
    place = str(tmp_path / "own" / "store")
    return BrokerProcess(tmp_path, storePathRootDir=place, **{**QUICK, **settings})


@pytest.mark.parametrize(
    ("lose", "flush_disk_type"),
    [*((lose, "SYNC_FLUSH") for lose in LOSSES), (move_away, "ASYNC_FLUSH")],
)
def test_message_in_a_lost_directory_is_not_acknowledged(tmp_path, lose, flush_disk_type):
    with broker_in(tmp_path, flushDiskType=flush_disk_type) as broker:
        assert asyncio.run(sent(broker.port, *BEFORE))[0] == [0, 0]
        lose(tmp_path / "own" / "store", tmp_path / "aside")
        codes, remark = [0], None
        if flush_disk_type == "ASYNC_FLUSH":  # which acknowledges before it flushes
            while codes[-1] == 0:
                codes, remark = asyncio.run(sent(broker.port, "after"))
        else:
            codes, _ = asyncio.run(sent(broker.port, "after 0"))
            # FLUSH_DISK_TIMEOUT: the result is unknown; or a checkpoint came first
            assert codes in ([10], [14])
            codes, remark = asyncio.run(sent(broker.port, "after 1"))
        assert codes == [14]
        assert "the commit log is not flushed" in remark
        assert str(tmp_path / "own" / "store") in remark
        broker.stop()


@pytest.mark.parametrize("lose", WITHOUT_THEIR_DIRECTORY)
def test_replacement_of_a_lost_directory_is_not_touched_by_stop(tmp_path, lose):
    """An operator restores a copy, and stops the broker only then."""
    with broker_in(tmp_path) as broker:
        asyncio.run(sent(broker.port, *BEFORE))
        lose(tmp_path / "own" / "store", tmp_path / "aside")
        before = files_in(tmp_path / "own")
        assert asyncio.run(sent(broker.port, "after", topic="New"))[0] == [14]
        asyncio.run(sent(broker.port, "after"))
        assert broker.stop() == 1
        assert files_in(tmp_path / "own") == before
    *_, last = broker.said()
    assert last.startswith("the broker did not stop cleanly: ")
    assert str(tmp_path / "own" / "store") in last
    assert not any("Traceback" in line for line in broker.said())


@pytest.mark.parametrize("lose", [move_away, move_the_directory_above])
def test_store_directory_put_back_is_used_again(tmp_path, lose):
    store, aside = tmp_path / "own" / "store", tmp_path / "aside"
    with broker_in(tmp_path) as broker:
        asyncio.run(sent(broker.port, *BEFORE))
        lose(store, aside)
        codes, _ = asyncio.run(sent(broker.port, "after 0", "after 1"))
        # FLUSH_DISK_TIMEOUT, but it is stored; or a checkpoint came first
        assert codes in ([10, 14], [14, 14])
        stored = [*BEFORE, *["after 0"][: codes.count(10)], "again"]
        aside.rename(store if lose is move_away else store.parent)
        # refused until the next check of the directory, which may come within a send
        while (codes := asyncio.run(sent(broker.port, "again"))[0]) == [14]:
            pass
        assert codes in ([0], [10])
        # messages that are flushed late become visible late
        wait_until(lambda: found_in(broker) == stored)
        assert broker.stop() == 0
    with BrokerProcess(tmp_path, storePathRootDir=str(store)) as broker:
        assert found_in(broker) == stored
