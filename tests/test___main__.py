"""The broker program: one line when ready, one line and an exit code on failure, a clean stop."""

import asyncio
import signal
import socket
import subprocess
import sys

import pytest
from support.brokers.in_process import SMALL
from support.brokers.processes import BrokerProcess, run_broker
from support.clients.remoting_clients import BrokerClients, pull_request

from rocketpoll.broker.__main__ import main
from rocketpoll.broker.settings.settings import KEYS, load_config


def test_print_option_prints_the_settings_as_a_readable_file(tmp_path, capsys):
    path = tmp_path / "my.conf"
    path.write_text("brokerName=mine\nlistenPort=1\n")
    assert main(["-c", str(path), "-p", "listenPort=2"]) == 0
    printed = capsys.readouterr().out
    assert [line.partition("=")[0] for line in printed.splitlines()] == list(KEYS)
    assert "listenPort=2\n" in printed
    (tmp_path / "printed.conf").write_text(printed)
    assert load_config(tmp_path / "printed.conf") == load_config(path, ["listenPort=2"])


def test_wrong_settings_stop_the_start_with_one_line(tmp_path):
    directory = tmp_path / "store"
    code, out, err = run_broker("listenprt=1", f"storePathRootDir={directory}", "flushDiskType=x")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "did you mean listenPort?" in err
    assert "flushDiskType must be SYNC_FLUSH or ASYNC_FLUSH" in err
    assert not directory.exists()


def test_bind_address_of_other_machines_is_refused(tmp_path, capsys):
    assert main(["bindAddress=0.0.0.0", f"storePathRootDir={tmp_path}"]) == 2
    assert "allowRemoteWithoutAuthentication=true" in capsys.readouterr().err


def settings_in(directory, **changed):
    return [
        f"{name}={value}"
        for name, value in {**SMALL, "storePathRootDir": directory, **changed}.items()
    ]


@pytest.mark.parametrize("count", [8, 11, 16, 31])
def test_too_few_descriptors_stop_the_start_with_one_line(tmp_path, count):
    code, out, err = run_broker(*settings_in(tmp_path), by=["prlimit", f"--nofile={count}:{count}"])
    assert (code, out) == (1, "")
    assert err == (
        f"the broker cannot run: the system allows {count} descriptors (ulimit -Hn), and a broker "
        "needs 32 at least, with a file and a client\n"
    )


def test_port_in_use_stops_the_start_and_releases_the_directory(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert main(settings_in(tmp_path, listenPort=other.getsockname()[1])) == 1
    err = capsys.readouterr().err
    assert err.startswith("the broker cannot run: cannot listen on 127.0.0.1:")
    assert "Address already in use. Choose another listenPort, or stop the program" in err
    assert (err.count("\n"), err.count("127.0.0.1")) == (1, 1)
    with BrokerProcess(tmp_path, storePathRootDir=str(tmp_path)) as broker:
        assert broker.stop() == 0


def test_bind_address_of_another_machine_stops_the_start_with_advice(tmp_path, capsys):
    elsewhere = {"bindAddress": "192.0.2.1", "allowRemoteWithoutAuthentication": "true"}
    assert main(settings_in(tmp_path, **elsewhere)) == 1
    assert "Set bindAddress to an address of this machine" in capsys.readouterr().err


def test_store_that_cannot_be_created_stops_the_start_with_advice(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(settings_in(tmp_path / "file" / "store")) == 1
    assert capsys.readouterr().err == (
        f"the broker cannot run: {tmp_path / 'file' / 'store'}: Not a directory. Set "
        "storePathRootDir to a directory that this user can create and write to\n"
    )


def test_directory_in_use_stops_the_start_with_one_line(tmp_path, capsys):
    with BrokerProcess(tmp_path) as broker:
        assert main(settings_in(tmp_path / "store")) == 1
        err = capsys.readouterr().err
        assert err.startswith("the broker cannot run: ")
        assert str(tmp_path / "store") in err
        assert err.count("\n") == 1
        assert broker.stop() == 0


def test_objects_made_at_start_are_frozen_for_the_garbage_collector(tmp_path):
    then = "main(sys.argv[1:]); print(gc.get_freeze_count(), len(gc.get_objects()))"
    program = f"import gc, sys; from rocketpoll.broker.__main__ import main; {then}"
    ended = subprocess.run(
        [sys.executable, "-c", program, "--untilInputEnds", *settings_in(tmp_path, listenPort=0)],
        input="",
        capture_output=True,
        text=True,
        check=True,
    )
    frozen, looked_through = map(int, ended.stdout.splitlines()[-1].split())
    assert frozen > 10 * looked_through


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_broker_with_held_pulls(tmp_path, number):
    with BrokerProcess(tmp_path, brokerName="mine") as broker:
        assert broker.ready_line == f"rocketpoll mine listens on 127.0.0.1:{broker.port}\n"

        async def story():
            async with BrokerClients(broker.port) as clients:
                client = await clients.connect()
                await client.put("kept")
                client.send(pull_request(1, suspend_ms=60_000))
                assert (await (await clients.connect()).pull(0)).bodies == ["kept"]
                code = await asyncio.get_running_loop().run_in_executor(None, broker.stop, number)
                assert code == 0
                assert (await client.receive()).code == 19

        asyncio.run(story())
        assert broker.log() == []
    assert not (tmp_path / "store" / "abort").exists()


def test_broker_listens_on_an_ipv6_address(tmp_path):
    with BrokerProcess(tmp_path, bindAddress="::1") as broker:
        assert broker.ready_line == f"rocketpoll broker-a listens on [::1]:{broker.port}\n"
        with socket.create_connection(("::1", broker.port)):
            pass
        assert broker.stop() == 0
