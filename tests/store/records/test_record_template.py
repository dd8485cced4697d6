"""Records encoded from a template equal those encoded one by one."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.stored_messages import int32s, int64s, plain_messages, properties
from support.stores.small_store import message

from rmq_spark.errors import RecordError
from rocketpoll.broker.store.append.record_encoding import (
    RecordRun,
    RecordTemplate,
    UniformParts,
    draft_of,
    terminated_properties,
)

bodies = st.binary(max_size=50)


@given(plain_messages, bodies, properties, int64s, st.tuples(int64s, int64s, int64s))
def test_record_sealed_from_a_template_equals_the_encoded_draft(
    common, body, text, born_timestamp, place
):
    sent = dataclasses.replace(
        common, body=body, properties_text=text, born_timestamp=born_timestamp
    )
    draft = draft_of(sent)
    draft.prepare()
    template = RecordTemplate(draft_of(common))
    ready = terminated_properties(text.encode())
    size = template.fixed_bytes + len(body) + len(ready)
    pieces = template.seal(size, common.flag, memoryview(body), ready, born_timestamp, *place)
    assert b"".join(pieces) == draft.encode(*place)
    assert size == draft.size


@given(
    plain_messages, st.lists(st.tuples(int32s, bodies, properties), min_size=1, max_size=5), int64s
)
def test_messages_that_differ_little_become_the_same_records_as_each_by_itself(
    common, parts, born_timestamp
):
    named = [dict(zip(("flag", "body", "properties_text"), part, strict=True)) for part in parts]
    drafts = [
        draft_of(dataclasses.replace(common, born_timestamp=born_timestamp, **each))
        for each in named
    ]
    for draft in drafts:
        draft.prepare()
    flags, all_bodies, all_texts = zip(*parts, strict=True)
    given_parts = UniformParts(flags, all_bodies, [text.encode() for text in all_texts])
    template = RecordTemplate(draft_of(common))
    batch = RecordRun.uniform(template, given_parts, born_timestamp)
    batch.next_offsets = {template.queue: 5}
    assert batch.size == sum(batch.sizes)
    assert batch.sizes == [draft.size for draft in drafts]
    places = itertools.accumulate(batch.sizes, initial=700)
    numbered = zip(drafts, itertools.count(5), places, strict=False)
    assert batch.encode(0, 700, 900) == b"".join(
        draft.encode(number, place, 900) for draft, number, place in numbered
    )
    fresh = batch.recent.records
    assert [each.queue_offset for each in fresh] == list(range(5, 5 + len(parts)))
    assert [each.size for each in fresh] == batch.sizes
    assert fresh[-1].physical_offset + fresh[-1].size == 700 + batch.size


def test_invalid_record_template_is_refused():
    with pytest.raises(RecordError, match="IPv6 bits"):
        RecordTemplate(draft_of(dataclasses.replace(message("x"), sys_flag=0x10)))
    with pytest.raises(ValueError, match="open transactions"):
        RecordTemplate(draft_of(dataclasses.replace(message("x"), sys_flag=0x4)))
    template = RecordTemplate(draft_of(message("x")))
    bad = UniformParts((0, 1 << 31), (b"good", b"bad"), (b"", b""))
    run = RecordRun.uniform(template, bad, 0)
    run.next_offsets = {template.queue: 0}
    with pytest.raises(RecordError, match="32 bits"):
        run.encode(0, 0, 0)
