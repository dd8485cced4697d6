"""Rates and lags, live."""

from __future__ import annotations

import json

from rmq_spark.cli.top_command import Look, rates


def test_a_rate_is_what_has_happened_between_two_looks():
    before = Look(10.0, (), {"a": (5, 5), "b": (5, 5)}, {"g": (3, 9, 1), "h": (0, 20, 0)})
    now = Look(
        12.0, (), {"a": (5, 5), "b": (15, 12), "new": (7, 7)}, {"g": (7, 5, 1), "h": (0, 20, 0)}
    )
    tables = rates(before, now, rows=2)
    assert tables["topics"] == [
        {"topic": "b", "in_per_s": 5.0, "messages": 12},
        {"topic": "a", "in_per_s": 0.0, "messages": 5},
    ]
    assert tables["groups"] == [
        {"group": "h", "members": 0, "out_per_s": 0.0, "behind": 20},
        {"group": "g", "members": 1, "out_per_s": 2.0, "behind": 5},
    ]


def test_each_look_is_shown(run, cluster):
    topic, group = cluster.topic(), cluster.group()
    cluster.send(topic, 1, 2, 3)
    cluster.store_offset(group, topic, 0)
    ran = run("top", "-n", 2, "--interval", 0.1, "-o", "json")
    first, _ = (json.loads(line) for line in ran.lines)
    assert first["brokers"][0]["broker"] == cluster.broker_name
    [shown] = [row for row in first["groups"] if row["group"] == group]
    assert shown["behind"] == 3
    assert {row["topic"] for row in first["topics"]} >= {topic}
    lines = run("top", "-n", 1, "--interval", 0.1).lines
    assert lines[0] == "brokers"
    assert {"topics", "groups"} <= set(lines)
