"""Lazy imports of a new broker run in another thread; only requests that need them wait."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.suite.selection import spread

ROOT = Path(__file__).parent.parent

PROGRAM = """
import asyncio, importlib.abc, sys, threading
sys.path.insert(0, "tests")
from pathlib import Path
from support.clients.remoting_clients import pull_request, send_request
from support.brokers.in_process import tell
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.extensions import Extension, ExtensionsHeader
from rmq_spark.wire.headers.members import AppendChunkRequestHeader
from rmq_spark.wire.headers.operators import HEADERS

assert "pyarrow" not in sys.modules
loaders = []


class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "pyarrow.lib":
            loaders.append(threading.current_thread())


sys.meta_path.insert(0, Watch())


def command(code, header, body=b""):
    fields = HEADERS[code].request.encode(header)
    return RemotingCommand(code, opaque=9, ext_fields=fields, body=body)


async def story(broker):
    client = await broker.connect()
    await client.call(command(RequestCode.EXTENSIONS, ExtensionsHeader.of(frozenset(Extension))))
    for number in range(60):
        await client.put("x", properties={{"a": str(number)}})
    answer = await client.call({request})
    assert answer.code == {code}, answer
    assert loaders and loaders[0] is not threading.main_thread(), loaders


tell(story, Path({root!r}))
"""

NO_CHUNK = 'AppendChunkRequestHeader("P", "T", 0, "TBW102", 1), b"no chunk"'
REQUESTS = {
    "a pull by SQL92": (
        'pull_request(0, subscription="a = \'7\'", expression_type="SQL92")',
        0,
    ),
    "a bulk pull": ("pull_request(0)._replace(code=RequestCode.PULL_CHUNK)", 0),
    "a pull of places": ("pull_request(0)._replace(code=RequestCode.PULL_PLACES)", 0),
    "an append of a chunk": (
        f"command(RequestCode.APPEND_CHUNK, {NO_CHUNK})",
        1,
    ),
}


@pytest.mark.parametrize(("request_text", "code"), spread(2, REQUESTS.values()), ids=REQUESTS)
def test_event_loop_does_not_import_bulk_libraries(tmp_path, request_text, code):
    program = PROGRAM.format(request=request_text, code=code, root=str(tmp_path))
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
