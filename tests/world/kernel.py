"""The kernel of a simulated world: one thing happens at a time, in an order that a seed decides.

    events ──> a heap by virtual time ──┬─ a callback: called, on whichever strand is at hand
                                        └─ an actor's turn: its strand gets the baton,
                                           all others wait

An actor runs on its own strand (`strands`) while it has the baton. An actor that waits (`suspend`,
`sleep`) processes the next events of the heap itself, until it is its own turn again or another
actor's. So a world is as deterministic as a program with one thread, although the programs in it
may use many.

Time is virtual: it stands still while something runs, and advances to the next event when all wait.
If somebody waits and no event is left, that is a `Deadlock`, with the stacks of all who wait.
"""

import itertools
import threading
import traceback
from heapq import heappop, heappush

from world.strands import Strands

_get_ident = threading.get_ident  # the real function, even after a world has replaced it
_STACK_LINES = 8
_FIRST, _LAST = -1.0, 2.0
"""The first and last rank of simultaneous events; the dice draw ranks between them."""


class Killed(SystemExit):
    """Raised in an actor whose process was killed: it unwinds, and nothing that it does counts.

    It is a SystemExit, because event loops and thread pools swallow all others.
    """


class Deadlock(AssertionError):
    """Raised when an actor waits and no event is left."""


class Event:
    """A cancellable future event."""

    __slots__ = ("actor", "call", "is_cancelled")

    def __init__(self, call, actor=None):
        self.call = call
        self.actor = actor  # the actor whose turn it is when the event happens
        self.is_cancelled = False

    def cancel(self):
        self.is_cancelled = True


class Actor:
    """An actor, which takes turns. All actors of a ``process`` die together; with None it cannot be
    killed."""

    def __init__(self, name, process=None):
        self.name = name
        self.process = process
        self.strand = None
        self.is_done = False
        self.is_killed = False
        self.turn = None  # the event that ends its wait
        self.joined_by = {}

    def __repr__(self):
        return f"<{self.name}>"


class Kernel:
    """The time and the turns of one world. Its creator is its first actor, ``main``."""

    def __init__(self, dice):
        """``dice`` is a `random.Random` that orders simultaneous events."""
        self.now = 0.0
        self.dice = dice
        self.events = 0
        self.failure = None
        self._heap = []
        self._draw = dice.random
        self._next_number = itertools.count().__next__
        self._alive = {}  # actors, in order of creation
        self._last_turn = None  # the event that passed the baton on
        self._unwinding_for = []
        self._ident = _get_ident()
        self._strands = Strands()
        self.main = Actor("main")
        self.main.strand = self._strands.main()
        self.current = self._on_strand = self.main

    # ---- events

    def at(self, time, call, actor=None):
        """Call a function at a time; it must not wait."""
        event = Event(call, actor)
        time = max(time, self.now)
        heappush(self._heap, (time, self._draw(), self._next_number(), event))
        return event

    def after(self, seconds, call):
        """Call a function after some time; it must not wait."""
        return self.at(self.now + seconds, call)

    def fail(self, error):
        """Raise an error in main as soon as the actor with the baton waits; the first of several
        counts."""
        self.failure = self.failure or error

    # ---- actors

    def is_here(self):
        """Return whether this thread belongs to this world."""
        return _get_ident() == self._ident

    def actor(self):
        """Return the current actor, which runs or processes events while it waits; None in a thread
        outside this world."""
        return self._on_strand if _get_ident() == self._ident else None

    def start(self, actor, work):
        """Start an actor at its first turn."""

        def run():
            self.current = self._on_strand = actor
            try:
                if actor.is_killed:
                    raise Killed  # noqa: TRY301  # before its first step
                work()
            except Killed:
                pass
            except BaseException as error:
                if not actor.is_killed:
                    self.fail(error)
            return self._leave(actor)

        self._alive[actor] = None
        actor.strand = self._strands.new()
        actor.strand.begin(run)
        actor.turn = self.at(self.now, None, actor)

    def _leave(self, actor):
        """End an actor: its strand passes the baton on, and ends."""
        actor.is_done = True
        del self._alive[actor]
        for waiter in actor.joined_by:
            self.wake(waiter)
        self.current = None
        after = self._unwinding_for[-1] if self._unwinding_for else self._next().strand
        return actor.strand.end(after)

    def suspend(self, until=None):
        """Wait for `wake`; return False after the timeout."""
        if until is None:
            me = self.current
            assert me is not None, "what is called as an event must not wait"
            if me.is_killed:
                raise Killed
            self._wait(me)
            return True
        if self._keeps_the_baton(until):
            return False
        me = self.current
        me.turn = timer = self.at(until, None, me)
        self._wait(me)
        return self._last_turn is not timer

    def wake(self, actor):
        """Wake an actor: its turn comes next. Does nothing if the actor does not wait."""
        if actor is self.current or actor.is_done:
            return
        if actor.turn is not None:
            actor.turn.cancel()
        actor.turn = self.at(self.now, None, actor)

    def sleep(self, seconds):
        """Let time pass; others have their turns meanwhile."""
        until = self.now + seconds
        while self.suspend(until):
            pass  # woken for an earlier wait

    def step_back(self):
        """Let all others run first whose turn is now."""
        if self._keeps_the_baton(self.now):
            return
        me = self.current
        me.turn = Event(None, me)
        heappush(self._heap, (self.now, _LAST, self._next_number(), me.turn))
        self._wait(me)

    def _keeps_the_baton(self, until):
        """Advance the time at once if no event is due before; return whether that was so."""
        me = self.current
        assert me is not None, "what is called as an event must not wait"
        if me.is_killed:
            raise Killed
        heap = self._heap
        while heap and heap[0][3].is_cancelled:
            heappop(heap)
        if self.failure is not None or (heap and heap[0][0] <= until):
            return False
        self.now = max(self.now, until)
        self.events += 1
        return True

    def join(self, actor, until=None):
        """Wait until an actor has ended; return False after the timeout."""
        while not actor.is_done:
            actor.joined_by[self.current] = None
            if not self.suspend(until):
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
        """Run main until a promise is kept or the time is over; return whether it is kept."""
        until = self.now + seconds
        if promise is not None:
            promise.then(lambda: self.wake(self.main))
        while promise is None or not promise.is_kept:
            if not self.suspend(until):
                break
        return promise is not None and promise.is_kept

    def close(self):
        """Unwind all remaining actors, so that no thread outlives its world."""
        self._heap.clear()
        for actor in list(self._alive):
            actor.is_killed = True
        for actor in list(self._alive):
            self._unwind_one(actor)

    def actors_of(self, process):
        """Return a process's running actors, in the order of their creation."""
        return [actor for actor in self._alive if actor.process is process]

    def stacks(self, actors=None):
        """Return the stacks of these actors, or of all."""
        frames = {actor: actor.strand.frame() for actor in actors or [self.main, *self._alive]}
        return "\n".join(
            f"{actor!r}\n" + "".join(traceback.format_stack(frame)[-_STACK_LINES:])
            for actor, frame in frames.items()
            if frame is not None
        )

    # ---- implementation

    def _before_all_else(self, event):
        heappush(self._heap, (self.now, _FIRST, self._next_number(), event))

    def _wait(self, me):
        """Process events until it is this actor's turn."""
        self.current = None
        turn = self._next()
        if turn is not me:
            me.strand.give(turn.strand)
            self._on_strand = me
        self.current = me
        if me.is_killed:
            raise Killed
        if self.failure is not None and me is self.main:
            raise self.failure

    def _next(self):
        """Call due events in order up to the next turn of an actor; return that actor."""
        heap = self._heap
        while heap and self.failure is None:
            time, _, _, event = heappop(heap)
            if event.is_cancelled:
                continue
            self.now = max(self.now, time)
            self.events += 1
            actor = event.actor
            if actor is not None:
                if not actor.is_done:
                    actor.turn = None
                    self._last_turn = event
                    return actor
                continue
            try:
                event.call()
            except BaseException as error:  # any strand may be running, but main must get the error
                self.fail(error)
                break
        if self.failure is None:
            self.fail(Deadlock(f"at {self.now:.6f} s everybody waits:\n{self.stacks()}"))
        self._last_turn = None
        return self._main()

    def _main(self):
        if self.main.turn is not None:
            self.main.turn.cancel()
            self.main.turn = None
        return self.main

    def _unwind(self, process):
        for actor in [each for each in self._alive if each.process is process]:
            if actor is self._on_strand:  # it waits, and processes events meanwhile: this one
                actor.turn = Event(None, actor)
                self._before_all_else(actor.turn)
            else:
                self._unwind_one(actor)

    def _unwind_one(self, actor):
        """Let a killed actor unwind at once."""
        if actor.turn is not None:
            actor.turn.cancel()
            actor.turn = None
        before, here = self.current, self._on_strand
        self._unwinding_for.append(here.strand)
        here.strand.give(actor.strand)
        self._unwinding_for.pop()
        self.current, self._on_strand = before, here
