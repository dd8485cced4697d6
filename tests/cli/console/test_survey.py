"""Surveys: what pages show first is read first, and passes rest for nine tenths of the time."""

import threading

import pytest
from support.suite.clocks import Clock

from rmq_spark.cli.console import survey as module
from rmq_spark.cli.console.survey import AGE_SECONDS_MAX, Survey
from rmq_spark.client.errors import RouteNotFound

NAMES = [f"g{number}" for number in range(5)]


class Reader:
    """Reads the length of a name when allowed to, and records the order."""

    def __init__(self, clock, seconds=0.0):
        self.clock, self.seconds, self.read = clock, seconds, []
        self.gate = threading.Semaphore(0)

    def __call__(self, name):
        assert self.gate.acquire(timeout=60)
        self.clock.now += self.seconds
        self.read.append(name)
        if name == "gone":
            raise RouteNotFound(name)
        return len(name)

    def let(self, count):
        self.gate.release(count)


def end_of(survey):
    thread = survey._thread
    if thread is not None:
        thread.join(60)


def test_survey_reads_names_of_a_page_first_and_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(module, "WAIT_SECONDS_MAX", 60.0)
    clock = Clock()
    reader = Reader(clock)
    survey = Survey("s", reader, now=clock)
    reader.let(2)
    found = survey.get(NAMES, first=["g3", "g4"])
    assert (reader.read, found.values, found.missing_count) == (["g3", "g4"], {"g3": 2, "g4": 2}, 3)
    reader.let(3)
    end_of(survey)
    assert reader.read == ["g3", "g4", "g0", "g1", "g2"]
    assert survey.get(NAMES).is_complete


@pytest.mark.parametrize(("pass_seconds", "rest"), [(0.0, AGE_SECONDS_MAX), (50.0, 450.0)])
def test_survey_rests_nine_times_as_long_as_its_pass_took(pass_seconds, rest):
    clock = Clock()
    reader = Reader(clock, pass_seconds / len(NAMES))
    survey = Survey("s", reader, now=clock)
    reader.let(1_000)
    for _ in range(2):
        survey.get(NAMES)
        end_of(survey)
        clock.now += rest - 1.0
        survey.get(NAMES)
        end_of(survey)
        assert len(reader.read) == len(NAMES)
        clock.now += 1.0
        reader.read.clear()


def test_survey_forgets_deleted_names_changed_names_and_old_values(monkeypatch):
    clock = Clock()
    reader = Reader(clock)
    survey = Survey("s", reader, now=clock)
    reader.let(1_000)
    survey.get([*NAMES, "gone"])
    end_of(survey)
    found = survey.get([*NAMES, "gone"])
    assert (set(found.values), found.missing_count) == (set(NAMES), 0)
    survey.discard("g1")
    reader.read.clear()
    assert survey.get([*NAMES, "new"]).values["g1"] == 2
    end_of(survey)
    assert reader.read == ["g1", "new"]  # the others are recent
    assert "gone" not in survey._known
    monkeypatch.setattr(module, "WAIT_SECONDS_MAX", 0.0)
    reader.gate = threading.Semaphore(0)
    clock.now += 3_600.0
    assert survey.get(NAMES).missing_count == len(NAMES)
    reader.let(len(NAMES))
    end_of(survey)


def test_survey_checks_unsettled_groups_twice(monkeypatch):
    monkeypatch.setattr(module, "STILL_MS", 1)
    answers = {"g0": ["maybe", "stuck"], "g1": ["ok"]}
    survey = Survey("s", lambda name: answers[name].pop(0), lambda value: value == "maybe", Clock())
    survey.get(answers)
    end_of(survey)
    assert survey.get(answers).values == {"g0": "stuck", "g1": "ok"}
