"""Varied traffic: messages as services send them, none of which looks like the one before.

All benchmarks take their varied messages from here; `benchmarks/java` makes the same kind of
messages in `Traffic.java`.
"""

from __future__ import annotations

from math import log
from random import Random
from typing import Final

_SEED = 2026
BODY_BYTES: Final = range(50, 8_193)
_BODY_BYTES_MEDIAN, _BODY_BYTES_SIGMA = 400, 1.2
_TAGS = ("created", "paid", "refunded")
_TENANTS = 50
_PROPERTY_NAMES = ("source", "version", "region", "trace", "kind")


class VariedTraffic:
    """The same messages in each run.

    Bodies are log-normal, of 50 B to 8 KB; each message has one of three tags, one to three keys
    and two to five properties, of which one names one of 50 tenants.
    """

    def __init__(self, seed: int = _SEED) -> None:
        self._random = Random(seed)

    def body(self) -> bytes:
        """Return the body of a message."""
        size = int(self._random.lognormvariate(log(_BODY_BYTES_MEDIAN), _BODY_BYTES_SIGMA))
        return self._random.randbytes(min(max(size, BODY_BYTES[0]), BODY_BYTES[-1]))

    def tag(self) -> str:
        """Return the tag of a message."""
        return self._random.choice(_TAGS)

    def keys(self) -> list[str]:
        """Return the keys of a message."""
        random = self._random
        return [f"order-{random.randrange(10**6)}" for _ in range(random.randint(1, 3))]

    def properties(self) -> dict[str, str]:
        """Return the other properties of a message."""
        random = self._random
        names = random.sample(_PROPERTY_NAMES, random.randint(1, 4))
        return {
            "tenant": f"tenant-{random.randrange(_TENANTS)}",
            **{name: f"{random.getrandbits(random.randint(8, 64)):x}" for name in names},
        }
