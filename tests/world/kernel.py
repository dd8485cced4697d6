"""The kernel of a simulated world: one thing happens at a time, in an order that a seed decides.

    events ──> a heap by virtual time ──┬─ a callback: called, in whichever thread is at hand
                                        └─ an actor's turn: its thread gets the baton,
                                           all others wait

An actor is a real thread that runs only while it has the baton. Whoever has to wait (`park`,
`sleep`) takes the next events out of the heap himself, until it is his own turn again or another
actor's. So a world is as deterministic as a program with one thread, although what runs in it may
use many.

Time is virtual: it stands still while something runs, and goes on to the next event when all wait.
Where nothing will ever happen while somebody waits, that is a `Deadlock`, with the stacks of all
who wait.

It knows no broker, no disk, no network and no module of threads: these are built on it.
"""

from __future__ import annotations

import _thread
import heapq
import itertools
import sys
import traceback

_allocate_lock = _thread.allocate_lock  # the real one, whatever a world puts in its place
_STACK_LINES = 8
_FIRST, _LAST = -1.0, 2.0
"""Among what happens at the same time; between them it is the dice that decide."""


class Killed(SystemExit):
    """Raised in an actor whose process has been killed: it unwinds,
    and nothing that it does counts.

    A SystemExit, as event loops and pools of threads swallow all others.
    """


class Deadlock(AssertionError):
    """Somebody waits, and nothing will ever happen."""


class Event:
    """Something that is to happen at a time; it can be cancelled."""

    __slots__ = ("actor", "call", "is_cancelled")

    def __init__(self, call, actor=None):
        self.call = call
        self.actor = actor  # whose turn it is, when it happens
        self.is_cancelled = False

    def cancel(self):
        self.is_cancelled = True


class Actor:
    """A thread that takes turns. ``process`` is what dies as one; None: it cannot be killed."""

    def __init__(self, name, process=None):
        self.name = name
        self.process = process
        self.ident = 0
        self.is_done = False
        self.is_killed = False
        self.turn = None  # the event that ends its waiting
        self.joined_by = {}
        self.baton = _allocate_lock()
        self.baton.acquire()

    def __repr__(self):
        return f"<{self.name}>"


class Kernel:
    """One world's time, and whose turn it is. Whoever makes it is its first actor, ``main``."""

    def __init__(self, dice):
        """``dice`` is a `random.Random`: it decides between things that happen at the same time."""
        self.now = 0.0
        self.dice = dice
        self.events = 0
        self.failure = None
        self._heap = []
        self._numbers = itertools.count()
        self._alive = {}  # actors, in the order in which they came
        self._actors = {}  # by thread
        self._unwinding_for = []
        self.main = Actor("main")
        self.main.ident = _thread.get_ident()
        self._actors[self.main.ident] = self.main
        self.current = self.main

    # ---- events

    def at(self, time, call, actor=None):
        """Call something at a time; it must not wait."""
        event = Event(call, actor)
        heapq.heappush(
            self._heap, (max(time, self.now), self.dice.random(), next(self._numbers), event)
        )
        return event

    def after(self, seconds, call):
        """Call something some time later; it must not wait."""
        return self.at(self.now + seconds, call)

    def fail(self, error):
        """Main is to raise this, as soon as whoever has the baton waits; of several, the first."""
        self.failure = self.failure or error

    # ---- actors

    def actor(self):
        """Who runs this very thread; None: a thread that is not of this world."""
        return self._actors.get(_thread.get_ident())

    def start(self, actor, work):
        """Let an actor do its work in a thread of its own."""

        def run():
            try:
                self.adopt(actor)
                work()
            except Killed:
                pass
            except BaseException as error:
                if not actor.is_killed:
                    self.fail(error)
            self.leave(actor)

        self.admit(actor)
        _thread.start_new_thread(run, ())

    def admit(self, actor):
        """Give an actor its first turn, for which some thread is about to `adopt` it."""
        self._alive[actor] = None
        actor.turn = self.at(self.now, None, actor)

    def adopt(self, actor):
        """Make this thread an actor's; return when its first turn has come."""
        actor.ident = _thread.get_ident()
        actor.baton.acquire()
        self._actors[actor.ident] = actor
        self.current = actor
        if actor.is_killed:
            raise Killed

    def leave(self, actor):
        """An actor's work is done: its thread passes the baton on, and is free to end."""
        actor.is_done = True
        self._actors.pop(actor.ident, None)
        del self._alive[actor]
        for waiter in actor.joined_by:
            self.wake(waiter)
        self.current = None
        if self._unwinding_for:
            self._unwinding_for[-1].release()
        else:
            self._next().baton.release()

    def park(self, until=None):
        """Wait to be woken; False if the time has come before that."""
        me = self.current
        assert me is not None, "what is called as an event must not wait"
        if me.is_killed:
            raise Killed
        timed_out = []
        if until is not None:
            me.turn = self.at(until, lambda: timed_out.append(True), me)
        self._wait(me)
        return not timed_out

    def wake(self, actor):
        """End an actor's waiting: it gets its turn in a moment.
        Does nothing if it does not wait."""
        if actor is self.current or actor.is_done:
            return
        if actor.turn is not None:
            actor.turn.cancel()
        actor.turn = self.at(self.now, None, actor)

    def sleep(self, seconds):
        """Let time go by; others have their turns meanwhile."""
        until = self.now + seconds
        while self.park(until):
            pass  # it was woken for something that is over

    def step_back(self):
        """Let all others go first whose turn it is now."""
        me = self.current
        if me.is_killed:
            raise Killed
        me.turn = Event(None, me)
        heapq.heappush(self._heap, (self.now, _LAST, next(self._numbers), me.turn))
        self._wait(me)

    def join(self, actor, until=None):
        """Wait until an actor's work is done; False if the time has come before that."""
        while not actor.is_done:
            actor.joined_by[self.current] = None
            if not self.park(until):
                break
        return actor.is_done

    def kill(self, process):
        """End all actors of a process, before anything else happens.

        An actor that kills its own process has to raise `Killed` itself.
        """
        for actor in self._alive:
            if actor.process is process:
                actor.is_killed = True
        self._before_all_else(Event(lambda: self._unwind(process)))

    def run(self, seconds, promise=None):
        """Main waits until a promise is kept, or for so long: whether it is kept."""
        until = self.now + seconds
        if promise is not None:
            promise.then(lambda: self.wake(self.main))
        while promise is None or not promise.is_kept:
            if not self.park(until):
                break
        return promise is not None and promise.is_kept

    def close(self):
        """Unwind everybody who is left: no thread outlives its world."""
        self._heap.clear()
        for actor in list(self._alive):
            actor.is_killed = True
        for actor in list(self._alive):
            self._unwind_one(actor)

    def actors_of(self, process):
        """Those of a process that are not done, in the order in which they came."""
        return [actor for actor in self._alive if actor.process is process]

    def stacks(self, actors=None):
        """What everybody, or these, are doing."""
        frames = sys._current_frames()
        return "\n".join(
            f"{actor!r}\n" + "".join(traceback.format_stack(frames[actor.ident])[-_STACK_LINES:])
            for actor in actors or self._actors.values()
            if actor.ident in frames
        )

    # ---- within

    def _before_all_else(self, event):
        heapq.heappush(self._heap, (self.now, _FIRST, next(self._numbers), event))

    def _wait(self, me):
        """Do what is to be done, until it is my turn."""
        self.current = None
        turn = self._next()
        if turn is not me:
            turn.baton.release()
            me.baton.acquire()
        self.current = me
        if me.is_killed:
            raise Killed
        if self.failure is not None and me is self.main:
            raise self.failure

    def _next(self):
        """Call what is due, in order, up to the next turn of an actor; whose it is."""
        heap = self._heap
        while heap and self.failure is None:
            time, _, _, event = heapq.heappop(heap)
            if event.is_cancelled:
                continue
            self.now = max(self.now, time)
            self.events += 1
            try:
                if event.call is not None:
                    event.call()
            except BaseException as error:  # in whichever thread this is: main has to know of it
                self.fail(error)
                break
            actor = event.actor
            if actor is not None and not actor.is_done:
                actor.turn = None
                return actor
        if self.failure is None:
            self.fail(Deadlock(f"at {self.now:.6f} s everybody waits:\n{self.stacks()}"))
        return self._main()

    def _main(self):
        if self.main.turn is not None:
            self.main.turn.cancel()
            self.main.turn = None
        return self.main

    def _unwind(self, process):
        for actor in [each for each in self._alive if each.process is process]:
            if (
                actor.ident == _thread.get_ident()
            ):  # it waits, and does what is to be done meanwhile: this
                actor.turn = Event(None, actor)
                self._before_all_else(actor.turn)
            else:
                self._unwind_one(actor)

    def _unwind_one(self, actor):
        """Let an actor that is killed come to its end, here and now."""
        if actor.turn is not None:
            actor.turn.cancel()
            actor.turn = None
        is_unwound = _allocate_lock()
        is_unwound.acquire()
        self._unwinding_for.append(is_unwound)
        before = self.current
        actor.baton.release()
        is_unwound.acquire()
        self._unwinding_for.pop()
        self.current = before
