"""Errors of all parts: texts, pickling and their pages."""

import importlib
import pickle
import pkgutil
import re
import sys
import traceback
from pathlib import Path

import pytest

import rmq_spark
import rocketpoll
from rmq_spark import errors
from rmq_spark.client.errors import RouteNotFound
from rmq_spark.errors import (
    PAGES,
    FrameError,
    RocketPollError,
    Verbatim,
    WireError,
    excerpt,
    format_count,
    nearest_name,
    sanitize,
)

ROOT = Path(__file__).parent.parent
UNSEEN = {"SuspectRecord", "UnknownMember"}
"""Errors that users never see."""


def kinds_of(kind):
    for each in kind.__subclasses__():
        yield each
        yield from kinds_of(each)


def every_error():
    for package in (rmq_spark, rocketpoll):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    rooms = ("rmq_spark.", "rocketpoll.")
    return [
        kind
        for kind in kinds_of(RocketPollError)
        if f"{kind.__module__}.".startswith(rooms)
        and not kind.__name__.startswith("_")
        and kind.__name__ not in UNSEEN
    ]


def test_error_text_has_place_needed_and_found():
    error = FrameError("frame length", at=0, needed="4 to 100", found=-5)
    assert str(error) == "frame length at byte 0: needed 4 to 100, found -5"
    assert (error.at, error.needed, error.found) == (0, "4 to 100", "-5")
    assert str(WireError("header", at="extFields.topic", needed="text", found=None)) == (
        "header at extFields.topic: needed text, found None"
    )


def test_error_survives_pickling():
    error = FrameError("frame", at=3, needed="more", found=b"x")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # the test's own data
    assert type(again) is FrameError
    assert (str(again), again.at, again.found) == (str(error), 3, "b'x'")


@pytest.mark.parametrize(
    "found",
    [
        b"x" * 9_999_999,
        memoryview(bytes(9_999_999)),
        "x" * 9_999_999,
        1 << 9_999_999,
        [[1] * 999] * 999,
    ],
    ids=["bytes", "view", "text", "number", "lists"],
)
def test_error_excerpt_of_bad_input_is_short(found):
    assert len(excerpt(found)) < 70


def test_error_with_a_long_place_is_shortened_and_survives_pickling():
    error = WireError("header", at="k" * 9_999_999, needed="text", found=5)
    assert len(str(error)) < 300
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301  # the test's own data


def test_sanitize_makes_any_text_printable():
    assert sanitize("orders") == "orders"
    assert sanitize("Bestellungen f\u00fcr \ud800") == "Bestellungen f\u00fcr \\ud800"
    assert sanitize("x" * 70_000) == f"{'x' * 60}..., 70000 characters"


@pytest.mark.parametrize("found", [[10**5_000], {"a": (10**5_000,)}])
def test_value_that_cannot_be_shown_is_named_by_type(found):
    assert excerpt(found) == f"a {type(found).__name__} that cannot be shown"


def test_text_can_be_shown_without_quotes():
    assert excerpt(Verbatim("as it is")) == "as it is"
    assert excerpt("quoted") == "'quoted'"


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ],
)
def test_all_errors_are_in_the_documented_tree(kind):
    assert issubclass(kind, RocketPollError)
    assert kind.__name__ in (errors.__doc__ or "")


def test_every_error_is_named_on_its_page():
    for kind in every_error():
        page, _, anchor = kind.page.partition("#")
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        sections = {
            re.sub(r"[^a-z ]", "", heading.lower()).replace(" ", "-"): section
            for heading, section in re.findall(r"^## (.+)\n((?:(?!^## ).*\n)*)", text, re.MULTILINE)
        }
        assert f"`{kind.__name__}`" in sections[anchor], kind


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes of errors came with Python 3.11")
@pytest.mark.parametrize(
    ("pages", "note"),
    [
        ("", "See Troubleshooting, topics groups names, in rocketpoll's documentation"),
        ("https://host/docs/", "See https://host/docs/troubleshooting.md#topics-groups-names"),
    ],
)
def test_traceback_ends_with_the_place_of_the_errors_page(monkeypatch, pages, note):
    monkeypatch.setattr(errors, "PAGES", pages)
    error = RouteNotFound("orders")
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error))))  # noqa: S301  # the test's own data
    for each in (error, again):
        assert traceback.format_exception_only(type(each), each)[1:] == [f"{note}\n"]
        assert "See" not in str(each)


def test_pages_link_matches_the_repository_setting():
    metadata = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    repository = re.search(r'^repository = "(.*)"$', metadata, re.MULTILINE)[1].rstrip("/")
    assert (f"{repository}/blob/HEAD/docs/" if repository else "") == PAGES


@pytest.mark.parametrize(
    ("count", "several", "text"),
    [
        (0, "", "0 entrys"),
        (1, "", "1 entry"),
        (1, "entries", "1 entry"),
        (2_000, "entries", "2,000 entries"),
    ],
)
def test_count_of_one_is_singular(count, several, text):
    assert format_count(count, "entry", several) == text


# ---- suggestions of the nearest name for a misspelled one


@pytest.mark.parametrize(
    ("name", "meant"),
    [("ordres", "orders"), ("ORDERS", "orders"), ("queueid", "queueId"), ("zebra", None)],
)
def test_nearest_name_ignores_case_and_far_names(name, meant):
    assert nearest_name(name, ["payments", "orders", "queueId"]) == meant
    assert nearest_name(name, []) is None
