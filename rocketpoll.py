"""What a test, a notebook or a program begins with: an embedded broker, and helpers for tests.

    from rocketpoll import EmbeddedBroker

The names are imported when they are first used. ``broker`` is a name that a file of the user's may have, too;
then this says so. It knows the broker's rooms by name only; the client is `rmq_spark.client`.
"""

from __future__ import annotations

import importlib.util
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from broker.embedded import EmbeddedBroker, EmbeddedBrokerError, NotInTime
    from broker.testing import collect_stream, stream_rows, wait_until

_HERE: Final = Path(__file__).resolve().parent
_MODULES: Final = {
    "EmbeddedBroker": "broker.embedded",
    "EmbeddedBrokerError": "broker.embedded",
    "NotInTime": "broker.embedded",
    "collect_stream": "broker.testing",
    "stream_rows": "broker.testing",
    "wait_until": "broker.testing",
}

__all__ = [
    "EmbeddedBroker",
    "EmbeddedBrokerError",
    "NotInTime",
    "collect_stream",
    "stream_rows",
    "wait_until",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _check_whose_broker_it_is()
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _check_whose_broker_it_is() -> None:
    spec = importlib.util.find_spec("broker")
    place = spec.origin if spec is not None else None
    if place is None or Path(place).resolve() != _HERE / "broker" / "__init__.py":
        raise ImportError(
            f"rocketpoll's broker is in {_HERE / 'broker'}, but 'import broker' finds {place or 'nothing'}: "
            "rename that, or take its directory out of PYTHONPATH",
            name="broker",
        )
