"""Coroutines of a simulated world that need no thread: what its clients do, line by line.

    async def story():
        await kernel_time.sleep(0.5)          # virtual seconds
        answer = await promise                # until somebody calls promise.keep(value)

They run as events of the kernel, so they must not call anything that blocks in another way.
"""

from __future__ import annotations

from functools import partial


class Promise:
    """Something that is not there yet. It is kept once; later values are not wanted."""

    def __init__(self):
        self._value = None
        self._waiting = []
        self.is_kept = False

    def keep(self, value=None):
        if not self.is_kept:
            self.is_kept = True
            self._value = value
            for step in self._waiting:
                step()

    def then(self, step):
        """Call something when it is kept."""
        if self.is_kept:
            step()
        else:
            self._waiting.append(step)

    @property
    def value(self):
        return self._value

    def __await__(self):
        if not self.is_kept:
            yield self
        return self._value


class Tasks:
    """Runs coroutines; an exception that gets out of one is the world's failure."""

    def __init__(self, kernel):
        self._kernel = kernel
        self._running = {}

    @property
    def running(self):
        """The names of those that have not come to their end."""
        return [name for name, _ in self._running.values()]

    def begin(self, coroutine, name="task"):
        """Run a coroutine from now on; a promise of its end."""
        done = Promise()
        self._running[done] = name, coroutine
        self._kernel.after(0, partial(self._step, coroutine, done))
        return done

    def sleep(self, seconds):
        """To be awaited."""
        promise = Promise()
        self._kernel.after(seconds, promise.keep)
        return promise

    def within(self, seconds, promise, otherwise=None):
        """A promise that is kept when another one is, or with something else when
        the time is over."""
        first = Promise()
        timer = self._kernel.after(seconds, partial(first.keep, otherwise))

        async def watch():
            value = await promise
            timer.cancel()
            first.keep(value)

        self.begin(watch(), "within")
        return first

    def end(self):
        """Have nothing more of them happen."""
        for _, coroutine in self._running.values():
            coroutine.close()
        self._running.clear()

    def _step(self, coroutine, done):
        if done not in self._running:
            return
        try:
            promise = coroutine.send(None)
        except StopIteration as stop:
            del self._running[done]
            done.keep(stop.value)
            return
        promise.then(partial(self._kernel.after, 0, partial(self._step, coroutine, done)))
