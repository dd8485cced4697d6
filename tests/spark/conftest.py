"""One Spark session and one broker of each kind for all tests in this folder; each test has its own
topics."""

import pyspark
import pytest
from support.brokers.broker_kinds import NAME
from support.brokers.clusters import EVERY_CLUSTER, Cluster, running
from support.spark import exactly_once_sink
from support.spark.sessions import started_session
from support.spark.sink_fixture import BODIES, OnceRoom, SinkRoom
from support.spark.source_fixture import SourceRoom
from support.spark.speculation import SecondCopies, need_speculation

from rmq_spark.client.manifest import commits_topic_name
from rocketpoll import EmbeddedBroker

LEAVES_SOCKETS_OPEN = ("4.0.", "4.1.")


def pytest_configure(config):
    """Ignore warnings about sockets that older releases of Spark leave to the garbage collector."""
    if pyspark.__version__.startswith(LEAVES_SOCKETS_OPEN):
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    session = started_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session", params=EVERY_CLUSTER)
def kind(request):
    """Return the kind of broker; results should not depend on it."""
    return request.param


@pytest.fixture(scope="session")
def brokers(kind, tmp_path_factory):
    with running(kind, tmp_path_factory.mktemp("broker")) as addresses:
        yield addresses


@pytest.fixture
def cluster(brokers):
    cluster = Cluster(*brokers, NAME)
    yield cluster
    cluster.close()


@pytest.fixture
def source(spark, cluster, tmp_path):
    room = SourceRoom(spark, cluster, tmp_path)
    yield room
    room.close()


@pytest.fixture
def copies(spark, tmp_path):
    """Make Spark start second copies of tasks from now on."""
    need_speculation(spark)
    directory = tmp_path / "copies"
    directory.mkdir()
    return SecondCopies(spark, directory)


@pytest.fixture
def sink(spark, cluster, tmp_path):
    room = SinkRoom(spark, cluster, tmp_path)
    yield room
    room.close()


@pytest.fixture
def own_producers(monkeypatch):
    """Shut down the producers after the test, because those of a `CommittingSink` live as long as
    the process."""
    with exactly_once_sink.own_producers(monkeypatch):
        yield


@pytest.fixture
def commits(rocketpoll_broker, rocketpoll_topic):
    """Return the messages of the commits topic."""
    return lambda: list(rocketpoll_broker.messages(commits_topic_name(rocketpoll_topic)))


@pytest.fixture
def room(spark, tmp_path):
    """Run a broker whose topic ``in`` has messages that the tests copy exactly once."""
    with EmbeddedBroker(tmp_path / "store") as broker:
        for topic in ("in", "out"):
            broker.create_topic(topic, 2)
        room = OnceRoom(spark, broker, tmp_path)
        room.send("in", *BODIES)
        yield room
