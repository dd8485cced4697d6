"""Spark Declarative Pipelines: the example runs repeatedly, and one run is killed."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from support.programs.python_programs import ROOT

from rocketpoll import EmbeddedBroker, read_committed, wait_until

pytestmark = [
    pytest.mark.deep,
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(pyspark.__version__.startswith("4.0."), reason="Spark 4.0 has none"),
]

PATIENCE_SECONDS = 900
SPARK = {
    "PYSPARK_PYTHON": sys.executable,
    "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
PAGE = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")


@pytest.fixture
def broker():
    with EmbeddedBroker() as started:
        for topic in ("orders", "bills"):
            started.create_topic(topic, queues=2)
        yield started


@pytest.fixture
def command(tmp_path):
    """Return a function that starts a Spark command in the pipeline's directory, in its own process
    group."""

    def start(*words):
        return subprocess.Popen(
            [Path(pyspark.__file__).parent / "bin" / words[0], *words[1:]],
            cwd=tmp_path,
            env={**os.environ, **SPARK},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    return start


def output_of(command):
    """Run a command that must succeed; return its output."""
    printed, _ = command.communicate(timeout=PATIENCE_SECONDS)
    assert command.returncode == 0, printed
    return printed


def send(broker, *ids):
    for number in ids:
        order = {"id": number, "customer": ("ada", "bob")[number % 2], "total": 1.5}
        broker.send("orders", json.dumps(order))


def bills(broker):
    """Return the ids of the committed bills."""
    rows = read_committed("bills", broker.address, columns=["keys"]).to_pydict()
    return sorted(map(int, rows["keys"]))


def test_sql_definitions_of_the_page_read_each_message_once_in_two_runs(broker, command, tmp_path):
    (tmp_path / "spark-pipeline.yml").write_text(
        f"name: orders\nstorage: {(tmp_path / 'storage').as_uri()}\n"
        "libraries:\n  - glob:\n      include: transformations/**\n",
        encoding="utf-8",
    )
    [definitions] = re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    file = tmp_path / "transformations" / "orders.sql"
    file.parent.mkdir()
    file.write_text(definitions.replace("localhost:9876", broker.address), encoding="utf-8")
    [create] = re.findall(r"^spark-sql .*$", PAGE, re.MULTILINE)
    output_of(command(*shlex.split(create)))
    for ids in ((0, 1, 2), (3, 4)):
        send(broker, *ids)
        output_of(command("spark-pipelines", "run", *shlex.split(create)[1:3]))
    asked = "SELECT concat_ws(' ', customer, orders, total) FROM totals ORDER BY customer"
    printed = output_of(command("spark-sql", *shlex.split(create)[1:3], "-e", asked)).split("\n")
    assert {"ada 3 4.5", "bob 2 3.0"} <= set(printed)


def test_pipeline_of_the_example_continues_and_bills_each_order_once(broker, command, tmp_path):
    shutil.copytree(ROOT / "examples" / "declarative", tmp_path, dirs_exist_ok=True)
    specification = tmp_path / "spark-pipeline.yml"
    text = specification.read_text(encoding="utf-8")
    text = text.replace("localhost:9876", broker.address)
    text = text.replace("file:///tmp/rocketpoll-pipeline", (tmp_path / "storage").as_uri())
    specification.write_text(text, encoding="utf-8")
    [line] = re.findall(r"^(spark-pipelines run .*)$", PAGE, re.MULTILINE)

    send(broker, 0, 1, 2)
    output_of(command(*line.split()))
    assert bills(broker) == [0, 1, 2]

    send(broker, 3, 4)
    [sink] = (tmp_path / "storage").rglob("bill_orders")
    run = command(*line.split())
    wait_until((sink / "0" / "offsets" / "1").exists, timeout=PATIENCE_SECONDS)
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()

    send(broker, 5)
    output_of(command(*line.split()))
    assert bills(broker) == [0, 1, 2, 3, 4, 5]
    asked = "SELECT concat_ws(' ', customer, orders, total) FROM totals ORDER BY customer"
    printed = output_of(command("spark-sql", *line.split()[2:], "-e", asked)).split("\n")
    assert {"ada 3 4.5", "bob 3 4.5"} <= set(printed)
