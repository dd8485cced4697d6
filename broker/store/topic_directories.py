"""TopicDirectories: where the queues of a topic lie: consumequeue/<topic>/, as with RocketMQ.

To a disk that does not tell capitals from small letters two topics may be one name. Which of them
came later lies apart there, below a directory that says which of its letters are capitals:

    consumequeue/Orders/0/
    consumequeue/.0/orders/0/       bit 0 for the first letter, in hexadecimal digits
    consumequeue/.3f/ORDERS/0/

This module must not know what lies in these directories.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rocketpoll.broker.store.disk import Disk, is_passed_over

_CAPITALS: Final = re.compile(r"\.[0-9a-f]+")


class TopicDirectories:
    """The directories of one store, by topic."""

    def __init__(self, disk: Disk, root: Path) -> None:
        """Prepare without touching the disk."""
        self._disk = disk
        self._root = root
        self._apart: dict[str, Path] = {}
        self._first: dict[str, str] = {}
        """The topic that was first to have a name, by the name in small letters."""
        self._tells_capitals: bool | None = None

    def found(self) -> Iterator[tuple[str, Path]]:
        """Yield what is there: the name of a topic, as a rule, and its path."""
        for name in self._disk.names(self._root):
            is_apart = _CAPITALS.fullmatch(name)
            if is_passed_over(name) and not is_apart:
                continue
            if not is_apart:
                self._first.setdefault(name.lower(), name)
                yield name, self._root / name
                continue
            for topic in self._disk.names(self._root / name):
                self._apart[topic] = self._root / name / topic
                yield topic, self._apart[topic]

    def of(self, topic: str) -> Path:
        """Return the directory of a topic, whether it exists or not.

        Raises:
            OSError: The disk does not say whether it tells two names apart.
        """
        if topic not in self._apart:
            first = self._first.setdefault(topic.lower(), topic)
            if first == topic or self._are_told_apart(first, topic):
                return self._root / topic
            capitals = sum(1 << at for at, letter in enumerate(topic) if letter.isupper())
            self._apart[topic] = self._root / f".{capitals:x}" / topic
        return self._apart[topic]

    def _are_told_apart(self, first: str, topic: str) -> bool:
        if self._tells_capitals is None:
            self._disk.make_directory(self._root / first / "0")  # as its first queue would
            is_listed = topic in self._disk.names(self._root)
            self._tells_capitals = is_listed or not self._disk.names(self._root / topic)
        return self._tells_capitals
