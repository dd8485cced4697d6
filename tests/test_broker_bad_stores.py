"""Brokers on damaged stores report the damage and its place in one line, and lose nothing more."""

import asyncio
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from support.brokers.in_process import SMALL
from support.brokers.processes import BrokerProcess, run_broker
from support.clients.remoting_clients import BrokerClients, pull_request, send_request
from support.suite.selection import some, spread

from rocketpoll.broker.testing import wait_until

SIZES = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": str(1 << 16),
    "maxMessageSize": "30000",
    "mappedFileSizeConsumeQueue": "200",
}
SENT = [f"{number} " + "x" * 6_000 for number in range(30)]
LOG, QUEUE = "commitlog", "consumequeue/T/0"
FIRST_LOG, SECOND_LOG, LAST_LOG = (f"{LOG}/{at:020d}" for at in (0, 1 << 16, 1 << 17))
FIRST_QUEUE, LAST_QUEUE = (f"{QUEUE}/{at:020d}" for at in (0, 400))
TOPICS, MANIFEST = "config/topics.json", "config/manifest.json"
IS_ROOT = os.geteuid() == 0
BOUND_BY_PERMISSIONS = (
    ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if IS_ROOT else []
)
_CHECKED = re.compile(r',?"checksum":\d+}$')
NO_JSON, OTHER_KIND = b"\0\xff no json", b'{"topicConfigTable": 7, "spans": [1], "safeOffset": "x"}'


@pytest.fixture(scope="module")
def good_stores(tmp_path_factory):
    """Return the stores of a stopped and of a killed broker, with their messages."""
    roots = {}
    for end in ("stop", "kill"):
        roots[end] = tmp_path_factory.mktemp(end)
        with BrokerProcess(roots[end], **SIZES) as broker:
            asyncio.run(send_all(broker))
            getattr(broker, end)()
    return roots


MOUNTING = (
    ["unshare", "--mount"] if IS_ROOT else ["unshare", "--user", "--map-root-user", "--mount"]
)
"""Command prefix for a private disk of one process, which is unmounted with the process."""
CAN_MOUNT = not subprocess.run(
    [*MOUNTING, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
).returncode
needs_mounts = pytest.mark.skipif(
    not CAN_MOUNT, reason="nobody may mount anything here, not even for himself"
)


def mounted(*commands):
    """Return a command that runs shell commands, and then becomes another command."""
    return [*MOUNTING, "sh", "-c", f'{" && ".join(commands)} && exec "$@"', "sh"]


AFTER_BOTH_ENDS = pytest.mark.parametrize("good", ["stop", "kill"], indirect=True)


@pytest.fixture
def good(good_stores, request):
    """Return an intact store, of a killed broker by default; tests do not change it."""
    return good_stores[getattr(request, "param", "kill")] / "store"


@pytest.fixture
def store(good, tmp_path):
    """Return a copy of an intact store, to be damaged."""
    return shutil.copytree(good, tmp_path / "store")


async def put_some(broker, *texts):
    async with BrokerClients(broker.port) as clients:
        await (await clients.connect()).put(*texts)


async def send_all(broker):
    async with BrokerClients(broker.port) as clients:
        client = await clients.connect()
        for number, body in enumerate(SENT):
            await client.put(body, properties={"KEYS": f"k{number}"} if number % 2 else {})


def found_in(broker):
    """Return the messages of a consumer that follows the broker's offsets."""

    async def pull_all():
        async with BrokerClients(broker.port) as clients:
            client, found, at = await clients.connect(), [], 0
            while (answer := await client.pull(at)).code != 19:
                assert answer.next_offset > at
                found += answer.bodies
                at = answer.next_offset
            return found

    return asyncio.run(pull_all())


def served(root):
    """Return the messages that a broker serves from a store, and its log lines."""
    with BrokerProcess(root, **SIZES) as broker:
        found = found_in(broker)
        assert broker.stop() == 0
        return found, broker.log()


def refusal(store, by=()):
    """Return the only line of a broker that refuses to start."""
    settings = {**SMALL, **SIZES, "storePathRootDir": store}
    code, out, err = run_broker(*(f"{name}={value}" for name, value in settings.items()), by=by)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1, err
    assert err.startswith("the broker cannot run: ")
    return err


def remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def put_right(store, good, name):
    """Restore a store, and remove additional files."""
    remove(store / name)
    if (good / name).is_dir():
        shutil.copytree(good / name, store / name)
    elif (good / name).exists():
        shutil.copy(good / name, store / name)


def longer_by(size):
    return lambda path: os.truncate(path, path.stat().st_size + size)


def directory(path):
    remove(path)
    path.mkdir()


def holding(content):
    def write(path):
        remove(path)
        path.write_bytes(content)

    return write


def link_to_nowhere(path):
    remove(path)
    path.symlink_to("nowhere")


def zeros(path):
    with path.open("r+b") as file:
        file.seek(1 << 14)
        file.write(bytes(1 << 13))


def flipped_bit_of(number):
    def flip(path):
        data = bytearray(path.read_bytes())
        data[data.index(b"%d xxx" % number) + 1_000] ^= 1
        path.write_bytes(data)

    return flip


def no_bytes(path):
    os.truncate(path, 0)


def both(content):
    """Return a table and its backup with this content."""

    def write(path):
        path.write_bytes(content)
        path.with_name(f"{path.name}.bak").write_bytes(content)

    return write


REFUSED = {
    "a log file is shorter": (FIRST_LOG, longer_by(-20)),
    "a log file is longer": (LAST_LOG, longer_by(20)),
    "a log file is missing between others": (SECOND_LOG, remove),
    "a log file is a directory": (SECOND_LOG, directory),
    "a log file leads nowhere": (SECOND_LOG, link_to_nowhere),
    "the log is a file": (LOG, holding(b"x")),
    "the log has a file with another name": (f"{LOG}/notes.txt", holding(b"x")),
    "a queue file is shorter": (FIRST_QUEUE, longer_by(-20)),
    "a queue file is longer": (LAST_QUEUE, longer_by(20)),
    "a queue file is a directory": (FIRST_QUEUE, directory),
    "a queue file leads nowhere": (LAST_QUEUE, link_to_nowhere),
    "a queue is a file": (QUEUE, holding(b"x")),
    "queues are a file": ("consumequeue", holding(b"x")),
    "a topic has a file": ("consumequeue/T/notes.txt", holding(b"x")),
    "a queue has a file with another name": (f"{QUEUE}/notes.txt", holding(b"x")),
    "tables are a file": ("config", holding(b"x")),
    "the checkpoint is a directory": ("checkpoint", directory),
    "abort is a directory": ("abort", directory),
    "the lock is a directory": ("lock", directory),
    "a table is a directory": (TOPICS, directory),
    "a table and its backup are no JSON": (TOPICS, both(NO_JSON)),
    "a table and its backup are of another kind": (TOPICS, both(OTHER_KIND)),
    "the manifest and its backup are no JSON": (MANIFEST, both(NO_JSON)),
    "the manifest has no queue's numbers": (
        MANIFEST,
        both(b'{"safeOffset": 1, "spans": {"T": [0, 0]}}'),
    ),
}


@pytest.mark.parametrize(("name", "break_it"), spread(9, REFUSED.values()), ids=REFUSED)
def test_broken_store_is_refused_in_one_line_and_served_after_repair(store, good, name, break_it):
    break_it(store / name)
    said = refusal(store)
    # For a missing file, the line names the directory and the next file.
    assert str(store / name) in said or (str(store / LOG) in said and Path(name).name in said)
    put_right(store, good, name)
    put_right(store, good, f"{name}.bak")
    assert served(store.parent)[0] == SENT


@pytest.mark.parametrize(
    ("name", "break_it"),
    [(FIRST_LOG, longer_by(-9_000)), (LAST_LOG, longer_by(-60_000)), (SECOND_LOG, remove)],
    ids=["the first is cut", "the last is cut", "one is missing"],
)
def test_truncated_log_file_is_served_without_its_loss_after_the_advice(store, name, break_it):
    break_it(store / name)
    advice = re.search(rf"truncate -s \d+ {re.escape(str(store / name))}", refusal(store))
    subprocess.run(shlex.split(advice[0]), check=True)
    found, said = served(store.parent)
    assert 15 <= len(found) < len(SENT)
    assert found == [body for body in SENT if body in found]
    assert str(store / name) in said[0]


MADE_GOOD = {
    "a queue file has no bytes": (FIRST_QUEUE, no_bytes),
    "a queue file is missing": (LAST_QUEUE, remove),
    "the checkpoint is garbage": ("checkpoint", holding(b"\xff" * 4096)),
    "the checkpoint is short": ("checkpoint", holding(b"x")),
    "abort is garbage": ("abort", holding(b"\xff")),
    "the lock has content": ("lock", holding(b"\xff" * 100)),
    "queues have a file beside them": ("consumequeue/notes.txt", holding(b"x")),
}


@AFTER_BOTH_ENDS
@pytest.mark.parametrize(("name", "break_it"), spread(6, MADE_GOOD.values()), ids=MADE_GOOD)
def test_derived_file_that_is_broken_is_rebuilt_without_loss(store, name, break_it):
    break_it(store / name)
    assert served(store.parent) == (SENT, [])


@AFTER_BOTH_ENDS
@pytest.mark.parametrize("numbers", ["0, 30, 5", "0, 0, 20", "0, 5, 30", f"0, 0, {1 << 60}"])
def test_forged_manifest_hides_no_messages_and_its_rebuild_is_logged(store, numbers):
    (store / MANIFEST).write_text(f'{{"safeOffset": 160000, "spans": {{"T": [{numbers}]}}}}')
    found, said = served(store.parent)
    assert found == SENT
    assert all(str(store) in line for line in said)


@pytest.mark.parametrize("content", [NO_JSON, OTHER_KIND, b'{"topicConfig', b""])
def test_damaged_topic_table_is_quarantined_and_its_backup_logged(store, content):
    shutil.copy(store / TOPICS, store / f"{TOPICS}.bak")
    (store / TOPICS).write_bytes(content)
    found, (said,) = served(store.parent)
    assert found == SENT
    assert f"{store / TOPICS} was damaged" in said
    assert (store / f"{TOPICS}.corrupt").read_bytes() == content


def test_unknown_fields_of_a_newer_release_are_logged_before_they_are_dropped(
    store,
):
    for name in ("consumerOffset", "delayOffset"):
        (store / "config" / f"{name}.json").write_text('{"offsetTable":{}}')
    tables = sorted((store / "config").glob("*.json"))
    for table in tables:
        content = _CHECKED.sub("}", table.read_text())
        table.write_text(
            content.replace("{", '{"shade":1,', 1).replace('{"shade":1,}', '{"shade":1}')
        )
    found, said = served(store.parent)
    assert found == SENT
    told = [line for line in said if "drops members that are unknown here" in line]
    named = {table for table in tables for line in told if f"{table}: the next save" in line}
    assert named == {*tables}
    assert all("'shade'. To keep them, stop the broker" in line for line in told)
    assert len(told) == len(said) == len(tables) >= 5


HOLES = {
    "a hole": (SECOND_LOG, zeros),
    "a log file without bytes": (SECOND_LOG, no_bytes),
    "a flipped bit in a record with a key": (FIRST_LOG, flipped_bit_of(5)),
    "a flipped bit in a record without": (FIRST_LOG, flipped_bit_of(4)),
}


@pytest.mark.wide
@AFTER_BOTH_ENDS
@pytest.mark.parametrize(("name", "break_it"), HOLES.values(), ids=HOLES)
def test_damaged_log_file_is_named_and_its_messages_return_with_a_good_copy(
    store, good, name, break_it
):
    break_it(store / name)
    found, said = served(store.parent)
    assert set(found) < set(SENT)
    assert found == [body for body in SENT if body in found]
    assert str(store / name) in said[0]
    assert "is damaged" in said[0]
    put_right(store, good, name)
    assert served(store.parent) == (SENT, [])


@pytest.mark.parametrize("name", [FIRST_LOG, LAST_LOG])
def test_missing_last_log_file_known_to_the_checkpoint_is_logged(good_stores, tmp_path, name):
    store = shutil.copytree(good_stores["stop"] / "store", tmp_path / "store")
    remove(store / name)
    found, (said,) = served(tmp_path)
    assert set(found) < set(SENT)
    assert f"{store / name} is missing" in said


def bind(source, target):
    """Return a command that mounts one directory over another, and becomes another command."""
    target.mkdir()
    return mounted(f"mount --bind {source} {target}")


def link(source, target):
    target.symlink_to(source)
    return ()


@pytest.mark.parametrize("name", ["commitlog", "config"])
@pytest.mark.parametrize("lead", [link, pytest.param(bind, marks=needs_mounts)])
def test_second_broker_on_the_same_directory_by_link_or_mount_is_refused(tmp_path, lead, name):
    with BrokerProcess(tmp_path) as broker:
        asyncio.run(put_some(broker, "acknowledged"))
        store, other = tmp_path / "store", tmp_path / "other"
        other.mkdir()
        by = lead(store / name, other / name)
        code, _, said = run_broker(f"storePathRootDir={other}", "listenPort=0", by=by)
        assert code == 1
        assert f"{other} is in use by another process, which has locked {other / name}" in said
        assert "Traceback" not in said
        assert found_in(broker) == ["acknowledged"]
        assert broker.stop() == 0
    shutil.rmtree(other)


def test_store_under_a_symbolic_link_is_served(good, store, tmp_path):
    store.rename(tmp_path / "real")
    store.symlink_to("real")
    assert served(tmp_path) == (SENT, [])


@pytest.mark.parametrize(
    "break_it", [holding(b"x"), link_to_nowhere], ids=["a file", "a link to nowhere"]
)
def test_store_root_that_is_no_directory_is_named(tmp_path, break_it):
    break_it(tmp_path / "store")
    assert f"{tmp_path / 'store'}: Not a directory" in refusal(tmp_path / "store")


@pytest.mark.skipif(IS_ROOT and not shutil.which("setpriv"), reason="permissions do not bind root")
@pytest.mark.parametrize(
    "name",
    some(
        [
            ".",
            LOG,
            SECOND_LOG,
            QUEUE,
            "config",
            TOPICS,
            MANIFEST,
            "lock",
            "abort",
            "checkpoint",
            "index",
        ],
        "ROCKETPOLL_OTHER_USERS",
        4,
    ),
)
def test_store_without_permission_is_refused_and_served_afterwards(store, name):
    mode = (store / name).stat().st_mode
    (store / name).chmod(0)
    said = refusal(store, by=BOUND_BY_PERMISSIONS)
    (store / name).chmod(mode)
    assert "Permission denied" in said
    assert str(store / name) in said
    assert served(store.parent)[0] == SENT


async def sent_until_it_is_full(broker):
    """Send from when there is room until there is none; return the acknowledged messages."""
    taken = []
    async with BrokerClients(broker.port) as clients:
        client = await clients.connect()
        while True:
            body = f"{len(taken)} more " + "x" * 6_000
            answer = await client.call(send_request(body))
            if answer.code == 0:
                taken.append(body)
            elif taken:
                return taken
            else:
                await asyncio.sleep(0.1)  # the broker checks the disk once a second


def answer_to(broker, request):
    async def ask():
        async with BrokerClients(broker.port) as clients:
            return await (await clients.connect()).call(request)

    return asyncio.run(ask())


def answer_to_one_more(broker):
    return answer_to(broker, send_request("one more"))


def read_only(store):
    return mounted(f"mount --bind {store} {store}", f"mount -o remount,bind,ro {store}")


@needs_mounts
def test_store_needing_changes_waits_on_a_read_only_disk(
    store,
):
    """The broker does not report the end of a queue while messages are not dispatched."""
    with BrokerProcess(store.parent, by=read_only(store), **SIZES) as broker:
        for answer in (answer_to(broker, pull_request(0)), answer_to_one_more(broker)):
            assert (answer.code, "the disk is read-only" in answer.remark) == (14, True)
        assert broker.stop() == 1  # the groups of its clients cannot be saved
        said = broker.log()
    assert "changed configurations and offsets are not saved" in said[-1]
    assert any("the disk is read-only" in line and str(store) in line for line in said)
    assert not any("Traceback" in line for line in said)
    assert served(store.parent) == (SENT, [])


@needs_mounts
def test_read_only_mount_is_served_from_and_takes_no_messages(good_stores, tmp_path):
    store = shutil.copytree(good_stores["stop"] / "store", tmp_path / "store")
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    with BrokerProcess(tmp_path, by=read_only(store), **SIZES) as broker:
        assert found_in(broker) == SENT
        answer = answer_to_one_more(broker)
        assert (answer.code, "the disk is read-only" in answer.remark) == (14, True)
        assert broker.stop() == 1  # the groups of its clients cannot be saved
        said = broker.log()
    assert "changed configurations and offsets are not saved" in said[-1]
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before
    assert any("the disk is read-only" in line and str(store) in line for line in said)
    assert not any("Traceback" in line for line in said)
    assert served(tmp_path) == (SENT, [])


@needs_mounts
@AFTER_BOTH_ENDS
def test_full_tmpfs_is_served_from_and_takes_messages_again_with_room(store, good):
    """Acknowledged messages also exist while it fills up."""
    filler = store / "filler"
    by = mounted(
        f"mount -t tmpfs -o size=1m none {store}",
        f"cp -r {good}/. {store}",
        f"dd if=/dev/zero of={store / 'room'} bs=64k count=2 2>/dev/null",
        f"(dd if=/dev/zero of={filler} 2>/dev/null || true)",
    )
    kept = {
        "cleanFileForciblyEnable": "false",  # otherwise the oldest messages would be deleted
        "cleanResourceInterval": "100",
        "diskSpaceWarningLevelRatio": "100",
    }
    with BrokerProcess(store.parent, by=by, **SIZES, **kept) as broker:
        found = found_in(broker)  # messages that the kill has left undispatched wait for room
        assert found
        assert found == SENT[: len(found)]
        answer = answer_to_one_more(broker)
        assert (answer.code, "the disk is 100% full" in answer.remark) == (14, True)
        broker.as_it_sees(filler).unlink()
        wait_until(lambda: any("messages are accepted again" in line for line in broker.log()))
        taken = asyncio.run(sent_until_it_is_full(broker))
        assert taken
        broker.as_it_sees(store / "room").unlink()
        assert found_in(broker) == SENT + taken
        assert broker.stop() == 0
        assert not any("Traceback" in line for line in broker.log())
