"""A broker that cannot import pyarrow refuses requests that need it, and says why."""

import asyncio

import pytest
from support.brokers.in_process import SMALL
from support.brokers.processes import BrokerProcess, run_broker
from support.clients.remoting_clients import BrokerClients, batch_request

from rmq_spark.wire.codes import ResponseCode

BROKEN = {
    "no-fit": "raise AttributeError('_ARRAY_API not found')",
    "another": "",
    "a-lack": "raise ImportError('libarrow.so: cannot open shared object file')",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_broken_pyarrow_fails_bulk_requests_and_leaves_few_messages_working(tmp_path, text):
    async def send(port):
        async with BrokerClients(port) as clients:
            client = await clients.connect()
            await client.put("one")
            answer = await client.call(batch_request(*map(str, range(3_000))))
            assert answer.code == ResponseCode.SYSTEM_BUSY, answer.remark
            assert "a library cannot be loaded" in answer.remark
            assert (await client.pull(0)).bodies == ["one"]

    package = tmp_path / "first" / "pyarrow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)
    with BrokerProcess(tmp_path, by=("env", f"PYTHONPATH={package.parent}")) as broker:
        asyncio.run(send(broker.port))
        assert broker.stop() == 0
        assert not [line for line in broker.said() if "Traceback" in line]


def test_start_that_needs_a_broken_library_ends_with_the_reason(tmp_path):
    async def fill(port):
        async with BrokerClients(port) as clients:
            client = await clients.connect()
            for _ in range(2):
                answer = await client.call(batch_request(*map(str, range(3_000))))
                assert answer.code == ResponseCode.SUCCESS, answer.remark

    with BrokerProcess(tmp_path) as broker:
        asyncio.run(fill(broker.port))
        broker.kill()
    package = tmp_path / "first" / "pyarrow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(BROKEN["no-fit"])
    settings = {**SMALL, "storePathRootDir": tmp_path / "store"}
    arguments = (f"{name}={value}" for name, value in settings.items())
    code, _, told = run_broker(*arguments, by=("env", f"PYTHONPATH={package.parent}"))
    assert (code, told.count("Traceback")) == (1, 0)
    assert "a library cannot be loaded" in told
    assert "AttributeError: _ARRAY_API not found" in told
