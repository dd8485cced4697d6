"""A story: all that a world does by plan, as plain data, drawn from a seed.

    Story    settings of the broker, how its lives end, what each client does,
             what goes wrong and when

Everything else (how late bytes are, who goes first) is decided by random generators from the same
seed, one for each part of the world: so a story without one of its steps is nearly the same story,
which shrinking relies on. It can be saved as JSON and loaded again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class Step:
    """One step of a client; `acts` define the meaning of its arguments."""

    kind: str
    arguments: dict

    def __str__(self):
        arguments = (f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.kind}({', '.join(arguments)})"


@dataclass(frozen=True)
class Client:
    """The steps of one client."""

    name: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Ending:
    """The end of a life of the broker: stop, kill or power.

    It comes after ``seconds``; or, if ``operation`` is given, at that change of the disk in this
    life: before it or, if ``is_done``, after it.
    """

    kind: str
    seconds: float
    operation: int | None = None
    is_done: bool = False
    down_seconds: float = 0.5


@dataclass(frozen=True, eq=False)
class Trouble:
    """A trouble for a while: of the disk (`fate`), the clock, the network."""

    kind: str
    begin: float
    seconds: float
    arguments: dict


@dataclass(frozen=True)
class Story:
    seed: int
    settings: dict
    endings: tuple[Ending, ...]
    clients: tuple[Client, ...]
    troubles: tuple[Trouble, ...]
    latency_seconds: float = 0.000_1
    flush_seconds: float = 0.001
    preemption: float = 0.05
    line_preemption: float = 0.0

    @property
    def is_sync(self):
        return self.settings.get("flushDiskType") == "SYNC_FLUSH"

    def to_json(self):
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text):
        data = json.loads(text)
        data["endings"] = tuple(Ending(**each) for each in data["endings"])
        data["troubles"] = tuple(Trouble(**each) for each in data["troubles"])
        data["clients"] = tuple(
            Client(each["name"], tuple(Step(**step) for step in each["steps"]))
            for each in data["clients"]
        )
        return cls(**data)

    # ---- parts for shrinking

    def parts(self):
        """Return the keys of all parts that can be removed alone, for `without`."""
        return [
            *(("client", number) for number in range(len(self.clients))),
            *(("trouble", number) for number in range(len(self.troubles))),
            *(("ending", number) for number in range(len(self.endings))),
            *(
                ("step", number, at)
                for number, client in enumerate(self.clients)
                for at in range(len(client.steps))
            ),
        ]

    def without(self, gone):
        """Return the story without these parts."""
        gone = set(gone)
        clients = tuple(
            replace(
                client,
                steps=tuple(
                    step for at, step in enumerate(client.steps) if ("step", number, at) not in gone
                ),
            )
            for number, client in enumerate(self.clients)
            if ("client", number) not in gone
        )
        kept = {
            name: tuple(
                each
                for number, each in enumerate(getattr(self, f"{name}s"))
                if (name, number) not in gone
            )
            for name in ("trouble", "ending")
        }
        return replace(self, clients=clients, troubles=kept["trouble"], endings=kept["ending"])
