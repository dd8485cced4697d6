"""A small store with timer messages that can be restarted; the test moves the clock."""

from dataclasses import replace

from support.disks.faulty_disk import ManualClock
from support.stores.small_store import StoreThatRefuses, bodies, message, open_store

from rmq_spark.wire.message.properties import decode_properties
from rmq_spark.wire.names import TIMER_TOPIC
from rocketpoll.broker.common.recent_losses import LossKind, RecentLosses
from rocketpoll.broker.schedule.real_topic_delivery import RealTopicDelivery
from rocketpoll.broker.schedule.timer_files import TimerFiles
from rocketpoll.broker.schedule.timer_message import TimerRules, recall_message, to_timer_topic
from rocketpoll.broker.schedule.timer_message_store import TimerMessageStore
from rocketpoll.broker.store.files.disk import LocalDisk

RULES = TimerRules(precision_ms=1_000, delay_max_ms=3 * 24 * 3_600_000)
WINDOW_MS = 48 * 3_600_000
LATE_MS = 2
"""Maximum milliseconds that a message may be late."""


class TimerBroker:
    """The broker's timer service; ``clock`` is the time of day, which a test may set."""

    def __init__(
        self,
        root,
        clock=None,
        disk=None,
        monotonic_ms=40_000,
        log_file_bytes=52 * 8 + 16,
        **store,
    ):
        self.root = root
        self.store_settings = {"mapped_file_size_commit_log": 1 << 20, **store}
        self.clock = clock or ManualClock()
        self.disk = disk or LocalDisk()
        self.monotonic_ms = monotonic_ms
        self.topics = {"T": 4, TIMER_TOPIC: 1}
        self.window_ms = WINDOW_MS
        self.log_file_bytes = log_file_bytes
        self.refuses = None
        self.has_arrivals = False
        self.start()

    def start(self):
        self.store = open_store(
            self.root / "store", self.disk, clock=self.clock, **self.store_settings
        )
        delivery = RealTopicDelivery(
            StoreThatRefuses(self.store, self.put),
            lambda topic: self.topics.get(topic, 0),
            self.topics.setdefault,
            LossKind.TIMER_MESSAGE,
            RecentLosses(self.clock),
        )
        self.files = TimerFiles(
            self.disk,
            self.root / "store",
            RULES.precision_ms,
            self.log_file_bytes,
            delivery.flush,
            lambda: self.store.state().min_offset,
        )
        self.timers = TimerMessageStore(
            self.store,
            self.files,
            RULES,
            delivery,
            self.clock,
            lambda: self.monotonic_ms,
            lambda: self.window_ms,
        )

    def put(self, target):
        if target.topic == TIMER_TOPIC:  # stored again for a later run
            self.timers.record_arrival()
            self.has_arrivals = True
        return self.refuses or self.store.put_message(target)

    def stop(self):
        self.timers.save_final(self.monotonic_ms)
        self.close()

    def close(self):
        self.timers.close()
        self.store.shutdown()

    def restart(self, *, is_clean=True):
        if is_clean:
            self.stop()
        else:
            self.close()
        self.start()

    def set(self, text, delay_ms, queue_id=0, *, has_delay=True, **more):
        """Put a timer message; return its due time."""
        due = ("TIMER_DELAY_MS", delay_ms)
        if not has_delay:
            due = ("TIMER_DELIVER_MS", self.clock() + delay_ms)
        properties = {"UNIQ_KEY": f"id-{text}", due[0]: str(due[1]), **more}
        original = message(text, queue_id=queue_id, **properties)
        deliver_ms = RULES.deliver_ms(decode_properties(original.properties_text), self.clock())
        self.store.put_message(to_timer_topic(original, deliver_ms, RULES))
        self.timers.record_arrival()
        return deliver_ms

    def recall(self, text, deliver_ms, topic="T"):
        due_ms = RULES.slot_ms(deliver_ms) + 1
        if due_ms <= self.clock():
            return False
        recalled = replace(message("0"), topic=topic, born_timestamp=self.clock())
        self.store.put_message(recall_message(recalled, f"id-{text}", due_ms, RULES))
        self.timers.recall(topic, f"id-{text}", due_ms, self.monotonic_ms)
        self.timers.record_arrival()
        return True

    def wait(self, ms):
        """Advance both clocks."""
        self.monotonic_ms += ms
        self.clock.now_ms += ms

    def deliver(self):
        """Run the service once; return the milliseconds until its next run."""
        self.has_arrivals = False
        next_ms = self.timers.deliver_due(self.monotonic_ms)
        if self.has_arrivals:
            return 0
        return None if next_ms is None else next_ms - self.monotonic_ms

    def deliver_all(self):
        while (again := self.deliver()) == 0:
            pass
        return again

    def run_until(self, monotonic_ms):
        """Run the service whenever it is due, until this time."""
        while True:
            again = self.deliver_all()
            left_ms = monotonic_ms - self.monotonic_ms
            if again is None or again > left_ms:
                self.wait(left_ms)
                self.deliver_all()
                return
            self.wait(again)

    def delivered(self):
        """Return the delivered texts of each queue, in order."""
        return [text for queue_id in range(4) for text in bodies(self.store, queue_id=queue_id)]
