"""A stream that continues under another sink name does not publish visible rows again."""

import pytest
from support.spark.exactly_once_sink import CommittingSink, behind_look

from rmq_spark.spark.errors import WriteError

pytestmark = pytest.mark.usefixtures("own_producers")


@pytest.fixture
def made(monkeypatch, rocketpoll_broker, rocketpoll_topic):
    """Return a function that starts the query with the given options."""

    def make(run="run-0", **options):
        # unique, because the broker also knows queries of other tests
        query = f"query-of-{rocketpoll_topic}"
        topic = options.pop("topic", rocketpoll_topic)
        sink = CommittingSink(monkeypatch, rocketpoll_broker, topic, query, **options)
        sink.run = run
        return sink

    return make


@pytest.fixture
def seen(rocketpoll_broker, rocketpoll_topic):
    """Return a function that reads the topic without isolation."""
    return lambda: sorted(m.text for m in rocketpoll_broker.messages(rocketpoll_topic))


def refused(sink, batch, rows):
    """Return the error that refuses a batch."""
    with pytest.raises(WriteError) as error:
        sink.write(batch, rows)
    assert f"{sink.query} is already committed to {sink.options['topic']}" in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("last", [0, 2])
def test_batch_visible_to_all_is_refused_under_a_new_sink_name(made, seen, rocketpoll_topic, last):
    old, new = f"{rocketpoll_topic}-old", f"{rocketpoll_topic}-new"
    first = made(visibleTo="all", sinkName=old)
    rows = [first.rows(2, 1) for _ in range(last + 1)]
    there = [row for number in range(last + 1) for row in first.write(number, rows[number])]
    renamed = made("run-1", visibleTo="all", sinkName=new)
    for number in range(last + 1):  # also from an older copy of its checkpoint
        error = refused(renamed, number, rows[number])
        assert f"by sink {old}, but sink {new} does not know it" in error
        assert f'the old options, with .option("sinkName", "{old}")' in error
    made("run-2", visibleTo="all", sinkName=old).write(last, rows[last])  # the remedy of the error
    there += renamed.write(last + 1, renamed.rows(2))
    assert seen() == sorted(there)


@pytest.mark.parametrize("last", [0, 2])
def test_batch_counted_by_its_manifest_is_not_shown_under_a_renamed_sink(made, seen, last):
    first = made()
    rows = [first.rows(2, 1) for _ in range(last + 1)]
    there = [row for number in range(last + 1) for row in first.write(number, rows[number])]
    shown = made("run-1", visibleTo="all")
    error = refused(shown, last, rows[last])
    assert "by a manifest, but sink" in error
    assert 'the old options, with .option("visibleTo", "committed_readers")' in error
    there += shown.write(last + 1, shown.rows(2))
    assert seen() == sorted(there)


def test_sink_returning_to_its_first_name_is_checked_against_the_other(
    made, seen, rocketpoll_topic
):
    names = [f"{rocketpoll_topic}-{name}" for name in ("old", "new")]
    sinks = [made(visibleTo="all", sinkName=name) for name in names]
    rows = sinks[0].rows(3)
    there = sinks[0].write(0, sinks[0].rows(2)) + sinks[1].write(1, sinks[1].rows(2))
    there += sinks[1].write(2, rows)
    assert f"by sink {names[1]}, but" in refused(sinks[0], 2, rows)
    assert seen() == sorted(there)


def test_batch_committed_by_another_driver_is_not_taken_for_a_renamed_sinks(
    monkeypatch, made, seen
):
    first, late = made(visibleTo="all"), made("run-1", visibleTo="all")
    rows = first.rows(2)
    sent = first.send(0, rows)
    behind_look(monkeypatch, 1, lambda: first.commit(0, sent))
    late.write(0, rows)
    assert seen() == sorted(*rows)


def test_new_sink_name_with_a_new_topic_is_accepted(
    made, seen, rocketpoll_topic, rocketpoll_broker
):
    """The batch then has rows in both topics, once in each."""
    first = made(visibleTo="all")
    rows = first.rows(2)
    there = first.write(0, rows)
    rocketpoll_broker.create_topic(f"{rocketpoll_topic}-2")
    made("run-1", visibleTo="all", topic=f"{rocketpoll_topic}-2").write(0, rows)
    assert seen() == sorted(there)
    assert len(rocketpoll_broker.messages(f"{rocketpoll_topic}-2")) == len(there)
