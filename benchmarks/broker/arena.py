"""The arena of a comparison: one directory, the brokers that cases share, one JVM of clients.

Brokers and the JVM start when they are first requested, and end with the arena, by process id.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from benchmarks.broker.figures import Role
from benchmarks.broker.java import JavaClasses, JavaLoad
from benchmarks.broker.running import RunningBroker, Side


class Arena:
    """The sides, by the roles that they have."""

    def __init__(
        self, directory: Path, sides: Mapping[Role, Side], client: JavaClasses | None
    ) -> None:
        """Take an existing directory; without a client no case can have load from Java."""
        self.sides = sides
        self._directory = directory
        self._client = client
        self._numbers = itertools.count(1)
        self._ending = ExitStack()
        self._shared: dict[Role, RunningBroker] = {}
        self._on_done: set[tuple[Role, str]] = set()
        self._load: JavaLoad | None = None

    @property
    def has_java_clients(self) -> bool:
        """True if `load` can be used."""
        return self._client is not None

    def broker(self, role: Role) -> RunningBroker:
        """Return this side's shared broker, for cases that tolerate what others have stored."""
        if role not in self._shared:
            broker = self.sides[role].start(self._new_directory())
            self._ending.callback(broker.stop)
            self._shared[role] = broker
        return self._shared[role]

    @contextmanager
    def new_broker(
        self, role: Role, clients_max: int | None = None
    ) -> Iterator[tuple[RunningBroker, Path]]:
        """Yield a broker for one measurement, and its directory; both are removed afterwards."""
        directory = self._new_directory()
        broker = self.sides[role].start(directory, clients_max)
        try:
            yield broker, directory
        finally:
            broker.stop()
            shutil.rmtree(directory, ignore_errors=True)

    def load(self) -> JavaLoad:
        """Return the JVM of clients."""
        if self._load is None:
            if self._client is None:
                raise RuntimeError("there are no Java clients")
            self._load = JavaLoad(self._client, self._new_directory() / "clients")
            self._ending.callback(self._load.stop)
        return self._load

    def once(self, role: Role, name: str, make: Callable[[], object]) -> None:
        """Call ``make`` once for this side and name, to prepare a shared broker."""
        if (role, name) not in self._on_done:
            make()
            self._on_done.add((role, name))

    def at_the_end(self, end: Callable[[], object]) -> None:
        """Register something to be ended with the arena, before the brokers that it uses."""
        self._ending.callback(end)

    def _new_directory(self) -> Path:
        path = self._directory / str(next(self._numbers))
        path.mkdir()
        return path

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.close()
