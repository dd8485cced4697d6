"""Each file that where-is-what.md names exists and contains the names in its row."""

import inspect
import re

from support.programs.python_programs import ROOT

import rocketpoll

PAGE = ROOT / "docs" / "where-is-what.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("|") and not line.startswith(("| question |", "|---"))
]
_CODE = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
_HELP = re.compile(r"help\(([\w.]+)\)")
_NAME = re.compile(r"[A-Za-z_]\w{2,}")


def is_path(code):
    return bool(re.fullmatch(r"[\w./-]+", code)) and ("/" in code or code.endswith(".py"))


def places_of(cell):
    """Return the files that the last cell of a row names, by paths or links."""
    links = [PAGE.parent / target for target in _LINK.findall(cell)]
    return [*links, *(ROOT / code for code in _CODE.findall(cell) if is_path(code))]


def helps_of(cell):
    """Return Python's help of the names in a cell."""
    for name in _HELP.findall(cell):
        found = rocketpoll
        for part in name.split("."):
            found = getattr(found, part)
        yield f"{name} {inspect.signature(found)} {inspect.getdoc(found)}"


def test_rows_of_where_is_what_have_a_question_an_answer_and_a_place():
    assert len(ROWS) >= 20
    assert [row for row in ROWS if len(row) != 3 or not all(row)] == []
    assert len({question for question, _, _ in ROWS}) == len(ROWS)


def test_places_of_where_is_what_exist():
    for row in ROWS:
        places = places_of(row[2])
        assert places or list(helps_of(row[2])), row[0]
        assert [str(path) for path in places if not path.is_file()] == [], row[0]


def test_places_of_where_is_what_contain_the_names_of_their_row():
    for row in ROWS:
        said = " ".join(
            [*(path.read_text(encoding="utf-8") for path in places_of(row[2])), *helps_of(row[2])]
        )
        codes = [code for cell in row for code in _CODE.findall(cell) if not is_path(code)]
        names = {name for code in codes for name in _NAME.findall(code)} - {"help"}
        missing = [name for name in names if not re.search(rf"\b{name}\b", said)]
        assert sorted(missing) == [], row[0]
