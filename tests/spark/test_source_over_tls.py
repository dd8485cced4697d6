"""Source and sink with a TLS broker that accepts only known clients."""

import contextlib
import io
import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from support.brokers.tls_cluster import TlsCluster, behind_tls
from support.servers.tls import CERTIFICATES, certificate
from support.spark.sessions import log_of
from support.spark.source_fixture import SourceRoom, complaint

from rmq_spark.spark.monitoring.checkpoint import read_checkpoint
from rmq_spark.spark.monitoring.lag import lag_now
from rocketpoll import EmbeddedBroker, stream_rows

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def terminator(tmp_path_factory):
    with behind_tls(tmp_path_factory.mktemp("broker")) as (_, terminator):
        yield terminator


@pytest.fixture
def source(spark, terminator, tmp_path):
    cluster = TlsCluster(terminator.address, terminator.address)
    room = SourceRoom(spark, cluster, tmp_path)
    yield room
    room.close()
    cluster.close()


@pytest.fixture
def tls(tmp_path):
    """Return the TLS options, with this test's own files."""
    files = {"tlsCaFile": "ca.pem", "tlsCertFile": "client.crt", "tlsKeyFile": "locked.key"}
    for name in files.values():
        shutil.copy(CERTIFICATES / name, tmp_path / name)
    paths = {option: str(tmp_path / name) for option, name in files.items()}
    return {"tls": "true", **paths, "tlsKeyPassword": "rocketpoll"}


@pytest.mark.wide
def test_source_and_sink_copy_rows_over_tls(source, tls):
    topic, copies = source.cluster.topic(2), source.cluster.topic(2)
    source.cluster.send(topic, "a", "b", "c", queues=2)
    rows = source.stream(topic=topic, startingOffsets="earliest", columns="keys,tags,body", **tls)
    checkpoint = str(source.checkpoint())
    sink = rows.writeStream.format("rocketpoll").option("checkpointLocation", checkpoint)
    query = sink.options(namesrvAddr=source.cluster.name_server, topic=copies, **tls).start()
    try:
        query.processAllAvailable()
        source.cluster.send(topic, "d", "e", queues=2)
        query.processAllAvailable()
    finally:
        query.stop()
    assert source.bodies(topic=copies, **tls) == ["a", "b", "c", "d", "e"]
    reached = read_checkpoint(checkpoint)[-1].offsets[0]
    assert lag_now(reached, source.cluster.name_server, **tls).messages == 0


def test_running_stream_no_longer_needs_its_tls_files(source, tls):
    topic = source.cluster.topic(1)
    batches = source.start(source.stream(topic=topic, columns="body", **tls)).caught_up()
    for option in ("tlsCaFile", "tlsCertFile", "tlsKeyFile"):
        Path(tls[option]).unlink()
    source.cluster.send(topic, "a", queues=1)
    assert batches.caught_up().bodies == ["a"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"tlsCaFile": "/no/ca.pem"},
            "option tlsCaFile: /no/ca.pem cannot be read: No such file or directory; needed a PEM",
        ),
        ({"tlsKeyPassword": "sesame"}, "option tlsKeyPassword: it does not decrypt the key in "),
        (
            {"tlsCaFile": certificate("other-ca.pem")},
            "Put the authority that signed it into the CA file",
        ),
        (
            {"tlsServerName": "brokers.example"},
            "Connect to a name that it has, or set one as server name",
        ),
        ({"tls": "false"}, "option tlsCaFile: it has no effect without tls=true"),
    ],
)
def test_tls_mistake_is_reported_at_load(source, tls, given, said):
    for load in (source.load, source.stream):
        with pytest.raises(PySparkException) as raised:
            load(**{"topic": "T", **tls, **given})
        assert said in complaint(raised)
        assert "sesame" not in str(raised.value)


def test_load_without_tls_options_gets_a_hint(source):
    with pytest.raises(PySparkException) as raised:
        source.load(topic="T")
    assert "Does it require TLS?" in complaint(raised)


def test_tls_password_and_key_are_never_logged(source, tls, tmp_path):
    topic = source.cluster.topic(1)
    source.cluster.send(topic, "a", queues=1)
    shown = io.StringIO()
    given = {**tls, "tlsKeyPassword": "whisper-1122"}
    with contextlib.redirect_stdout(shown):
        source.load(topic=topic, **tls).explain(extended=True)
        batches = source.run(source.stream(topic=topic, startingOffsets="earliest", **tls))
        batches.query.explain(extended=True)
    with pytest.raises(PySparkException) as raised:
        source.load(topic=topic, **given)
    shown.write(str(raised.value))
    log = log_of(source.spark).read_text(encoding="utf-8", errors="replace")
    key_line = (tmp_path / "locked.key").read_text(encoding="ascii").splitlines()[1]
    for text in (shown.getvalue(), log):
        assert "whisper-1122" not in text
        assert key_line not in text


def test_stream_reads_an_embedded_broker_with_tls(spark):
    with EmbeddedBroker(tls=True, **{"tls.server.need.client.auth": "require"}) as broker:
        broker.create_topic("orders", queues=2)
        rows = stream_rows(spark, broker, "orders", "a", "b", "c", expected=3)
        assert sorted(bytes(row.body) for row in rows) == [b"a", b"b", b"c"]
        copies = spark.createDataFrame([("d",)], "body string").write.format("rocketpoll")
        copies.options(**broker.spark_options, topic="orders").mode("append").save()
        assert broker.messages("orders")[-1].body == b"d"
