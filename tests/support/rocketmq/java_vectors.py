"""Vectors: bytes that RocketMQ's own classes wrote. See tests/vectors/README.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.suite.selection import PEERS

VERSIONS = ("4.9.7", "5.5.0")
TRIED_VERSIONS = VERSIONS if PEERS else VERSIONS[-1:]
"""The versions for long tests: the newest, and with `make peers` each."""

_DIRECTORY = Path(__file__).parents[2] / "vectors"


def load(version: str, kind: str) -> list[dict[str, Any]]:
    """Return all vectors of one kind by one version."""
    with (_DIRECTORY / version / f"{kind}.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def each(
    kind: str, where: Callable[[dict[str, Any]], bool] = lambda _: True
) -> pytest.MarkDecorator:
    """Run a test with each vector of a kind, of both versions, under a name that says which."""
    cases = [
        pytest.param(vector, id=f"{version}-{vector.get('name', number)}")
        for version in VERSIONS
        for number, vector in enumerate(load(version, kind))
        if where(vector)
    ]
    return pytest.mark.parametrize("vector", cases)
