"""Coroutines of a simulated world that need no thread: the steps of its clients.

    async def story():
        await kernel_time.sleep(0.5)          # virtual seconds
        answer = await promise                # until somebody calls promise.keep(value)

They run as events of the kernel, so they must not call anything that blocks in another way.
"""

from functools import partial


class Promise:
    """A future value. It is kept once; later values are ignored."""

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
        """Call a function when the promise is kept."""
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
    """Runs coroutines; an uncaught exception is the world's failure."""

    def __init__(self, kernel):
        self._kernel = kernel
        self._running = {}

    @property
    def running(self):
        """Return the names of the running coroutines."""
        return [name for name, _ in self._running.values()]

    def begin(self, coroutine, name="task"):
        """Start a coroutine; return a promise of its end."""
        done = Promise()
        self._running[done] = name, coroutine
        self._kernel.after(0, partial(self._step, coroutine, done))
        return done

    def sleep(self, seconds):
        """Return an awaitable that ends after this time."""
        promise = Promise()
        self._kernel.after(seconds, promise.keep)
        return promise

    def within(self, seconds, promise, otherwise=None):
        """Return a promise that is kept with another one, or with a default after the timeout."""
        first = Promise()
        timer = self._kernel.after(seconds, partial(first.keep, otherwise))

        async def watch():
            value = await promise
            timer.cancel()
            first.keep(value)

        self.begin(watch(), "within")
        return first

    def end(self):
        """Stop all coroutines."""
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
