"""Pandas blocker: keeps pandas out of the process of a broker, which does not need it.

pyarrow loads pandas, where it is installed, to check whether its arguments are pandas objects. That
takes 28 MiB and as much time as a broker needs to start. If the import fails, pyarrow treats pandas
as not installed, and does not try again.

A process that is not the broker's own may need pandas, so only the broker's program uses this.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_NAME = "pandas"


class _PandasBlocker(MetaPathFinder):
    """A finder that reports pandas as not installed, and leaves all else to others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ModuleNotFoundError for pandas; otherwise return None."""
        del path, target
        if fullname == _NAME:
            raise ModuleNotFoundError("a broker needs no pandas", name=_NAME)
        return None


@contextmanager
def block_pandas() -> Iterator[None]:
    """Return a context in which pandas cannot be imported, unless it is loaded already."""
    finder = _PandasBlocker()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
