"""Keys and tokens are sent to brokers, and appear nowhere else."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from support.brokers.secured import client_of, secured_broker
from support.spark.sessions import log_of

from rmq_spark.cli.spark.spark_runtime import java_fault
from rocketpoll import AclPolicy, Admin, Message, Producer

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.deep

SECRETS = {"secretKey": "hush-hush-4711", "securityToken": "psst-psst-0815"}


def test_secrets_appear_in_no_plan_error_progress_or_log(source):
    topic = source.cluster.topic(1)
    source.cluster.send(topic, "a", queues=1)
    options = {"topic": topic, "accessKey": "somebody", **SECRETS}
    shown = io.StringIO()

    with contextlib.redirect_stdout(shown):
        frame = source.load(**options)
        frame.explain(extended=True)
        print(frame.collect())  # noqa: T201  # the test checks the output
        batches = source.run(source.stream(startingOffsets="earliest", **options))
        batches.query.explain(extended=True)
        print(*(progress.json for progress in batches.query.recentProgress))  # noqa: T201  # the test checks the output
    for wrong in ({"topik": "x"}, {"maxOffsetsPerTrigger": 1}, {"schema": "price double"}):
        with pytest.raises(PySparkException) as raised:
            source.load(**{**options, **wrong}).collect()
        shown.write(str(raised.value))
    with pytest.raises(PySparkException) as raised:
        source.run(source.stream(key="a", **options))
    shown.write(str(raised.value))

    log = log_of(source.spark).read_text(encoding="utf-8", errors="replace")
    assert "rocketpoll" in shown.getvalue()
    assert str(batches.query.id) in log
    for secret in SECRETS.values():
        assert secret not in shown.getvalue()
        assert secret not in log


# ---- keys in a profile and in environment variables, with a broker that requires them, and a check
# of all files that Spark writes

WAYS = {
    "options": (SECRETS["secretKey"], ("accessKey=billing", f"secretKey={SECRETS['secretKey']}")),
    "profile": ("hush-of-the-profile-4712", ("profile=prod",)),
    "environment": ("hush-of-the-environment-4713", ()),
}


@pytest.mark.skipif(java_fault() is not None, reason="Spark needs Java")
@pytest.mark.parametrize("way", WAYS)
def test_keys_appear_in_nothing_that_spark_prints_or_stores(way, tmp_path):
    secret, options = WAYS[way]
    room, profiles = tmp_path / "spark", tmp_path / "profiles.ini"
    room.mkdir()
    lines = f"access-key = billing\nsecret-key = {secret}\n"
    profiles.write_text(f"[prod]\n{lines}", encoding="utf-8")
    profiles.chmod(0o600)
    variables = {"ROCKETPOLL_PROFILES": str(profiles), "PYSPARK_PYTHON": sys.executable}
    if way == "environment":
        variables |= {"ROCKETPOLL_ACCESS_KEY": "billing", "ROCKETPOLL_SECRET_KEY": secret}
    program = Path(__file__).parent / "programs" / "keyed_queries.py"
    with secured_broker() as broker, Admin(instance=client_of(broker)) as admin:
        admin.create_user("billing", secret)
        for topic, actions in (("orders", ("Sub", "Get")), ("copies", ("Pub",))):
            admin.create_topic(topic, 1)
            admin.create_acl(AclPolicy("billing", f"Topic:{topic}", actions))
        admin.create_acl(AclPolicy("billing", "Group:rocketpoll-spark", ("Sub",)))
        with Producer("feeder", instance=client_of(broker)) as producer:
            producer.send(Message("orders", b"one"))
        done = subprocess.run(
            [sys.executable, program, room, f"namesrvAddr={broker.address}", *options],
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
            cwd=tmp_path,
            env={
                **os.environ,
                **variables,
                "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert admin.read_table("copies")["body"].to_pylist() == [b"one", b"one"]
    assert "1 rows were read" in done.stdout
    assert secret not in done.stdout + done.stderr
    files = [path for path in room.rglob("*") if path.is_file()]
    assert {path.relative_to(room).parts[0] for path in files} >= {"events", "checkpoint"}
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
