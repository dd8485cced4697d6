from rocketpoll.broker.processor.store_times import NO_TIME, store_timestamp


def test_a_messages_time_is_found_by_its_place(room):
    start = room.clock()
    room.put("first", start + 10)
    room.put("second", start + 20)
    assert [store_timestamp(room.store, "T", 0, offset) for offset in (0, 1)] == [
        start + 10,
        start + 20,
    ]


def test_where_no_message_is_there_is_no_time(room):
    room.put("only")
    assert [store_timestamp(room.store, "T", 0, offset) for offset in (-1, 1, 2)] == [NO_TIME] * 3
    assert store_timestamp(room.store, "T", 1, 0) == NO_TIME
    assert store_timestamp(room.store, "nowhere", 0, 0) == NO_TIME
