"""`make lowest` tests the lowest version of each imported dependency."""

import pytest
from support.programs.lowest_versions import EXTRAS, PYPROJECT, constraints

TEXT = PYPROJECT.read_text(encoding="utf-8")


def test_lowest_versions_are_those_of_every_dependency():
    tomllib = pytest.importorskip("tomllib", reason="from Python 3.11 on")
    project = tomllib.loads(TEXT)["project"]
    extras = [each for extra in EXTRAS for each in project["optional-dependencies"][extra]]
    lower = [each.replace(">=", "==") for each in (*project["dependencies"], *extras)]
    assert constraints(TEXT) == lower


def test_dependency_without_a_lower_bound_is_refused():
    with pytest.raises(ValueError, match=r'no lower bound in .*"lz4"'):
        constraints(TEXT.replace('"lz4>=4.1"', '"lz4"'))
