"""Numbers too large for the clock are refused wherever the command line takes a number."""

import pytest
from support.programs.cli_commands import EVERY

from rmq_spark.cli.shell.parameter_types import PositiveFloat

FRACTIONS = [
    (name, option.opts[0])
    for name, verb in EVERY.items()
    for option in verb.params
    if isinstance(option.type, PositiveFloat)
]


@pytest.mark.parametrize(("name", "option"), FRACTIONS)
@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e300", "0", "-1", "x"])
def test_invalid_numbers_are_refused_by_option_name(run, name, option, number):
    ran = run(*name.split(), f"{option}={number}")
    assert ran.code == 2
    assert f"{option}: {number} is not " in ran.err or f"{option}: '{number}' is not " in ran.err


def test_commands_with_fractional_options_exist():
    assert {"top", "demo", "exporter", "produce"} <= {name for name, _ in FRACTIONS}


@pytest.mark.parametrize(("text", "number"), [("0.001", 0.001), ("1e9", 1e9), ("7", 7.0)])
def test_valid_fractions_are_accepted(text, number):
    assert PositiveFloat().convert(text, None, None) == number
