"""Java clients of RocketMQ 4.3, which connect to the VIP channel two ports below the broker's.

They also split the properties of a message differently from later versions. Each test runs on a
real RocketMQ and on our broker.
"""

from __future__ import annotations

import subprocess

import pytest
from support.rocketmq.java_clients import ADDED_PROPERTIES
from support.rocketmq.java_programs import java_program
from support.rocketmq.real_broker import OPENED

pytestmark = pytest.mark.interop

VERSION = "4.3.2"
MESSAGES = 10
SECONDS_MAX = 120


def test_java_4_3_clients_with_default_vip_channel_send_and_consume(
    java_broker, scenario, tmp_path
):
    topic = scenario.topic()
    options = (*OPENED, f"-Duser.home={tmp_path}", f"-Drocketmq.client.logRoot={tmp_path}")
    command = java_program("vip", VERSION).command("rocketpoll.vip.Main", *options)
    run = subprocess.run(
        [*command, java_broker.name_server, topic, str(MESSAGES)],
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS_MAX,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    lines = [line.split("\t") for line in run.stdout.splitlines()]
    bodies = [f"message {number}" for number in range(MESSAGES)]
    assert [line[1:] for line in lines if line[0] == "sent"] == [
        ["SEND_OK", body] for body in bodies
    ]
    came = {
        body: (names.strip("[]").split(", "), own) for what, body, names, own in came_lines(lines)
    }
    assert set(came) == set(bodies)
    for names, own in came.values():
        assert set(names) - ADDED_PROPERTIES == {"TAGS", "KEYS", "__CRC32#"}
        assert own == "mine"


def came_lines(lines: list[list[str]]) -> list[list[str]]:
    return [line for line in lines if line[0] == "came"]
