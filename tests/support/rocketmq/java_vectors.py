"""Vectors: bytes that RocketMQ's own classes wrote. See tests/vectors/README.md."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.suite.selection import PEERS

VERSIONS = ("4.9.7", "5.5.0")
TRIED_VERSIONS = VERSIONS if PEERS else VERSIONS[-1:]
"""Versions in long tests: the newest; with `make peers` all."""

_DIRECTORY = Path(__file__).parents[2] / "vectors"


def load(version: str, kind: str) -> list[dict[str, Any]]:
    """Load the vectors of one kind and version."""
    with (_DIRECTORY / version / f"{kind}.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def each(
    kind: str, where: Callable[[dict[str, Any]], bool] = lambda _: True
) -> Callable[[Callable[..., None]], Callable[[str], None]]:
    """Decorate a test to run with each vector of a kind, as one test per version.

    The test takes ``vector``, and may take ``name``: the version and the vector's name. A failure
    names the vector.
    """

    def decorate(test: Callable[..., None]) -> Callable[[str], None]:
        wants_name = "name" in inspect.signature(test).parameters

        @pytest.mark.parametrize("version", VERSIONS)
        def with_each_vector(version: str) -> None:
            vectors = [vector for vector in load(version, kind) if where(vector)]
            for number, vector in enumerate(vectors):
                name = f"{version}-{vector.get('name', number)}"
                try:
                    test(vector, name) if wants_name else test(vector)
                except Exception as error:
                    raise AssertionError(f"with vector {name}") from error

        with_each_vector.__name__ = test.__name__
        with_each_vector.__doc__ = test.__doc__
        with_each_vector.__module__ = test.__module__
        return with_each_vector

    return decorate
