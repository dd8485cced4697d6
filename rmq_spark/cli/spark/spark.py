"""The pyspark that commands need: whether it is there, and how to get it."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from typing import Final

INSTALL_PYSPARK: Final = f"{shlex.quote(sys.executable)} -m pip install 'pyspark>=4.0,<4.4'"


def has_pyspark() -> bool:
    """Return whether this Python would find pyspark, without importing it."""
    return importlib.util.find_spec("pyspark") is not None
