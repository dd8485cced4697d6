"""TopicDeletion: noted first, then its queues go, then what was put meanwhile begins again.

    note it in the manifest ── pause reput, move the queues' files aside

A crash before the note finds nothing changed; one after it finds the topic deleted. The files go
later (`deleted_topic_files`), and the messages stay in the log until that expires. What groups keep of the
topic is not known here.
"""

from __future__ import annotations

from ..append.message_appender import MessageAppender
from ..components import StoreComponents
from ..results import FIRST_IN_QUEUE
from .checkpointer import Checkpointer


class TopicDeletion:
    """The deletion of topics of one store."""

    def __init__(
        self, components: StoreComponents, checkpointer: Checkpointer, appender: MessageAppender
    ) -> None:
        """Take the parts of the store, without touching the disk."""
        self._components = components
        self._checkpointer = checkpointer
        self._appender = appender

    def delete(self, topic: str) -> None:
        """Forget the queues of a topic; what was put into it since then is carried once more.

        Raises:
            OSError: The disk refuses. Nothing has changed.
            StoreFailed: The disk has failed, so that nobody knows.
        """
        queues, reput, dispatcher = self._components.queues, self._components.reput, self._components.dispatcher
        self._appender.wipe_refused()  # else a start would find them behind the end of the topic
        with self._checkpointer.maintenance:
            ended = self._appender.topic_ends(topic)
            self._checkpointer.save_deletion(topic, ended.log_end_offset)
            with reput.paused():  # the broker's thread may wait for this: nothing but one rename
                has_newer = any(
                    end > ended.next_offsets.get(queue_id, FIRST_IN_QUEUE)
                    for queue_id, end in queues.ends_of(topic).items()
                )
                try:
                    queues.move_away(topic)
                except OSError:  # what has begun is brought to its end: no restart takes it back
                    queues.hide(topic, ended.next_offsets)
                else:
                    self._appender.forget_topic(topic, ended)
                # None of an earlier record is offered now.
                dispatcher.note_deleted(topic, ended.log_end_offset)
                reput.discard_hidden()
                if has_newer:  # what was put and carried meanwhile belongs to the next topic
                    reput.rewind_to(ended.log_end_offset)
