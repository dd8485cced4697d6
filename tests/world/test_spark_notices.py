"""Everything that a world of Spark draws is also checked: with a fault in the product, some story
fails.

Each drawn feature has a fault here that only this feature detects; `make seeded` has more.
"""

from itertools import count, islice

import pytest
from world.shrinking import failure_of
from world.spark.drawing import draw
from world.spark.world import SparkWorld

from rmq_spark.client.reading import record_batches
from rmq_spark.client.transport.address_overrides import AddressOverrides
from rmq_spark.spark.bodies import decoder
from rmq_spark.spark.bodies.bad_records import BadRecordHandler
from rmq_spark.spark.bodies.encoder import BodyEncoder
from rmq_spark.spark.bodies.json_bodies import JsonBodies
from rmq_spark.spark.brokers import discovery
from rmq_spark.spark.options import options
from rmq_spark.spark.options.values import OnBadRecord

pytestmark = pytest.mark.deep

STORIES_MAX = 12


def has_option(name, value=None, *, kind=None):
    """Return whether a program of a story has an option, perhaps with a value."""

    def has(story):
        return any(
            name in given and value in (None, given[name])
            for client in story.clients
            for step in client.steps
            if "options" in step.arguments and kind in (None, step.kind)
            for given in [step.arguments["options"]]
        )

    return has


def said_of(*are_meant):
    """Return the failure of the first failing story among a few that have a feature."""
    meant = (story for story in map(draw, count()) if all(is_it(story) for is_it in are_meant))
    for story in islice(meant, STORIES_MAX):
        failure = failure_of(story, SparkWorld)
        if failure is not None:
            return str(failure.error)
    return "nothing"


def test_rows_of_unassigned_queues_are_detected(monkeypatch):
    monkeypatch.setattr(discovery, "_is_assigned", lambda selection, queue: True)
    assert "of a queue that it does not read" in said_of(has_option("assign", kind="stream"))


def test_missing_rows_of_assigned_queues_are_detected(monkeypatch):
    is_assigned = discovery._is_assigned
    monkeypatch.setattr(
        discovery,
        "_is_assigned",
        lambda selection, queue: (
            is_assigned(selection, queue)
            and not (selection.assigned and queue.broker_name == "broker-b")
        ),
    )
    monkeypatch.setattr(discovery, "_unlisted_assigned", lambda selection, found: [])
    assert said_of(has_option("assign", kind="stream")) != "nothing"


def test_refused_unknown_broker_is_found_by_some_spark_world(monkeypatch):
    """The fault: a queue that no route names is refused at once."""
    known = discovery.QueueDiscovery._missing_assigned

    def refuse(it, selection, found):
        for queue in known(it, selection, found):
            raise discovery._queue_not_found(queue, ())
        return []

    monkeypatch.setattr(discovery.QueueDiscovery, "_missing_assigned", refuse)

    def forgets(story):
        return any(trouble.kind == "forget a broker" for trouble in story.troubles)

    assert "refused queues that nobody has taken away" in said_of(has_option("assign"), forgets)


def test_unapplied_broker_address_override_is_detected(monkeypatch):
    monkeypatch.setattr(AddressOverrides, "_apply_to_broker", lambda detours, broker: broker)
    assert said_of(has_option("brokerAddresses", kind="stream")) != "nothing"


def test_wrong_topic_names_in_a_namespace_are_detected(monkeypatch):
    monkeypatch.setattr(record_batches, "without_namespace", lambda namespace, topic: topic)
    assert said_of(has_option("namespace", kind="stream")) != "nothing"


def test_groups_without_their_namespace_are_detected(monkeypatch):
    monkeypatch.setattr(options, "wrap_namespace", lambda namespace, name: name)
    assert said_of(has_option("namespace", kind="stream")) != "nothing"


@pytest.mark.parametrize(
    ("how", "taken_for"),
    [
        (OnBadRecord.FAIL, OnBadRecord.NULL),
        # A world reports missing messages only after a long timeout.
        pytest.param(OnBadRecord.NULL, OnBadRecord.SKIP, marks=pytest.mark.wide),
        pytest.param(OnBadRecord.FAIL, OnBadRecord.SKIP, marks=pytest.mark.wide),
        (OnBadRecord.SKIP, OnBadRecord.NULL),
    ],
)
def test_wrong_on_bad_record_handling_is_detected(monkeypatch, how, taken_for):
    begin = BadRecordHandler.__init__

    def begin_otherwise(bad, given):
        begin(bad, taken_for if given is how else given)

    monkeypatch.setattr(BadRecordHandler, "__init__", begin_otherwise)
    is_typed = has_option("bodyFormat", kind="stream")
    assert said_of(is_typed, has_option("onBadRecord", how.value, kind="stream")) != "nothing"


def test_wrong_values_of_valid_bodies_are_detected(monkeypatch):
    each = JsonBodies.decode_each

    def shifted(bodies, some):
        found, faults = each(bodies, some)
        return found.take([*range(1, len(found)), 0]), faults

    monkeypatch.setattr(JsonBodies, "decode_each", shifted)
    assert said_of(has_option("bodyFormat", "json", kind="stream")) != "nothing"


def test_body_fault_reported_for_another_row_is_detected(monkeypatch):
    decoded = decoder.BodyColumns._decode

    def of_the_first(columns, bodies, first, faults):
        return decoded(columns, bodies, 0, faults)

    monkeypatch.setattr(decoder.BodyColumns, "_decode", of_the_first)
    assert "came without what its body holds" in said_of(has_option("bodyFormat", kind="stream"))


def test_sink_body_stored_for_the_wrong_row_is_detected(monkeypatch):
    bodies_of = BodyEncoder._encode_batch

    def shifted(encoder, *of_a_batch):
        first, *others = bodies_of(encoder, *of_a_batch)
        return [*others, first]

    monkeypatch.setattr(BodyEncoder, "_encode_batch", shifted)
    assert "is stored with" in said_of(has_option("bodyFormat", "json", kind="sink"))
