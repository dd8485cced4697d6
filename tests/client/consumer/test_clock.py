"""The clock of consumers goes on, in milliseconds."""

import time

from rmq_spark.client.consumer.queues.process_queue import monotonic_ms


def test_it_counts_milliseconds_and_never_goes_back():
    before = time.monotonic_ns()
    seen = [monotonic_ms() for _ in range(100)]
    after = time.monotonic_ns()
    assert seen == sorted(seen)
    assert before // 1_000_000 <= seen[0] <= seen[-1] <= after // 1_000_000
