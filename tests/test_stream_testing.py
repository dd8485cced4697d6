"""`rocketpoll.testing` runs a stream step by step: feed, inspect, stop, crash, inject failures."""

import re
import shutil
import threading

import pytest
from pyspark.sql import Row
from support.spark.sessions import started_session

from rocketpoll import NotInTime, StreamTestError, stream_test
from rocketpoll.broker.stream_testing import _check_rows

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17"),
]

ORDER = "from_json(CAST(body AS STRING), 'id INT, customer STRING, total DOUBLE') AS order"
ADA = '{"id": 1, "customer": "ada", "total": 9.5}'
BOB = '{"id": 2, "customer": "bob", "total": 4.0}'
EVE = '{"id": 3, "customer": "eve", "total": 1.0}'


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    session = started_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def started(spark, rocketpoll_broker, rocketpoll_topic):
    """Return a function that starts a stream over this test's topic."""

    def start(pipeline=texts, **more):
        return stream_test(
            spark, rocketpoll_broker, rocketpoll_topic, pipeline, **{"timeout": 240, **more}
        )

    return start


def texts(source):
    return source.selectExpr("CAST(body AS STRING) AS text")


def large_orders(source):
    orders = source.selectExpr(ORDER).select("order.*")
    return orders.where("total > 2").select("customer", "total")


def totals(source):
    orders = source.selectExpr(ORDER).select("order.*")
    return orders.groupBy("customer").sum("total").toDF("customer", "total")


def test_stream_test_processes_added_data_and_checks_answers(started):
    with started(large_orders) as stream:
        stream.add_data(ADA, BOB, EVE, tags="created")
        stream.process_all()
        stream.check_answer(("bob", 4.0), ("ada", 9.5))
        stream.add_data(BOB)
        stream.process_all()
        stream.check_last_batch({"customer": "bob", "total": 4.0})
        stream.check_answer(("ada", 9.5), ("bob", 4.0), ("bob", 4.0))
        assert [row.customer for row in stream.rows][-1] == "bob"
        checkpoint = stream._checkpoint
    assert not checkpoint.exists()


def test_stopped_stream_test_resumes(started):
    with started() as stream:
        stream.add_data("one")
        stream.process_all()
        stream.stop()
        stream.add_data("two")
        for step in (stream.process_all, stream.stop, stream.crash, lambda: stream.query):
            with pytest.raises(StreamTestError, match=re.escape("does not run: start() it")):
                step()
        stream.start()
        with pytest.raises(StreamTestError, match=re.escape("is already running: stop()")):
            stream.start()
        stream.process_all()
        stream.check_last_batch(("two",))
        stream.check_answer(("one",), ("two",))


@pytest.mark.parametrize("output_mode", ["complete", "update"])
def test_crashed_stream_reruns_its_last_batch_and_counts_state_once(started, output_mode):
    with started(totals, output_mode=output_mode) as stream:
        stream.add_data(ADA)
        stream.process_all()
        stream.add_data(BOB, BOB)
        stream.process_all()
        batches = dict(stream._batches)
        stream.crash()
        stream.start()
        stream.process_all()
        assert stream.query.recentProgress[0]["batchId"] == max(batches), "it is run again"
        assert stream._batches == batches, "with the same rows"
        stream.add_data(BOB)
        stream.process_all()
        bob = ("bob", 12.0)
        stream.check_last_batch(*([("ada", 9.5), bob] if output_mode == "complete" else [bob]))
        assert stream.rows


def test_crash_before_the_first_batch_acts_like_a_stop(started):
    with started() as stream:
        stream.crash()
        stream.start()
        stream.add_data("one")
        stream.process_all()
        stream.check_answer(("one",))


def test_crash_while_writing_the_first_offset_counts_as_before_any_read(started):
    with started() as stream:
        stream.crash()
        offsets = stream._checkpoint / "offsets"
        shutil.rmtree(offsets, ignore_errors=True)
        offsets.mkdir()
        (offsets / ".0.9b3c.tmp").write_text("v1", encoding="utf-8")
        stream.start()
        stream.add_data("one")
        stream.process_all()
        stream.check_answer(("one",))


def test_delayed_message_reaches_the_stream_when_the_clock_advances(
    started, rocketpoll_broker, rocketpoll_topic
):
    from rocketpoll import Message  # noqa: PLC0415  # imported late: only this test needs it

    with started() as stream, rocketpoll_broker.producer() as producer:
        producer.send(Message(rocketpoll_topic, b"later", delay_level=18))
        stream.add_data("now")
        stream.process_all()
        stream.check_answer(("now",))
        stream.advance(2 * 3_600)
        stream.process_all()
        stream.check_answer(("now",), ("later",))


def test_stream_reads_each_message_once_while_the_clock_is_moved(started, rocketpoll_broker):
    numbers = [str(number) for number in range(200)]
    with started() as stream:
        stream.add_data("first")
        stream.process_all()
        sender = threading.Thread(target=stream.add_data, args=numbers)
        sender.start()
        while sender.is_alive():
            stream.advance(3_600)
        stream.process_all()
        stream.check_answer(("first",), *((number,) for number in numbers))


def test_stream_waits_for_an_unreachable_broker_and_continues(started, rocketpoll_broker):
    with started() as stream:
        stream.add_data("one")
        stream.process_all()
        with rocketpoll_broker.away():
            stream.advance(3_600)
        stream.add_data("two")
        stream.process_all()
        stream.check_answer(("one",), ("two",))


def test_stream_with_a_short_retry_timeout_fails_on_an_away_broker(started, rocketpoll_broker):
    with started(options={"retryTimeoutMs": 1_000}) as stream:
        stream.add_data("one")
        stream.process_all()
        with rocketpoll_broker.away(), stream.expect_failure("Connection refused"):
            stream.process_all()
        stream.start()
        stream.add_data("two")
        stream.process_all()
        stream.check_answer(("one",), ("two",))


def test_expected_stream_failure_is_one_step_of_many(started):
    def strict(source):
        return source.selectExpr("CAST(CAST(body AS STRING) AS INT) AS number")

    with started(strict) as stream:
        stream.add_data("1")
        stream.process_all()
        with stream.expect_failure("CAST_INVALID_INPUT"):
            stream.add_data("one")
            stream.process_all()
        with pytest.raises(StreamTestError, match="does not run"):
            stream.process_all()
        stream.start()
        with stream.expect_failure("one"):
            stream.process_all()
        with stream.expect_failure("CAST_INVALID_INPUT"):
            stream.start()
            stream.process_all()
        stream.check_answer((1,))
        with (
            pytest.raises(AssertionError, match=r"does not run: start\(\) it, and process_all"),
            stream.expect_failure(),
        ):
            stream.check_answer((1,))
        with (
            pytest.raises(ValueError, match=r"match: needed a regular expression, found '\('"),
            stream.expect_failure("("),
        ):
            pass


def test_missing_or_different_expected_failure_is_reported(started):
    with started(lambda source: source.selectExpr("1 / (length(body) - 1) AS x")) as stream:
        with (
            pytest.raises(AssertionError, match=re.escape("is there a process_all() in the block")),
            stream.expect_failure(),
        ):
            stream.add_data("good")
        with pytest.raises(ZeroDivisionError), stream.expect_failure():
            raise ZeroDivisionError
        stream.process_all()
        stream.add_data("x")
        with (
            pytest.raises(AssertionError, match=r"failed, but not with 'NOT_FOUND'"),
            stream.expect_failure("NOT_FOUND"),
        ):
            stream.process_all()


def test_unexpected_stream_failure_fails_the_test(started):
    def strict(source):
        return source.selectExpr("CAST(CAST(body AS STRING) AS INT) AS number")

    def run():
        with started(strict) as stream:
            stream.add_data("one")
            stream.query.awaitTermination(240)

    with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
        run()


# two, because Python finds an object equal to itself in a list
AB, NAN, OTHER = Row("a", "b"), float("nan"), float("nan")


@pytest.mark.parametrize(
    ("found", "expected", "is_same"),
    [
        (AB(NAN, 1), (OTHER, 1), True),
        (AB(NAN, 1), {"b": 1, "a": OTHER}, True),
        (AB([NAN], {"k": NAN}), ([OTHER], {"k": OTHER}), True),
        (AB(Row(q=NAN), 2), (Row(q=OTHER), 2), True),
        (AB(Row(q=1), 2), ((1,), 2), True),
        (AB(1, 2), Row(a=1, b=2), True),
        (AB(1, 2), Row(x=1, y=2), False),
        (AB(Row(q=1), 2), (Row(p=1), 2), False),
        (AB(NAN, 1), (0.0, 1), False),
        (AB(1, 2), (1, 2, 3), False),
        (AB([1], 2), ((1,), 2), False),
    ],
    ids=repr,
)
def test_expected_row_is_compared_by_values_and_by_names_if_both_have_them(
    found, expected, is_same
):
    if is_same:
        _check_rows([found], (expected,))
    else:
        with pytest.raises(AssertionError, match="needed 1 rows, found 1"):
            _check_rows([found], (expected,))


def test_stream_test_shows_differing_rows_side_by_side(started):
    with started() as stream:
        stream.add_data("one", "two")
        stream.process_all()
        with pytest.raises(AssertionError) as told:
            stream.check_answer(("one",), ("three",))
        text = str(told.value)
        assert "needed 2 rows, found 2" in text
        assert "missing: ('three',)" in text
        assert "not expected: Row(text='two')" in text
        with pytest.raises(AssertionError, match=r"(?s)needed 0 rows, found 2.*missing: none"):
            stream.check_answer()
        with pytest.raises(TypeError, match=r"a tuple, a Row or a dict, found str 'one'; for"):
            stream.check_answer("one", "two")
        with pytest.raises(AssertionError) as told:
            stream.check_answer(("one", 1), ("three", 3))
        _, missing, unexpected, columns = str(told.value).splitlines()
        assert missing == "missing: ('one', 1), ('three', 3)"
        rows = {"Row(text='one')", "Row(text='two')"}  # from two queues, in any order
        assert set(unexpected.removeprefix("not expected: ").split(", ")) == rows
        assert columns == "its columns are text"


def test_broker_away_right_after_start_does_not_break_the_stream(started, rocketpoll_broker):
    with started() as stream:
        with rocketpoll_broker.away():
            pass
        stream.add_data("one")
        with rocketpoll_broker.away():
            pass
        stream.process_all()
        stream.check_answer(("one",))


def test_stream_step_over_its_timeout_fails_with_the_streams_progress(started):
    def slow(source):
        return source.selectExpr("java_method('java.lang.Thread', 'sleep', 20000L) AS x")

    with started(slow, timeout=1) as stream:
        stream.add_data("one")
        with pytest.raises(NotInTime, match=r"within 1 s: .* its last progress was"):
            stream.process_all()
        with pytest.raises(StreamTestError, match="does not run"):
            stream.process_all()


def test_invalid_stream_test_is_refused_with_advice(spark, started, rocketpoll_broker):
    with pytest.raises(TypeError, match=r"pipeline: needed a function .*, found 'totals'; for"):
        started("totals")
    with pytest.raises(ValueError, match="append, update, complete, found 'all'"):
        started(output_mode="all")
    for timeout in (0, -1, "60", True, float("nan")):
        with pytest.raises(ValueError, match="timeout: needed seconds, more than 0, found"):
            started(timeout=timeout)
    with pytest.raises(TypeError, match=r"an EmbeddedBroker, as rocketpoll_broker, found str '127"):
        stream_test(spark, rocketpoll_broker.address, "orders", texts)
    with (
        pytest.raises(StreamTestError, match="returned None"),
        started(lambda _: None),
    ):
        pass
    with (
        pytest.raises(StreamTestError, match="must return a streaming DataFrame"),
        started(lambda _: spark.range(1)),
    ):
        pass
    for step in (started().process_all, started().start):
        with pytest.raises(StreamTestError, match=r"stream_test\(...\) in a with statement"):
            step()
    kind = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    with pytest.raises(StreamTestError, match="Spark Connect gives no rows"):
        stream_test(kind(), rocketpoll_broker, "orders", texts)


def test_stream_test_can_be_reused_and_starts_over(started):
    stream = started()
    with stream:
        for text in ("one", "two"):
            stream.add_data(text)
            stream.process_all()
        stream.check_answer(("one",), ("two",))
    with stream:
        stream.process_all()  # in one new batch, separate from the earlier ones
        stream.check_answer(("one",), ("two",))


def test_stream_test_creates_a_missing_topic(spark, rocketpoll_broker):
    with stream_test(spark, rocketpoll_broker, "made", texts, timeout=240) as stream:
        stream.add_data("one")
        stream.process_all()
        stream.check_answer(("one",))
    rocketpoll_broker.delete_topic("made")
