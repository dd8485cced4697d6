"""The benchmark harness with a fake clock: the tests take no time and do not depend on
the machine."""

import gc

import pytest

from benchmarks.harness import Case, Result, Target, calibrate, compare, measure, select


@pytest.fixture(autouse=True)
def nothing_to_collect(monkeypatch):
    """Freeze the garbage of other tests, which takes seconds to collect."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


class FakeClock:
    """A clock that only `work` moves."""

    def __init__(self):
        self.now = 0.0
        self.log = []

    def __call__(self):
        return self.now

    def work(self, name, seconds):
        """Return work whose runs take these seconds, one after the other."""
        durations = seconds if isinstance(seconds, list) else [seconds]

        def run():
            self.now += durations[self.log.count(name) % len(durations)]
            self.log.append(name)

        return run


def case(variant="a", run=lambda: None, units=1, **more):
    return Case("subject", variant, run, units, **more)


def result(*rounds, ratios=(), **more):
    return Result(case(**more), rounds, ratios)


def test_benchmark_rounds_of_all_cases_are_interleaved():
    clock = FakeClock()
    cases = [case(name, clock.work(name, 1.0)) for name in "abc"]
    measure(cases, rounds=3, seconds=1.0, clock=clock)
    calibration, measured = clock.log[:3], clock.log[3:]
    assert calibration == ["a", "b", "c"]
    assert measured == ["a", "a", "b", "b", "c", "c"] * 3  # each once to warm up, once timed


def test_prepared_case_runs_once_per_round():
    clock = FakeClock()
    single = case("single", clock.work("single", 0.001), prepare=clock.work("prepare", 5.0))
    (found,) = measure([single], rounds=3, seconds=1.0, clock=clock)
    assert clock.log == ["prepare", "single"] * 3
    assert found.rounds == pytest.approx((0.001,) * 3)


@pytest.mark.parametrize("duration", [0.0005, 0.01, 0.3, 7.0])
def test_calibration_finds_loops_that_fill_a_round_and_little_more(duration):
    clock = FakeClock()
    loops = calibrate(clock.work("a", duration), 1.0, clock)
    assert loops * duration >= 1.0
    assert loops == 1 or loops * duration <= 1.1 + duration


def test_calibration_is_not_misled_by_a_slow_first_run():
    clock = FakeClock()
    durations = [0.9] + [0.001] * 5000
    assert calibrate(clock.work("a", durations), 1.0, clock) >= 1000


def test_benchmark_median_ignores_an_interrupted_round():
    found = result(1e-6, 2e-6, 3e-6, 4e-6, 500e-6)
    assert found.microseconds == pytest.approx(3)
    assert found.per_second == pytest.approx(1e6 / 3)
    assert found.quartiles == pytest.approx((2, 4))
    assert found.spread == pytest.approx(2 / 3)


def test_benchmark_ratio_is_the_median_of_per_round_ratios():
    cases = [case("slow"), case("fast", peer="slow")]
    # The machine is ten times as slow in the second round, for both.
    slow, fast = compare(
        cases, {"subject: slow": [4.0, 40.0, 6.0], "subject: fast": [2.0, 10.0, 2.0]}
    )
    assert fast.ratios == (2.0, 4.0, 3.0)
    assert fast.ratio == 3.0
    assert slow.ratio is None


def test_benchmark_ratio_ignores_slowness_shared_with_the_peer():
    clock = FakeClock()
    mood = [
        1.0,
        1.0,
        1.0,
        8.0,
        8.0,
        3.0,
        3.0,
    ]  # calibrating, then each round's cold run and its timed one
    cases = [
        case("peer", clock.work("peer", mood)),
        case("ours", clock.work("ours", [seconds / 2 for seconds in mood]), peer="peer"),
    ]
    peer, ours = measure(cases, rounds=3, seconds=0.5, clock=clock)
    assert peer.rounds == (1.0, 8.0, 3.0)
    assert ours.ratios == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("target", "reached"),
    [
        (Target("per_second", 500_000.0), True),
        (Target("per_second", 500_001.0), False),
        (Target("bytes_per_second", 50e6), True),
        (Target("bytes_per_second", 51e6), False),
        (Target("microseconds", 2.0), True),
        (Target("microseconds", 1.9), False),
        (Target("ratio", 1.5), True),
        (Target("ratio", 1.6), False),
    ],
)
def test_benchmark_targets_are_minimum_speeds_and_maximum_times(target, reached):
    assert target.is_reached(result(2e-6, ratios=(1.5,), bytes_per_unit=100)) is reached


def test_selected_benchmark_cases_include_their_peers():
    cases = [case("one"), case("other"), case("third", peer="one")]
    assert [chosen.variant for chosen in select(cases, "third")] == ["one", "third"]
    assert [chosen.variant for chosen in select(cases, "other")] == ["other"]
    assert select(cases, "") == cases
    assert select(cases, "fourth") == []


@pytest.mark.parametrize(
    ("cases", "message"),
    [
        ([case("a"), case("a")], "two cases are called 'subject: a'"),
        ([case("a", peer="b")], "not measured: 'subject: b'"),
        ([case("a", target=Target("ratio", 1.0))], "no peer"),
        ([case("a", target=Target("bytes_per_second", 1.0))], "have none"),
    ],
)
def test_incomparable_benchmark_cases_are_refused_before_any_run(cases, message):
    with pytest.raises(ValueError, match=message):
        measure(cases, clock=FakeClock())
