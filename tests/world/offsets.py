"""Committed offsets of groups, and the offsets that a broker may report: the last or a pending one.

After a crash it may be an older one, if it was committed after the last save; never one that no
client has committed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass


@dataclass(eq=False)
class Commit:
    """One offset that a client has committed."""

    key: tuple
    offset: int | None
    asked_at: float
    done_at: float | None = None


class Offsets:
    """All commits, by group, topic and queue."""

    def __init__(self, world, save_seconds):
        """``save_seconds`` is the time until a commit is on the disk, without troubles."""
        self._world = world
        self._save_seconds = save_seconds
        self._commits = defaultdict(list)

    def asked(self, key, offset):
        commit = Commit(key, offset, self._world.kernel.now)
        self._commits[key].append(commit)
        return commit

    def answered(self, commit, *, is_done):
        if is_done:
            commit.done_at = self._world.kernel.now

    def known(self):
        return list(self._commits)

    def allowed(self, key):
        """Return the possible responses now: the last stored offset, and all requested since."""
        commits = self._commits[key]
        done = [commit for commit in commits if commit.done_at is not None]
        if not done:
            # A new group begins at 0 while the queue has its first message.
            return {None, 0, *(commit.offset for commit in commits)}
        last = max(done, key=lambda commit: commit.done_at)
        allowed = {
            each.offset for each in commits if each.done_at is None or each.done_at >= last.asked_at
        }
        return allowed | {0} if None in allowed else allowed

    def queried(self, key, before, found):
        """Check a response; ``before`` is what `allowed` returned at the request. More may have
        been committed since."""
        allowed = before | self.allowed(key)
        if found not in allowed:
            self._world.ledger.complain(
                f"group {key[0]} is at {found} of {key[1]}/{key[2]}, not at {allowed}"
            )

    def life_ended(self, kind):
        """Apply a crash: it drops unsaved commits; unanswered ones may have been stored or not."""
        now = self._world.kernel.now
        saved_by = self._world.watch.calm_since() - self._save_seconds
        is_saved = kind == "stop" and not self._world.watch.may_refuse_a_save
        for key, commits in self._commits.items():
            if is_saved:
                saved = [each for each in commits if each.done_at is not None]
            else:
                saved = [
                    each for each in commits if each.done_at is not None and each.done_at < saved_by
                ]
            last = max(saved, key=lambda each: each.done_at, default=Commit(key, None, -1.0, -1.0))
            # Any of the later ones may be the last saved one.
            left = [
                last,
                *(
                    each
                    for each in commits
                    if each.done_at is None or each.done_at >= last.asked_at
                ),
            ]
            self._commits[key] = [Commit(key, each.offset, now, now) for each in left]
