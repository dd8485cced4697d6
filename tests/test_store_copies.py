"""Copies of a store, made as docs/operate.md says, work."""

import shutil
import subprocess
import sys

from support.brokers.in_process import run, small_broker, started


def test_copy_of_a_stopped_brokers_store_can_be_served(tmp_path):
    store, copy = tmp_path / "store", tmp_path / "copy"

    async def whole():
        async with started(small_broker(store)) as broker:
            client = await broker.connect()
            for body in ("a", "b", "c"):
                await client.put(body)
            broker.controller.tables.groups.find_or_create("G")
            broker.controller.tables.offsets.commit("G", "T", 0, 2)
        shutil.copytree(store, copy)
        async with started(small_broker(store)) as broker:
            await (await broker.connect()).put("not in the copy")
            async with started(small_broker(copy)) as other:
                client = await other.connect()
                assert (await client.pull(0)).bodies == ["a", "b", "c"]
                assert other.controller.tables.offsets.query("G", "T", 0) == 2
                assert not other.store.state().recovered_from_crash

    run(whole())
    command = [sys.executable, "-m", "rocketpoll.broker.store.tools.verify", str(copy)]
    looked = subprocess.run(command, check=False, capture_output=True, text=True)
    assert looked.returncode == 0, looked.stdout + looked.stderr


def test_snapshot_of_a_running_brokers_store_recovers(tmp_path):
    """Nothing changes while the copy is made, as with a file system's snapshot."""
    store, copy = tmp_path / "store", tmp_path / "copy"

    async def whole():
        async with started(small_broker(store, flushDiskType="SYNC_FLUSH")) as broker:
            client = await broker.connect()
            for body in ("a", "b"):
                await client.put(body)
            shutil.copytree(store, copy)
        async with started(small_broker(copy)) as other:
            assert other.store.state().recovered_from_crash
            assert (await (await other.connect()).pull(0)).bodies == ["a", "b"]

    run(whole())
