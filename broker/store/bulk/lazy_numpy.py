"""Lazy numpy, loaded for the first array: `from ..bulk import lazy_numpy as np`.

Loading numpy takes as long as everything else in the start of a broker, and a broker with few
messages needs no arrays. A program that has the time, such as a broker a second after its start,
calls `load_numpy` in the background.
"""

from __future__ import annotations

import builtins
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy import *  # noqa: F403  # for the type checker


def is_loaded() -> builtins.bool:
    """Return whether numpy is loaded, so that using it costs no time."""
    return "numpy" in sys.modules


def load_numpy() -> None:
    """Load numpy now, so that no later call has to wait for it."""
    import_module("numpy")


def __getattr__(name: str) -> Any:
    """Import the object of this name; later look-ups find it without this call."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    tool = globals()[name] = getattr(import_module("numpy"), name)
    return tool
