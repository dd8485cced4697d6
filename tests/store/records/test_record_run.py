"""Records encoded as a run equal those encoded one by one, with queue offsets."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st
from support.messages.stored_messages import int64s, plain_messages, properties
from support.stores.small_store import LOG_FILE_BYTES, bodies, message, open_store

from rocketpoll.broker.store.append.record_encoding import (
    RecordRun,
    RecordTemplate,
    UniformParts,
    draft_of,
    terminated_properties,
)
from rocketpoll.broker.store.results import PutMessageStatus

parts = st.tuples(st.integers(0, 2), st.binary(max_size=50), properties, int64s)


@given(
    st.lists(plain_messages, min_size=3, max_size=3, unique_by=lambda each: each.queue_id),
    st.lists(parts, min_size=1, max_size=6),
)
def test_record_run_equals_the_records_of_its_single_messages(kinds, sent):
    templates = [RecordTemplate(draft_of(kind)) for kind in kinds]
    numbers, all_bodies, texts, births = zip(*sent, strict=True)
    ready = [terminated_properties(text.encode()) for text in texts]
    flags = [templates[number].flag for number in numbers]
    parts = UniformParts(flags, all_bodies, ready)
    run = RecordRun([templates[number] for number in numbers], parts, births)
    first = {template.queue: 10 * number for number, template in enumerate(templates)}
    run.next_offsets = dict(first)
    records = run.encode(0, 700, 900)
    assert len(records) == run.size == sum(run.sizes)
    place, given_offsets = 700, dict(first)
    for number, body, text, born_timestamp, fresh in zip(
        numbers, all_bodies, texts, births, run.recent.records, strict=True
    ):
        draft = draft_of(
            dataclasses.replace(
                kinds[number], body=body, properties_text=text, born_timestamp=born_timestamp
            )
        )
        draft.prepare()
        queue = templates[number].queue
        expected = draft.encode(given_offsets[queue], place, 900)
        assert records[place - 700 : place - 700 + draft.size] == expected
        assert fresh[:4] == (queue, given_offsets[queue], place, draft.size)
        given_offsets[queue] += 1
        place += draft.size
    assert run.next_offsets == given_offsets
    assert (run.recent.start_offset, run.recent.end_offset) == (700, place)


def run_of(*sent, queue_id=0):
    template = RecordTemplate(draft_of(message("", queue_id=queue_id)))
    count = len(sent)
    return RecordRun.uniform(template, UniformParts([0] * count, sent, [b"p\x01q\x02"] * count), 0)


def test_put_run_takes_known_queues_while_the_log_file_has_room(tmp_path):
    store = open_store(tmp_path)
    assert store.put_run(run_of(b"first")) is None  # the slow path, which checks the topic's name
    store.put_message(message("first"))
    result = store.put_run(run_of(b"second", b"third"))
    assert (result.status, result.message_count) == (PutMessageStatus.PUT_OK, 2)
    later = RecordTemplate(draft_of(message("")))
    assert store.put_buffered(later, b"fourth", b"", 0) is None
    assert store.put_run(run_of(b"fifth")).status is PutMessageStatus.PUT_OK
    assert [each.queue_offset for each in store.write_buffered()] == [3]
    assert bodies(store) == ["first", "second", "third", "fourth", "fifth"]
    assert store.put_run(run_of(b"x" * 100, bytes(LOG_FILE_BYTES - 700))) is None
    assert store.put_run(run_of(b"x", b"", queue_id=1)) is None
    store.shutdown()
