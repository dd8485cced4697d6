"""Spark Connect, whose tasks do not know their batch id: the name of the write identifies it. Pip
installs a Spark Connect client into a separate Python."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from support.programs.python_programs import ROOT, python
from support.spark.streaming_engine import Engine, assert_read, send

from rocketpoll import EmbeddedBroker

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "programs" / "connected.py"


@pytest.fixture(scope="module")
def connecting_python():
    directory = ROOT / "build" / "spark-connect"
    python = directory / "bin" / "python"
    needed = [f"pyspark[connect]=={version('pyspark')}", "--editable", str(ROOT)]
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *needed], check=True)
    return python


@pytest.mark.parametrize("seen_by", ["all", "readers"])
def test_repeated_batch_of_spark_connect_counts_once(tmp_path, connecting_python, seen_by):
    checkpoint = tmp_path / "checkpoint"
    with EmbeddedBroker(tmp_path / "broker") as broker:
        broker.create_topic("in", 2)
        broker.create_topic("out", 2)
        asked = [PROGRAM, broker.address, checkpoint, seen_by]

        def run():
            ran = python(*asked, cwd=tmp_path, by=connecting_python)
            assert not ran.returncode, ran.stderr

        sent = send(broker, "in", 20)
        run()
        sent += send(broker, "in", 20)
        run()
        done = sorted((checkpoint / "commits").glob("[0-9]"))
        assert [each.name for each in done] == ["0", "1"]
        for each in (done[1], checkpoint / "commits" / ".1.crc"):
            each.unlink(missing_ok=True)
        run()
        assert (checkpoint / "commits" / "1").exists()
        reader = Engine(broker.address, subscribe="out", isolation="committed")
        reader.start()
        reader.run()
        assert_read(reader, sent)
        in_the_log = sorted(message.text for message in broker.messages("out"))
        if seen_by == "all":
            assert in_the_log == sorted(sent)
        else:
            assert len(in_the_log) == len(sent) + 20
