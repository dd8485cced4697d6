"""LoopConsumer: the threaded consumer behind one of asyncio; it gives messages, and waits for none.

    request cache ──take──▶ messages of one pull, which count as returned at once
        └──hand_out──▶ handout ──next_handed──▶ one message, and that counts; then the next one

What is left of a handout goes back into the cache, ahead of all else, when something else is asked
for. It must not know the loop: each method but those of `SeekableMember` belongs to its thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from rmq_spark.client import observing
from rmq_spark.client.consumer.assigned_queues import AssignedQueue, Handout
from rmq_spark.client.consumer.commits import Commit
from rmq_spark.client.consumer.lite_pull_member import ListenerOutcome
from rmq_spark.client.consumer.seekable_member import SeekableMember
from rmq_spark.client.consumer.settings import LitePullSettings
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import MessageExt
from rmq_spark.client.threads.crews import Crew, SharedCrew
from rmq_spark.wire.message_queue import MessageQueue

TellListener = Callable[
    [str, frozenset[MessageQueue], frozenset[MessageQueue], ListenerOutcome], object
]
"""Has the listener called in the loop, and the outcome called when it has ended."""


def _in_the_loop(topic: str, all_queues: object, own_queues: object) -> None:
    """Stand for the listener, which `LoopConsumer` has called in its loop."""


class LoopConsumer(SeekableMember):
    """The threaded consumer behind a `Consumer`; its threads are those of the client's crew."""

    def __init__(
        self,
        group: str,
        instance: ClientInstance,
        settings: LitePullSettings,
        tell: TellListener | None,
        crew: SharedCrew,
    ) -> None:
        self._shared_crew = crew
        self._tell = tell
        self.handout: Handout | None = None
        self._handed_of: AssignedQueue | None = None
        super().__init__(group, instance, settings, None if tell is None else _in_the_loop)

    def _call_listener(
        self,
        topic: str,
        all_queues: frozenset[MessageQueue],
        mine: frozenset[MessageQueue],
        outcome: ListenerOutcome,
    ) -> None:
        def ended(error: BaseException | None) -> None:  # in the loop, which waits for no lock
            self._services.schedule(partial(outcome, error))

        if self._tell is not None:
            self._tell(topic, all_queues, mine, ended)

    def _crew(self) -> Crew:
        return self._shared_crew

    def on_arrival(self, call: Callable[[], object]) -> None:
        """Have a function called, in any thread, whenever `take` may return something."""
        self._cache.on_change(call)

    def check_running(self) -> None:
        """Raise `ClientShutDown` if the consumer is not running."""
        self._check_running()

    def confirm_returned(self) -> None:
        """With ``auto_commit``, count what was returned as dealt with, as its caller says."""
        self._auto_commit.more_is_wanted()

    def take(self, most: int | None) -> list[MessageExt] | None:
        """Return up to so many messages of one queue that are here; None without any."""
        self._end_handout()
        return self._take(0, most) or None

    def next_handed(self) -> MessageExt | None:
        """Return the next message of those of one pull; None if there is none, or none any more."""
        if self.handout is None or (message := self.handout.next()) is None:
            return None
        observing.handed(self.group, message)
        return message

    def hand_out(self) -> MessageExt | None:
        """Return the next message, if need be the first of another pull; None without any."""
        if (message := self.next_handed()) is None:
            try:
                self._end_handout()
                self._begin_handout()
            except BaseException:  # out of a signal handler, at any line
                self._return_again()
                raise
            message = self.next_handed()
        if message is not None and self._handed_of is not None:
            self._note_returned(self._handed_of)
        return message

    def _begin_handout(self) -> None:
        request = self._cache.poll(0, one_by_one=True)
        if request is not None:
            self._handed_of, self.handout = request.assigned, request.assigned.handout
            if self.handout is not None:
                self.handout.asking_confirms = self._lite.auto_commit

    def _end_handout(self) -> None:
        of, self._handed_of, self.handout = self._handed_of, None, None
        if of is not None and (left := of.end_handout()) is not None:
            self._cache.put_back(left)

    def _forked(self) -> None:
        """Hand out nothing of what the parent process has pulled."""
        super()._forked()
        self.handout = self._handed_of = None

    def wanted_commit(self, offsets: Mapping[MessageQueue, int] | None) -> Commit:
        """Return what `commit` stores: the offsets given, or how far all was returned."""
        return self._wanted_commit(offsets)

    def store(self, commit: Commit, *, all_of_them: bool) -> None:
        """Store the group's offsets, and wait until the brokers have them.

        Those of queues that were given up since are another member's to store: with
        ``all_of_them`` that is an error, otherwise they are left out.
        """
        if all_of_them:
            for queue in commit.offsets:
                self._checked(queue)
        held = self._assigned.queues
        offsets = {queue: at for queue, at in commit.offsets.items() if queue in held}
        self._persist_now(commit._replace(offsets=offsets))
