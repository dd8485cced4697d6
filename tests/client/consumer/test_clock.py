"""The consumers' clock is monotonic and counts milliseconds."""

import time

from rmq_spark.client.consumer.queues.process_queue import monotonic_ms


def test_monotonic_ms_counts_milliseconds():
    before = time.monotonic_ns()
    seen = [monotonic_ms() for _ in range(100)]
    after = time.monotonic_ns()
    assert seen == sorted(seen)
    assert before // 1_000_000 <= seen[0] <= seen[-1] <= after // 1_000_000
