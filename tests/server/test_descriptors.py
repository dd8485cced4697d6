"""File descriptors of a broker: the limit is raised, and divided if it is too low."""

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpoll.broker.server.descriptors import (
    allow_descriptors,
    descriptor_shortage,
    divide_descriptors,
)


@pytest.mark.parametrize(
    ("limits", "asked", "given_max", "share"),
    [
        ((1_024, 4_096), 2_100, None, (1_000, 1_000)),
        ((1_024, 4_096), 4_096, 4_096, (999, 2_997)),
        ((8_192, 8_192), None, None, (1_000, 1_000)),
        ((1_024, resource.RLIM_INFINITY), 20_100, None, (4_000, 16_000)),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None, None, (4_000, 16_000)),
    ],
    ids=["raised", "as far as it goes", "enough already", "no hard bound", "no bound"],
)
def test_descriptor_limit_is_raised_or_divided(
    monkeypatch, caplog, limits, asked, given_max, share
):
    set_to = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: set_to.append(new))
    wanted = (4_000, 16_000) if given_max is not None else share
    assert allow_descriptors(*wanted) == share
    assert set_to == ([(asked, limits[1])] if asked else [])
    assert ("ulimit -Hn" in caplog.text) is (given_max is not None)


@given(st.integers(0, 30_000), st.integers(1, 10_000), st.integers(1, 20_000))
def test_divided_descriptors_stay_within_limits(allowed, files, connections):
    open_files_max, connections_max = divide_descriptors(allowed, files, connections)
    assert 1 <= open_files_max <= files
    assert 1 <= connections_max <= connections
    if allowed >= 104:
        assert open_files_max + connections_max <= allowed - 100
    if allowed - 100 >= files + connections:
        assert (open_files_max, connections_max) == (files, connections)


def test_descriptor_shortage_is_none_if_one_more_can_be_opened():
    assert descriptor_shortage() is None
