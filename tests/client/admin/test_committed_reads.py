"""Committed rows are read as a table without Spark; the test sends rows and manifests as a sink
does."""

import pyarrow as pa
import pytest
from support.messages.bad_messages import changed_bytes

import rocketpoll
from rmq_spark.client.errors import ClientError, ManifestError, RouteNotFound
from rmq_spark.client.manifest import CommitManifest, CommittedSpan, ManifestId
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.errors import RecordError
from rmq_spark.wire.chunk.encode import body_crcs


class Sink:
    """A query that writes to topic T."""

    def __init__(self, producer):
        self._producer = producer

    def rows(self, *bodies):
        """Send rows; return their spans."""
        table = pa.table({"body": [body.encode() for body in bodies], "tags": list(bodies)})
        spans = self._producer.send_table(table, "T").spans
        crcs = body_crcs(pa.array([body.encode() for body in bodies], pa.binary()))
        return [CommittedSpan(*span, int(crcs.sum()) & 0xFFFF_FFFF, 1) for span in spans]

    def commit(self, batch, spans, bytes_max=100_000):
        manifest = CommitManifest("T", ManifestId("q", "", batch), tuple(spans))
        early, last = manifest.encode_parts(bytes_max)
        parts = [self.send(body) for body in early]
        return self.send(manifest.encode_final_message(last, parts))

    def send(self, body):
        return self._producer.send(Message("T_COMMITS", body)).queue_offset


@pytest.fixture
def sink(admin):
    admin.create_topic("T_COMMITS", 1)
    with Producer("P", instance=admin.instance) as producer:
        yield Sink(producer)


def bodies(admin, **more):
    return sorted(admin.read_committed("T", columns=["body"], **more).to_pydict()["body"])


def test_committed_read_table_has_each_committed_row_once(admin, sink):
    sink.commit(0, sink.rows("a", "b"))
    sink.rows("lost")
    sink.commit(0, sink.rows("a", "b"))
    place = sink.commit(1, [*sink.rows("c"), *sink.rows("d")], bytes_max=200)
    assert place == 3  # one part was sent earlier
    assert bodies(admin) == [b"a", b"b", b"c", b"d"]
    assert bodies(admin, tags="a || c") == [b"a", b"c"]
    assert bodies(admin, start="latest") == []


def test_committed_read_from_an_offset_recognizes_repeats(admin, sink):
    sink.commit(0, sink.rows("a"))
    first = admin.topic_offsets("T_COMMITS")
    (queue,) = first
    sink.commit(0, sink.rows("a"))
    sink.commit(1, sink.rows("b"))
    assert bodies(admin, start={queue: 1}, end={queue: 3}) == [b"b"]


def test_committed_read_errors_give_the_reason(admin, sink, running_broker, tmp_path):
    with pytest.raises(RouteNotFound, match="other_COMMITS"):
        rocketpoll.read_committed("other", running_broker.address)
    assert rocketpoll.read_committed("T", running_broker.address).num_rows == 0
    (span,) = sink.rows("find me")
    sink.commit(0, [span._replace(crc=span.crc ^ 1)])
    with pytest.raises(ManifestError, match=r"offsets 0 to 0 of .* are not the committed"):
        bodies(admin)
    [log] = (tmp_path / "store" / "commitlog").iterdir()
    at = log.read_bytes().index(b"find me") - 4  # the length field is right before the body
    with log.open("r+b") as file:
        file.seek(at)
        file.write(b"\x7f")
    with pytest.raises(ManifestError, match=r"the committed row at offset 0 of .* cannot be read"):
        bodies(admin)
    place = sink.send(b"hello")
    with pytest.raises(ManifestError, match=f"offset {place} of .*: it is not a manifest"):
        bodies(admin)
    admin.create_topic("T_COMMITS", 3)
    with pytest.raises(
        ManifestError, match="has 3 queues, but batches are ordered within one queue only"
    ):
        bodies(admin)


@pytest.mark.parametrize("part", ["manifest", "row"])
def test_committed_read_with_any_damaged_byte_omits_no_row(admin, sink, tmp_path, part):
    for batch in range(3):
        sink.commit(batch, sink.rows(f"row {batch}"))
    text = b'"batch":1' if part == "manifest" else b"row 1"
    for at in changed_bytes(tmp_path / "store", text):
        try:
            assert bodies(admin) == [b"row 0", b"row 1", b"row 2"], f"byte {at}"
        except (ClientError, RecordError) as error:  # noqa: PERF203  # an error is allowed for any byte
            assert "T" in str(error), f"byte {at}"  # else the read succeeds
