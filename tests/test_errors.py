import pickle

import pytest

from rmq_spark import errors
from rmq_spark.errors import FrameError, RocketPollError, Verbatim, WireError, excerpt, legible


def test_an_error_says_what_where_what_was_needed_and_what_was_there():
    error = FrameError("frame length", at=0, needed="4 to 100", found=-5)
    assert str(error) == "frame length at byte 0: needed 4 to 100, found -5"
    assert (error.at, error.needed, error.found) == (0, "4 to 100", "-5")
    assert str(WireError("header", at="extFields.topic", needed="text", found=None)) == (
        "header at extFields.topic: needed text, found None"
    )


def test_an_error_travels_between_processes():
    error = FrameError("frame", at=3, needed="more", found=b"x")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own bytes
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
def test_an_error_never_repeats_megabytes_of_bad_input(found):
    assert len(excerpt(found)) < 70


def test_an_error_cuts_long_places_and_still_travels():
    error = WireError("header", at="k" * 9_999_999, needed="text", found=5)
    assert len(str(error)) < 300
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301  # our own bytes


def test_a_text_that_somebody_has_given_can_be_shown_whatever_it_is():
    assert legible("orders") == "orders"
    assert legible("Bestellungen f\u00fcr \ud800") == "Bestellungen f\u00fcr \\ud800"
    assert legible("x" * 70_000) == f"{'x' * 60}..., 70000 characters"


@pytest.mark.parametrize("found", [[10**5_000], {"a": (10**5_000,)}])
def test_what_cannot_be_shown_is_named_by_its_kind(found):
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
def test_all_errors_are_of_one_tree_and_stand_in_its_drawing(kind):
    assert issubclass(kind, RocketPollError)
    assert kind.__name__ in (errors.__doc__ or "")
