"""A broker process whose disk cannot read a page of a file misses only that page.

The system's reads fail, not Python's: the broker is the program that users run. It starts, serves
and restarts, and logs a line that names the file, never a traceback.
"""

import asyncio
import shutil

import pytest
from support.brokers.processes import BrokerProcess
from support.clients.remoting_clients import BrokerClients
from support.faults.preloaded_libraries import preload

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.operators import HEADERS, QueryMessageRequestHeader
from rmq_spark.wire.message.record import decode_records
from rmq_spark.wire.remoting.command import RemotingCommand

SIZES = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": str(1 << 16),
    "maxMessageSize": "30000",
    "mappedFileSizeConsumeQueue": "200",
}
SENT = [f"{number} " + "x" * 1_000 for number in range(150)]
PAGE = 4_096
SECOND_LOG = f"commitlog/{1 << 16:020d}"
LAST_LOG = f"commitlog/{2 << 16:020d}"
QUEUE_FILE = f"consumequeue/T/0/{400:020d}"

TABLES = ("config/topics.json", "config/manifest.json", "checkpoint")

LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

/* Whether a part of a file lies on the page that BAD_PAGE names by an inode and a place. */
static int is_bad(int fd, size_t size, off_t at) {
    unsigned long inode;
    long page;
    struct stat found;
    FILE *told = fopen(getenv("BAD_PAGE"), "r");
    if (!told) return 0;
    int words = fscanf(told, "%lu %ld", &inode, &page);
    fclose(told);
    if (words != 2 || fstat(fd, &found) || found.st_ino != inode) return 0;
    return at < page + 4096 && at + (off_t)size > page;
}

ssize_t pread64(int fd, void *buffer, size_t size, off_t at) {
    static ssize_t (*real)(int, void *, size_t, off_t);
    if (is_bad(fd, size, at)) {
        errno = EIO;
        return -1;
    }
    if (!real) real = dlsym(RTLD_NEXT, "pread64");
    return real(fd, buffer, size, at);
}

ssize_t pread(int fd, void *buffer, size_t size, off_t at) {
    return pread64(fd, buffer, size, at);
}

ssize_t read(int fd, void *buffer, size_t size) {
    static ssize_t (*real)(int, void *, size_t);
    off_t at = lseek(fd, 0, SEEK_CUR);
    if (at >= 0 && is_bad(fd, size, at)) {
        errno = EIO;
        return -1;
    }
    if (!real) real = dlsym(RTLD_NEXT, "read");
    return real(fd, buffer, size);
}

/* No page counts as one that lies in memory: all are read. */
int mincore(void *address, size_t length, unsigned char *found) {
    errno = EAGAIN;
    return -1;
}
"""


class BadPage:
    """A page that processes started from now on cannot read; initially all pages are readable. A
    file that is deleted and recreated under its name has other pages."""

    def __init__(self, root, told):
        self._root = root
        self._told = told

    def is_in(self, name, position):
        path = self._root / "store" / name
        kept = self._root / "kept"  # kept open, so that no other file gets its inode
        if not kept.exists():
            kept.hardlink_to(path)
        self._told.write_text(f"{path.stat().st_ino} {position}")

    def is_over(self):
        self._told.unlink()


@pytest.fixture
def bad_page(tmp_path, monkeypatch):
    preload(tmp_path, monkeypatch, LIBRARY)
    told = tmp_path / "bad_page"
    monkeypatch.setenv("BAD_PAGE", str(told))
    return BadPage(tmp_path, told)


class Broker:
    """A broker process in a directory, and the messages that clients find."""

    def __init__(self, process):
        self.process = process

    def tell(self, story, *given):
        async def told():
            async with BrokerClients(self.process.port) as clients:
                return await story(await clients.connect(), *given)

        return asyncio.run(told())

    def put(self, bodies):
        self.tell(_put, bodies)

    def found(self):
        """Return the messages of a consumer that follows all responses."""
        return self.tell(_pull_all)

    def answers(self):
        """Return the response to a pull of each offset."""
        return self.tell(_each_pulled)

    def key_found(self, key):
        """Return the bodies of the messages with a key."""
        return self.tell(_with_key, key)


async def _put(client, bodies):
    for number, body in enumerate(bodies):
        await client.put(body, properties={"KEYS": f"k{number}"})


async def _pull_all(client):
    found, at = [], 0
    while (answer := await client.pull(at)).code != 19:
        assert answer.next_offset > at, answer
        found += answer.bodies
        at = answer.next_offset
    return found


async def _each_pulled(client):
    return [await client.pull(at, count=1) for at in range(len(SENT))]


async def _with_key(client, key):
    code = RequestCode.QUERY_MESSAGE
    header = QueryMessageRequestHeader("T", key, 64, 0, 1 << 60)
    fields = HEADERS[code].request.encode(header)
    answer = await client.call(RemotingCommand(code, ext_fields=fields))
    return [each.body.decode() for each in decode_records(answer.body)]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Return the stores of a stopped and of a killed broker, with their messages."""
    roots = {}
    for end in ("stop", "kill"):
        roots[end] = tmp_path_factory.mktemp(end)
        with BrokerProcess(roots[end], **SIZES) as process:
            Broker(process).put(SENT)
            getattr(process, end)()
    return roots


@pytest.fixture(params=["stop", "kill"])
def filled(stores, tmp_path, request):
    """Return a copy of one of these stores."""
    shutil.copytree(stores[request.param] / "store", tmp_path / "store")
    return tmp_path


def life(root, story, **settings):
    """Run a scenario on a broker that starts there and is stopped; return its result and the log
    lines."""
    with BrokerProcess(root, **SIZES, **settings) as process:
        found = story(Broker(process))
        assert process.stop() == 0
        log = process.log()
    assert "Traceback" not in "\n".join(log)
    return found, log


AFTER_A_STOP = pytest.mark.parametrize("filled", ["stop"], indirect=True)


@pytest.mark.parametrize(
    ("filled", "name"), [("stop", SECOND_LOG), ("kill", LAST_LOG)], indirect=["filled"]
)
def test_messages_on_a_page_of_the_log_are_missed_and_return_with_it(filled, bad_page, name):
    bad_page.is_in(name, 2 * PAGE)
    found, log = life(filled, Broker.found)
    lost = [body for body in SENT if body not in found]
    assert found == [body for body in SENT if body not in lost]
    assert 1 <= len(lost) <= 6
    assert any(name in line and "all others are served" in line for line in log)
    again, _ = life(filled, lambda broker: (broker.put(["more"]), broker.found())[1])
    assert again == [*found, "more"]
    bad_page.is_over()
    assert life(filled, Broker.found)[0] == [*SENT, "more"]


@AFTER_A_STOP
def test_queue_with_an_unreadable_page_is_rebuilt_and_logged(filled, bad_page):
    bad_page.is_in(QUEUE_FILE, 0)
    for said in (True, False):
        found, log = life(filled, Broker.found)
        assert found == SENT
        assert any("consumequeue" in line for line in log) is said, log


@AFTER_A_STOP
def test_unreadable_queue_of_a_large_store_is_rebuilt_as_advised(filled, bad_page):
    bad_page.is_in(QUEUE_FILE, 0)
    answers, _ = life(filled, Broker.answers, checkWholeLogBytes="0")
    said = {answer.remark for answer in answers if answer.code}
    assert len(said) == 10
    directory = (filled / "store" / QUEUE_FILE).parent
    advised = f"To rebuild the queue, stop the broker, delete {directory}, and start"
    assert all(QUEUE_FILE in each and advised in each for each in said)
    shutil.rmtree(directory)
    assert life(filled, Broker.found, checkWholeLogBytes="0")[0] == SENT


@AFTER_A_STOP
def test_index_with_an_unreadable_page_is_rebuilt_and_logged(filled, bad_page):
    (index_file,) = (filled / "store" / "index").iterdir()
    bad_page.is_in(f"index/{index_file.name}", 0)
    for said in (True, False):
        found, log = life(filled, lambda broker: (broker.found(), broker.key_found("k7")))
        assert found == (SENT, [SENT[7]])
        assert any("index" in line for line in log) is said, log


@AFTER_A_STOP
@pytest.mark.parametrize("name", TABLES)
def test_unreadable_table_is_quarantined_and_logged_without_message_loss(filled, bad_page, name):
    bad_page.is_in(name, 0)
    found, log = life(filled, Broker.found)
    assert found == SENT
    assert any(name in line for line in log), log
    assert life(filled, Broker.found)[0] == SENT


@AFTER_A_STOP
@pytest.mark.parametrize("name", [SECOND_LOG, QUEUE_FILE])
def test_page_turning_unreadable_costs_only_the_messages_on_it(filled, bad_page, name):
    def story(broker):
        bad_page.is_in(name, 2 * PAGE if name == SECOND_LOG else 0)
        meanwhile = broker.answers()
        broker.put(["more"])
        bad_page.is_over()
        return meanwhile, broker.found()

    (meanwhile, found), _ = life(filled, story)
    refused = [answer for answer in meanwhile if answer.code]
    assert 1 <= len(refused) <= 12
    assert all(answer.code == 14 and name in answer.remark for answer in refused), refused
    assert found == [*SENT, "more"]
