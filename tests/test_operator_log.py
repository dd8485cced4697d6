"""A broker's log as an operator reads it."""

import json
import os
import signal
import threading
import time

from support.brokers.in_process import tell
from support.brokers.processes import BrokerProcess, run_broker

from rmq_spark import __version__
from rocketpoll.broker.process.operator_log import format_host


def until_said(broker, *texts, seconds=20):
    """Return the log once it contains these texts."""
    deadline = time.monotonic() + seconds
    while True:
        said = "\n".join(broker.said())
        if all(text in said for text in texts):
            return said
        assert time.monotonic() < deadline, said
        time.sleep(0.02)


def test_broker_start_and_stop_are_logged(tmp_path):
    with BrokerProcess(tmp_path, metricsPort="0", maxTopics="1234") as broker:
        said = until_said(broker, "listens on")
        assert f"rocketpoll {__version__}, Python" in said
        assert "broker broker-a of DefaultCluster, process " in said
        assert f"store {tmp_path / 'store'}: opened in " in said
        assert "no messages yet" in said
        assert "1,234 topics" in said
        assert f"127.0.0.1:{broker.port}" in said
        assert "http://127.0.0.1:" in said
        assert "no sends from 90 %" in said
        assert "SYNC_FLUSH" in said
        assert max(len(line.replace(str(tmp_path), "")) for line in broker.said()) <= 100
        assert " INFO operator_log: listens on 127.0.0.1" in said
        assert broker.stop() == 0
        assert "stopping: 0 clients" in "\n".join(broker.said())
        assert "stopped cleanly in" in broker.said()[-1]


def test_read_only_broker_says_so_at_its_start_and_to_each_sender(tmp_path):
    with BrokerProcess(tmp_path, brokerRole="SLAVE") as broker:
        until_said(broker, "WARNING operator_log: brokerRole=SLAVE", "copies from no master")


def test_start_after_a_clean_stop_is_logged(tmp_path):
    async def story(broker):
        await (await broker.connect()).put("a")

    tell(story, tmp_path / "store")
    with BrokerProcess(tmp_path) as broker:
        assert "after a clean stop" in until_said(broker, "listens on")


def test_start_after_a_kill_is_logged(tmp_path):
    with BrokerProcess(tmp_path) as broker:
        until_said(broker, "listens on")
        broker.kill()
    with BrokerProcess(tmp_path) as broker:
        assert "after a crash" in until_said(broker, "listens on")


def test_json_log_has_one_object_per_line(tmp_path):
    with BrokerProcess(tmp_path, "--log-format", "json") as broker:
        until_said(broker, "listens on")
        assert broker.stop() == 0
        lines = [json.loads(line) for line in broker.said()]
    assert {line["level"] for line in lines} == {"INFO"}
    assert lines[-1]["message"].startswith("stopped cleanly")


def test_unknown_log_format_is_refused(tmp_path):
    code, _, err = run_broker("--log-format", "xml", f"storePathRootDir={tmp_path}")
    assert code == 2
    assert "invalid choice: 'xml'" in err


def test_settings_are_read_again_at_a_hangup_and_what_cannot_change_is_named(tmp_path):
    file = tmp_path / "broker.conf"
    file.write_text("fileReservedTime=5\n")
    with BrokerProcess(tmp_path, "-c", str(file)) as broker:
        file.write_text("fileReservedTime=6\nbrokerName=other\n")
        broker.signal(signal.SIGHUP)
        said = until_said(broker, "need a restart")
        assert "settings reloaded: fileReservedTime=6" in said
        assert "need a restart: brokerName=other" in said
        file.write_text("fileReservdTime=6\n")
        broker.signal(signal.SIGHUP)
        assert "did you mean fileReservedTime?" in until_said(broker, "settings are not reloaded")
        assert broker.stop() == 0


def test_reload_from_a_pipe_is_refused(tmp_path):
    """A pipe would be empty by now, or block the broker until a writer comes."""
    pipe = tmp_path / "settings"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("fileReservedTime=999\n",))
    writer.start()
    with BrokerProcess(tmp_path, "-c", str(pipe)) as broker:
        writer.join()
        broker.signal(signal.SIGHUP)
        assert "is not a regular file" in until_said(broker, "settings are not reloaded")
        assert broker.stop() == 0


def test_sighup_without_a_settings_file_ends_the_broker(tmp_path):
    # The tests may run with SIGHUP ignored, as by nohup, which processes inherit.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with BrokerProcess(tmp_path) as broker:
            assert broker.stop(signal.SIGHUP) == -signal.SIGHUP
    finally:
        signal.signal(signal.SIGHUP, before)


def test_process_title_is_rocketpoll(tmp_path):
    with BrokerProcess(tmp_path) as broker:
        assert broker.title() == "rocketpoll"


def test_ipv6_host_is_formatted_in_brackets():
    assert (format_host("::1"), format_host("127.0.0.1")) == ("[::1]", "127.0.0.1")
