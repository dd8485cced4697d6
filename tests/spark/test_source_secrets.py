"""Keys and tokens are sent to brokers, and appear nowhere else."""

import contextlib
import io

import pytest
from pyspark.errors import PySparkException
from support.spark.sessions import log_of

pytestmark = pytest.mark.deep

SECRETS = {"secretKey": "hush-hush-4711", "securityToken": "psst-psst-0815"}


def test_secrets_stand_in_no_plan_error_progress_or_log(source):
    topic = source.cluster.topic(1)
    source.cluster.send(topic, "a", queues=1)
    options = {"topic": topic, "accessKey": "somebody", **SECRETS}
    shown = io.StringIO()

    with contextlib.redirect_stdout(shown):
        frame = source.load(**options)
        frame.explain(extended=True)
        print(frame.collect())  # noqa: T201  # for what it shows
        batches = source.run(source.stream(startingOffsets="earliest", **options))
        batches.query.explain(extended=True)
        print(*(progress.json for progress in batches.query.recentProgress))  # noqa: T201  # the same
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
