"""Single bytes of a record that change in the log of a running broker, one after the other."""

from __future__ import annotations

import os

from breadth import some

_MAGIC = b"\xda\xa3\x20\xa7"


def changed_bytes(store, text, number=24):
    """Change one byte of the record that has a text in its body, and yield where; then the next.

    All are right again in the end.
    """
    [path] = (store / "commitlog").iterdir()
    with path.open("r+b") as log:
        data = log.read(1 << 20)
        start = data.rindex(_MAGIC, 0, data.index(text)) - 4
        size = int.from_bytes(data[start : start + 4], "big")
        for at in some(range(size), "ROCKETPOLL_CHANGED_BYTES", number):
            os.pwrite(log.fileno(), bytes([data[start + at] ^ 0xFF]), start + at)
            yield at
            os.pwrite(log.fileno(), data[start + at : start + at + 1], start + at)
