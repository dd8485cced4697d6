"""Manifests as bytes, and which of them count, without a broker."""

import json
import pickle
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.client.errors import ManifestError
from rmq_spark.client.manifest import (
    WRITES_KEPT,
    CommitManifest,
    CommitState,
    CommittedSpan,
    ManifestId,
    commits_topic_name,
    decode_manifest,
    manifest_bytes_needed,
)
from rmq_spark.wire.message_queue import MessageQueue

COUNTS = st.integers(0, 1 << 40)
SPANS = st.builds(
    CommittedSpan,
    st.builds(MessageQueue, st.just("orders"), st.text(max_size=5), st.integers(0, 99)),
    COUNTS,
    COUNTS,
    COUNTS,
    COUNTS,
)
_VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
ANYTHING = _VALUES | st.lists(_VALUES, max_size=3) | st.dictionaries(st.text(), _VALUES, max_size=3)
IDS = st.builds(ManifestId, st.none() | st.text(), st.text(), COUNTS, st.text())


def span(number, rows=1):
    return CommittedSpan(MessageQueue("orders", "broker-a", 0), number, rows, 7, 100)


def manifest(count=1):
    spans = tuple(span(number) for number in range(count))
    return CommitManifest("orders", ManifestId("q", "", 3, "r"), spans)


def written(whole, bytes_max):
    """Return a manifest's messages with their offsets, the last one separately."""
    early, spans = whole.encode_parts(bytes_max)
    parts = dict(enumerate(early, 40))
    return parts, whole.encode_final_message(spans, list(parts))


@given(st.lists(SPANS, max_size=30), IDS, st.integers(1, 4_000))
def test_manifest_round_trips_in_any_number_of_parts(spans, named, bytes_max):
    whole = CommitManifest("orders", named, tuple(spans))
    parts, last = written(whole, bytes_max)
    found = decode_manifest(last)
    assert found.id == named
    again = found.join_parts(parts) if parts else found
    assert again.spans == whole.spans
    assert all(decode_manifest(part) is None for part in parts.values())


def test_manifest_parts_respect_the_size_limit():
    parts, last = written(manifest(5_000), 20_000)
    assert len(parts) > 10
    assert all(len(body) <= 20_000 for body in [*parts.values(), last])


def test_missing_or_wrong_manifest_part_is_found():
    parts, last = written(manifest(100), 4_000)
    found = decode_manifest(last)
    with pytest.raises(ManifestError, match="its part at offset 41 is gone"):
        found.join_parts({at: body for at, body in parts.items() if at != 41})
    with pytest.raises(ManifestError, match="their sum differs"):
        found.join_parts({**parts, 41: parts[40]})
    with pytest.raises(ManifestError, match="the message at offset 40"):
        found.join_parts({**parts, 40: last})


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"hello", "it is not a manifest, but b'hello'"),
        (b"[1]", "it is not a manifest"),
        (b'{"v": true}', "it is not a manifest"),
        (b'{"v": 1}', "it is not a manifest: b'"),
        (b'{"v": 2, "what": "ever"}', "it is of version 2, and this release of rocketpoll reads 1"),
        (written(manifest(), 9_999)[1].replace(b"[[", b'[["x"],['), "is malformed"),
        (written(manifest(), 9_999)[1].replace(b'"rows":1', b'"rows":2'), "their sum differs"),
        (
            written(manifest(), 9_999)[1].replace(b'"batch":3', b'"batch":-3'),
            "it is not a manifest",
        ),
        (written(manifest(), 9_999)[1][:-1] + b',"parts":5}', "it is not a manifest"),
        (written(manifest(), 9_999)[1].replace(b",0,0,1,7", b",0,%d,1,7" % 2**63), "is malformed"),
        (written(manifest(), 9_999)[1].replace(b",0,0,1,7", b",%d,0,1,7" % 2**31), "is malformed"),
    ],
)
def test_invalid_manifest_error_gives_the_reason(body, problem):
    with pytest.raises(ManifestError, match=problem.replace("[", r"\[")) as raised:
        decode_manifest(body)
    assert "\n" not in str(raised.value)
    assert raised.value.version == (2 if "version 2" in problem else 0)
    again = pickle.loads(pickle.dumps(raised.value))  # noqa: S301  # as Spark does
    assert (str(again), again.version) == (str(raised.value), raised.value.version)


FIELDS = [*json.loads(written(manifest(), 9_999)[1]), "origin", "part", "parts"]


@pytest.mark.parametrize("field", FIELDS)
@given(ANYTHING)
def test_manifest_with_any_field_value_is_read_or_refused(field, value):
    body = json.dumps({**json.loads(written(manifest(), 9_999)[1]), field: value}).encode()
    with suppress(ManifestError):
        found = decode_manifest(body)
        if found is not None:
            found.join_parts({0: body})


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"v":' * 100_000, b'{"v":1,"part":' * 100_000])
def test_deeply_nested_json_is_no_manifest(body):
    with pytest.raises(ManifestError, match="it is not a manifest, but"):
        decode_manifest(body)


# ---- which manifests count


def taken(state, *ids):
    """Return the state after these manifests, and the numbers of the counted ones."""
    return state.apply(enumerate(ManifestId(*each) for each in ids))


def test_first_manifest_of_a_batch_counts_and_repeats_do_not():
    _, counting = taken(CommitState(), ("q", "", 0), ("q", "", 0), ("q", "", 1), ("q", "", 0))
    assert counting == (0, 2)


def test_batches_count_per_query_and_write_name():
    state, counting = taken(
        CommitState(), ("q", "", 4), ("p", "", 2), ("q", "a", 5), ("q", "b", 5), ("q", "a", 5)
    )
    assert counting == (0, 1, 2, 3)
    _, counting = taken(state, ("q", "c", 4), ("p", "", 2), ("q", "c", 5), ("p", "", 3))
    assert counting == (2, 3)


def test_batch_write_counts_once_and_the_latest_write_names_are_kept():
    names = [(None, f"w{number}", 0) for number in range(WRITES_KEPT + 1)]
    state, counting = taken(CommitState(), *names, *names[1:])
    assert len(counting) == len(names)
    assert len(state.writes) == WRITES_KEPT


@given(st.lists(IDS, max_size=12), st.integers(0, 12))
def test_commit_state_is_the_same_over_a_restart_of_the_reader(ids, cut):
    numbered = list(enumerate(ids))
    at_once = CommitState().apply(numbered)
    before, first = CommitState().apply(numbered[:cut])
    document = json.loads(json.dumps(before.to_json()))
    behind, second = CommitState.from_json(document).apply(numbered[cut:])
    assert (behind, first + second) == at_once


def test_malformed_commit_state_is_refused():
    for document in (None, {}, {"queries": {"q": []}}, {"queries": {"q": ["x"]}}, {"queries": 3}):
        with pytest.raises(ManifestError, match="it is not a saved state of commits"):
            CommitState.from_json(document)


def test_commits_topic_name_is_the_topic_with_a_suffix():
    assert commits_topic_name("eu%orders") == "eu%orders_COMMITS"


def test_manifest_bytes_needed_covers_the_largest_numbers():
    needed = manifest_bytes_needed("T", "w")
    most = (1 << 63) - 1
    span = CommittedSpan(MessageQueue("T", "broker-a", 7), most, most, (1 << 32) - 1, most)
    manifest = CommitManifest("T", ManifestId("q" * 36, "w", most, "r" * 36), (span,))
    assert len(manifest.encode_final_message([span], [most])) < needed < 1_000
