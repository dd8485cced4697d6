"""Fate: decides the result of each disk operation from the story's endings and troubles.

Troubles of a disk, each for a while:

    slow      flushes take a number of seconds more
    lack      an errno (ENOSPC, EMFILE, ...) for operations of some kinds; of writes, some bytes get
              through, and with ENOSPC all that need no new pages; with ``below``, only on the disk
              with that directory
    broken    the n-th operation of a kind since the trouble began fails with EIO; only after a
              failed flush the store needs a restart
"""

import errno

from world.disk import Verdict

FLUSHES = frozenset({"flush", "flush_directory"})
CHANGES = frozenset({"create", "resize", "write", "rename", "delete", "make_directory"}) | FLUSHES
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Fate:
    """Decides the results of disk operations in one life of a broker."""

    def __init__(self, world, dice, ending):
        self._world = world
        self._dice = dice
        self._ending = ending
        self._changes = 0
        self._since_broken = {}
        self.has_failed = False
        """Whether an operation has failed: then the broker's error log lines are expected."""

    def __call__(self, operation):
        dice, story = self._dice, self._world.story
        is_flush = operation.kind in FLUSHES
        before = dice.random() * 0.000_1 if dice.random() < story.preemption else 0.0
        after = dice.random() * story.flush_seconds if is_flush else 0.0
        if operation.kind in CHANGES:
            self._changes += 1
            ending = self._ending
            if ending is not None and ending.operation == self._changes:
                self._world.note(f"{ending.kind} at {operation}")
                return Verdict(before, after, death=ending.kind, is_done=ending.is_done)
        error, through = self._failure(operation)
        if is_flush:
            after += sum(
                trouble.arguments["flush_seconds"] for trouble in self._world.watch.troubles("slow")
            )
        if error is not None:
            self.has_failed = True
            self._world.note(f"{errno.errorcode[error]} at {operation}")
        return Verdict(before, after, error, through)

    def _failure(self, operation):
        watch = self._world.watch
        for trouble in watch.troubles("lack"):
            is_there = trouble.arguments.get("below", "") in operation.path
            if is_there and operation.kind in trouble.arguments["kinds"]:
                error, through = (
                    getattr(errno, trouble.arguments["errno"]),
                    trouble.arguments["through"],
                )
                if error not in _NO_ROOM or operation.kind != "write":
                    return error, through
                if operation.in_place < operation.size:
                    return error, max(operation.in_place, through)
        for trouble in watch.troubles("broken"):
            if operation.kind == trouble.arguments["operation"]:
                count = self._since_broken[trouble] = self._since_broken.get(trouble, 0) + 1
                if count == trouble.arguments["number"]:
                    if (
                        operation.kind in FLUSHES
                    ):  # all other operations are repeated, or have changed nothing
                        watch.disk_failed()
                    return errno.EIO, trouble.arguments["through"]
        return None, 0
