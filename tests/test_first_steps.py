"""Three walkthroughs of new users, with the commands and programs of their page, from an empty
folder."""

import json
import os
import re
import shlex
import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient
from support.programs.keystroke_model import Walk, check_told, commands, section

from rmq_spark.cli.spark.spark_runtime import java_fault
from rocketpoll import EmbeddedBroker

pytestmark = pytest.mark.deep

PAGE = "first-steps.md"
NOTEBOOK = "In a notebook, new to RocketMQ"
KAFKA = "From Kafka"
BACKEND = "A backend with FastAPI and pytest"
LONG_SECONDS = 300
WALK_SECONDS_MAX = 150
"""Maximum seconds of a walkthrough, without installation and the start of Spark."""
POST = """
from fastapi.testclient import TestClient
from shop import app

with TestClient(app) as browser:
    answer = browser.post("/orders", json=ORDER)
    print(answer.status_code, answer.text)
"""
"""A request to the service as by curl, without a port."""


def blocks(title, language):
    return re.findall(rf"```{language}\n(.*?)```", section(PAGE, title), re.DOTALL)


def walked(title, pasted):
    """Return the walkthrough of a section: commands are typed, programs copied, and
    each is read."""
    steps = Walk()
    for line in commands(PAGE, title):
        steps.type(line)
        steps.read()
    for _ in range(pasted):
        steps.point()  # the copy button
        steps.press(2)  # paste, and run or save
        steps.read()
    return steps


def python(*words, cwd, address):
    """Run Python in a folder, with the broker's address in the environment."""
    done = subprocess.run(
        [sys.executable, *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "NAMESRV_ADDR": address},
        timeout=LONG_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rocketpoll(line, folder, address):
    """Run a command of the page with this broker."""
    program, *words = line.split()
    assert program == "rocketpoll"
    return python("-m", "rocketpoll", *words, cwd=folder, address=address)


def test_notebook_walk_of_a_new_user_shows_their_messages(tmp_path):
    cells = blocks(NOTEBOOK, "python")
    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=LONG_SECONDS, resources=resources).execute()
    shown, table, picture = [
        {kind: text for output in cell.outputs for kind, text in output.get("data", {}).items()}
        for cell in notebook.cells
    ]
    assert "127.0.0.1" in shown["text/html"]
    assert "/shop" in table["text/plain"]
    assert "image/png" in picture
    check_told(walked(NOTEBOOK, pasted=len(cells)), PAGE, NOTEBOOK, WALK_SECONDS_MAX)


@pytest.mark.skipif(java_fault() is not None, reason="Spark needs Java")
def test_kafka_walk_of_a_new_user_computes_totals(tmp_path):
    [orders], [job] = blocks(KAFKA, "json"), blocks(KAFKA, "python")
    (tmp_path / "orders.jsonl").write_text(orders, encoding="utf-8")
    install, start, send, run, look = commands(PAGE, KAFKA)
    assert (install[:11], start, run) == ("pip install", "rocketpoll broker", "python totals.py")
    with EmbeddedBroker() as broker:
        at = {"address": broker.address}
        broker.send("orders", json.dumps({"customer": "ada", "total": 9.5}))  # as in the README
        rocketpoll(send, tmp_path, **at)
        job = job.replace("localhost:9876", broker.address)
        (tmp_path / "totals.py").write_text(job, encoding="utf-8")
        totals = python("totals.py", cwd=tmp_path, **at)
        assert re.search(r"ada\| +12\.5\|", totals)
        assert re.search(r"bob\| +4\.0\|", totals)
        assert ", 0 behind," in rocketpoll(look, tmp_path, **at)
    check_told(walked(KAFKA, pasted=2), PAGE, KAFKA, WALK_SECONDS_MAX)


def test_backend_walk_of_a_new_user_has_a_service_and_its_test(tmp_path):
    pytest.importorskip("fastapi")
    for name, text in zip(("shop", "test_shop"), blocks(BACKEND, "python"), strict=True):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    _, test, start, serve, post, look = commands(PAGE, BACKEND)
    assert (test, start, serve) == ("python -m pytest", "rocketpoll broker", "uvicorn shop:app")
    with EmbeddedBroker() as broker:
        tested = python("-m", "pytest", "-p", "no:cacheprovider", cwd=tmp_path, address="nobody:1")
        assert "1 passed" in tested
        order = shlex.split(post)[-1]
        posted = python("-c", POST.replace("ORDER", order), cwd=tmp_path, address=broker.address)
        assert posted == '200 {"stored at":0}\n'
        seen = rocketpoll(look, tmp_path, broker.address)
        assert json.loads(seen.partition("keys=2")[2]) == json.loads(order)
    check_told(walked(BACKEND, pasted=2), PAGE, BACKEND, WALK_SECONDS_MAX)
