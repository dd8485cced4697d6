"""The data source as Spark finds, pickles and loads it."""

import json
import pickle
import subprocess
import sys

import pytest
from support.spark.source_queries import schema_of

from pyspark_rocketpoll import DefaultSource
from rmq_spark.spark.batch_reader import BatchReader
from rmq_spark.spark.data_source import RocketPollDataSource
from rmq_spark.spark.errors import OptionError


def test_spark_finds_the_format_by_its_module():
    assert DefaultSource is RocketPollDataSource
    assert DefaultSource.name() == "rocketpoll"


def test_data_source_lookup_imports_no_heavy_modules():
    program = (
        "import pyspark.sql.datasource, sys, json; before = set(sys.modules); import "
        "pyspark_rocketpoll; print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )
    assert json.loads(done.stdout) == [
        "pyspark_rocketpoll",
        "rmq_spark",
        "rmq_spark.errors",
        "rmq_spark.spark",
        "rmq_spark.spark.data_source",
        "rmq_spark.spark.tracebacks",
    ]


def test_unknown_source_option_is_refused_at_once():
    with pytest.raises(
        OptionError, match=r"option topik: there is no such option. Did you mean topic\?"
    ):
        RocketPollDataSource({"topik": "T"})


@pytest.fixture
def _same_python(monkeypatch):
    """Make Spark start the Python that runs the tests."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)


@pytest.mark.usefixtures("_same_python")
def test_load_checks_that_the_topic_exists(rocketpoll_broker, rocketpoll_topic):
    given = {"namesrvAddr": rocketpoll_broker.address, "topic": rocketpoll_topic}
    assert (
        RocketPollDataSource(given)
        .schema()
        .startswith("topic string, brokerName string, queueId int,")
    )
    assert (
        RocketPollDataSource({**given, "columns": "body,msgId"}).schema()
        == "body binary, msgId string"
    )
    with pytest.raises(OptionError, match="option topic: no route to topic nope"):
        RocketPollDataSource({**given, "topic": "nope"}).schema()
    with pytest.raises(OptionError, match="option columns: there is no bodi"):
        RocketPollDataSource({**given, "columns": "bodi"}).schema()


@pytest.mark.usefixtures("_same_python")
def test_data_source_can_be_pickled_and_makes_readers(rocketpoll_broker, rocketpoll_topic):
    given = {"namesrvAddr": rocketpoll_broker.address, "topic": rocketpoll_topic}
    source = pickle.loads(pickle.dumps(RocketPollDataSource(given)))  # noqa: S301  # as Spark does
    schema = schema_of(source.schema())
    assert isinstance(source.reader(schema), BatchReader)
    assert source.streamReader(schema).initialOffset()["v"] == 1
