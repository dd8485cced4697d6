"""Docstrings stand alone: in an editor, in `help()` and in a reference, without the lines around
them.

A sentence that leans on its surroundings ("The same.", "Whether it is.") says nothing there. What
counts here is how the docstrings of classes, functions and documented names begin, and that they
avoid some words; module headers are left out. Docstrings of tests are read under the test's name,
so that only their words count. What `rocketpoll` exports names all of its arguments as well, and
its records all of their fields: `help()` does not show a string after a field.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import rocketpoll
from rocketpoll import aio, errors

FRONT_DOORS = {"rocketpoll": rocketpoll, "rocketpoll.aio": aio}
ROOT = Path(__file__).parent.parent
PACKAGES = ("rmq_spark", "broker", "rocketpoll")

RULES_OF_TESTS = {
    'has plain words: "is notified", "again", "anyone", "after a restart"': re.compile(
        r"(?s).*\b((is|are) told|hears? of|has come to|whoever|anew|lacking|so many|as ever"
        r"|behind (an? |the |its |each |every )?"
        r"(answer|crash|failure|fork|kill|restart|shutdown|start|stop))\b.*",
        re.IGNORECASE,
    ),
}

RULES = {
    **RULES_OF_TESTS,
    "has at least three words, or is left out": re.compile(r"\s*\S+(\s+\S+)?\s*"),
    'says it itself, instead of "See the module"': re.compile(
        r"(?s).*\bsee the module\b.*", re.IGNORECASE
    ),
    'says what is the same, instead of "The same"': re.compile(
        r"(?s)(the same|likewise)\b.*", re.IGNORECASE
    ),
    "opens with a verb or a noun, not with a pronoun": re.compile(
        r"(?s)(it|its|they|their|them|this|that|these|those|he|his|him|she|her|we|our|you|your)\b.*",
        re.IGNORECASE,
    ),
    'opens with a verb or a noun ("Return whether ..."), not with a question word': re.compile(
        r"(?s)(what|whatever|whether|how|where|which|when|who|whom|whose|whoever|why)\b.*",
        re.IGNORECASE,
    ),
}


class Docstring(NamedTuple):
    """The text that documents a name, and the line where it starts."""

    line: int
    name: str
    text: str


def docstrings_of(source: str) -> Iterator[Docstring]:
    """Yield the docstrings of classes and functions, and the strings after assignments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield Docstring(node.body[0].lineno, node.name, text)
        if isinstance(node, ast.ClassDef | ast.Module):
            for assigned, behind in pairwise(node.body):
                match assigned, behind:
                    case (
                        ast.Assign(targets=[target, *_]) | ast.AnnAssign(target=target),
                        ast.Expr(value=ast.Constant(value=str(text))),
                    ):
                        yield Docstring(behind.lineno, ast.unparse(target), text.strip())


def faults_of(source: str, rules: Mapping[str, re.Pattern[str]] = RULES) -> list[str]:
    """Return a line for each rule that a docstring breaks: its place, its name, the rule,
    its first line."""
    return [
        f"{line} {name}: a docstring {rule}: {text.splitlines()[0] if text else ''!r}"
        for line, name, text in sorted(docstrings_of(source))
        for rule, broken in rules.items()
        if broken.fullmatch(text)
    ]


def public_functions(door: Any) -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Yield name, function and docstring of the exports of a package: functions, methods of
    classes, and classes that only their arguments describe."""
    for name in door.__all__:
        exported = getattr(door, name)
        if inspect.isfunction(exported):
            yield name, exported, inspect.getdoc(exported) or ""
        if not inspect.isclass(exported):
            continue
        for method in filter(lambda each: not each.startswith("_"), dir(exported)):
            found = inspect.getattr_static(exported, method)
            found = getattr(found, "__func__", found)
            if inspect.isfunction(found) and found.__module__.startswith(PACKAGES):
                yield f"{name}.{method}", found, inspect.getdoc(found) or ""
        is_protocol = getattr(exported, "_is_protocol", False)
        is_value = dataclasses.is_dataclass(exported) or issubclass(
            exported, (tuple, Exception, enum.Enum)
        )
        if "__init__" in vars(exported) and not (is_value or is_protocol):
            own = f"{inspect.getdoc(exported)} {inspect.getdoc(exported.__init__)}"
            yield name, exported.__init__, own


def unnamed_arguments(function: Callable[..., Any], text: str) -> list[str]:
    """Return the arguments of a function that its docstring does not name."""
    names = [name for name in inspect.signature(function).parameters if name not in {"self", "cls"}]
    return [name for name in names if not re.search(rf"\b{name}\b", text)]


@pytest.mark.parametrize("door", FRONT_DOORS)
def test_public_docstrings_name_all_arguments(door):
    checked = list(public_functions(FRONT_DOORS[door]))
    faults = [
        f"{name}: its docstring does not name {', '.join(unnamed)}"
        for name, function, text in checked
        if (unnamed := unnamed_arguments(function, text))
    ]
    assert len(checked) > 40
    assert not faults, "\n".join(faults)


LEANING = re.compile(
    r"\b(as (for )?`[\w.]+`( does)?(?=[.;,\n]|$)|as in `[\w.]+`|(those|errors) of `[\w.]+`"
    r"|see `[\w.]+`|threaded (one|producer|consumer)'?s?)",
    re.IGNORECASE,
)
"""Words that send a reader to another docstring for arguments, results or errors."""


@pytest.mark.parametrize("door", FRONT_DOORS)
def test_public_docstrings_do_not_refer_to_others(door):
    faults = [
        f"{name}: {found[0]!r}"
        for name, _, text in public_functions(FRONT_DOORS[door])
        if (found := LEANING.search(text))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("text", "leans"),
    [
        ("Raise `NotAssigned` as `seek`.", True),
        ("Stop; refuse as `subscribe` does.", True),
        ("timeout_ms: Milliseconds, as for `send`.", True),
        ("Its exceptions are those of `send`.", True),
        ("A send is tried again as in `send`. Then it fails.", True),
        ("start: The first; see `Admin.read_table`.", True),
        ("Settings are those of the threaded producer's `send_table`.", True),
        ("selector: Tags, or a selector, as `by_sql` returns.", False),
        ("Number of sends of `send_async` that wait.", False),
    ],
)
def test_docstring_check_knows_words_that_lean_on_another_docstring(text, leans):
    assert bool(LEANING.search(text)) is leans


def fields_of(kind: type) -> list[str]:
    """Return the public fields of a record, or the members of an enumeration; else nothing."""
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    elif issubclass(kind, enum.Enum):
        names = [*kind.__members__]
    else:
        names = [*getattr(kind, "_fields", ())]
    return [name for name in names if not name.startswith("_")]


def undescribed_fields(kind: type) -> list[str]:
    """Return the fields of a record that the section Attributes of its docstring leaves out."""
    _, _, section = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")
    described = re.findall(r"^ {4}(\w+): \S", section, re.MULTILINE)
    return [name for name in fields_of(kind) if name not in described]


def unnamed_attributes(error: type[BaseException]) -> list[str]:
    """Return the attributes that an error's constructor sets and no docstring of its
    classes names."""
    if "__init__" not in vars(error):
        return []
    names = [
        node.attr
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(error.__init__))))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and not node.attr.startswith("_")
        and node.attr != "args"
    ]
    said = " ".join(kind.__doc__ or "" for kind in error.__mro__)
    return [name for name in names if not re.search(rf"\b{name}\b", said)]


def public_classes() -> Iterator[tuple[str, type]]:
    """Yield the classes that `rocketpoll` exports, each once, with their names."""
    exported = {
        getattr(door, name): f"{called}.{name}"
        for called, door in {**FRONT_DOORS, "rocketpoll.errors": errors}.items()
        for name in door.__all__
        if inspect.isclass(getattr(door, name))
    }
    yield from ((name, kind) for kind, name in exported.items())


def test_every_public_record_documents_its_fields():
    checked = [(name, kind) for name, kind in public_classes() if fields_of(kind)]
    faults = [
        f"{name}: its Attributes leave out {', '.join(missing)}"
        for name, kind in checked
        if (missing := undescribed_fields(kind))
    ]
    assert len(checked) > 15
    assert not faults, "\n".join(faults)


def test_every_public_error_documents_its_attributes():
    checked = [
        (name, kind)
        for name, kind in public_classes()
        if issubclass(kind, BaseException) and "__init__" in vars(kind)
    ]
    faults = [
        f"{name}: no docstring names {', '.join(missing)}"
        for name, kind in checked
        if (missing := unnamed_attributes(kind))
    ]
    assert len(checked) > 10
    assert not faults, "\n".join(faults)


def test_string_after_a_field_and_name_in_prose_describe_no_field():
    @dataclasses.dataclass
    class Health:
        """The state of a queue, with its messages and its size.

        Attributes:
            is_running: True while messages come.
        """

        is_running: bool
        messages: int
        """Number of messages."""
        size: int

    assert undescribed_fields(Health) == ["messages", "size"]


def test_docstring_check_finds_an_undocumented_error_attribute():
    class Refused(Exception):
        """Somebody refused, with a code."""

        def __init__(self, code, remark):
            self.code, self.remark = code, remark

    assert unnamed_attributes(Refused) == ["remark"]


def test_docstring_check_does_not_take_a_part_of_a_word_for_an_argument():
    def seek(queue, ms):
        """Continue in a queue at a time in msec."""

    assert unnamed_arguments(seek, inspect.getdoc(seek)) == ["ms"]


@pytest.mark.parametrize(
    ("package", "rules"),
    [*((package, RULES) for package in PACKAGES), ("tests", RULES_OF_TESTS)],
    ids=[*PACKAGES, "tests"],
)
def test_docstrings_stand_alone(package, rules):
    files = sorted((ROOT / package).rglob("*.py"))  # which does not follow rocketpoll/broker
    faults = [
        f"{path.relative_to(ROOT)}:{fault}"
        for path in files
        for fault in faults_of(path.read_text(encoding="utf-8"), rules)
    ]
    assert files
    assert not faults, "\n".join([f"{len(faults)} docstrings do not stand alone:", *faults])


@pytest.mark.parametrize(
    "text",
    [
        "Store it.",
        "Stored.",
        "See the module.",
        "One partition's rows. See the module.",
        "The same, written later.",
        "Likewise for a sink.",
        "It ends the query.",
        "Their own addresses only.",
        "What it is made of.",
        "Whether the queue is gone.",
        "How many messages there are.",
        "when the last batch ended",
        "A member is told of the new queue.",
        "Plan the batch anew.",
        "Count the messages behind a crash.",
    ],
)
@pytest.mark.parametrize(
    "source",
    [
        'def of():\n    """{}"""',
        'class Of:\n    """{}"""',
        'class _:\n    of: int = 0\n    """{}"""',
        'of = 0\n"""{}"""',
    ],
)
def test_docstring_depending_on_its_surroundings_is_refused(source, text):
    [fault] = faults_of(source.format(text))
    assert fault.split()[1].lower() == "of:"
    assert text in fault


@pytest.mark.parametrize(
    "text",
    [
        "Return whether the queue is gone.",
        "Store one message.\n\nIt is flushed later.",
        "Thisbe's own queue.",
        "The queues that are the same in both.",
        "Itemize the offsets.",
    ],
)
def test_self_contained_docstring_is_accepted(text):
    assert faults_of(f'def of():\n    """{text}"""') == []
