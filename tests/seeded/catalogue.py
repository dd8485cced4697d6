"""The seeded bugs: small changes of the product, each of which the tests must notice.

``bugs/*.txt`` has one file for each part of the product. A bug looks like this::

    bug: delay-advances-before-store
    title: A delayed message is never delivered if the store refuses it for a moment.
    only: order
    first: tests/test_schedule.py tests/store/test_reader.py
    file: broker/schedule/schedule_message_service.py
    in: ScheduleMessageService._deliver_found
    +            self._advance(level, message.queue_offset + 1)
                 if not self._delivery.deliver(message, to_real_topic):
                     return True, now_ms + min(RETRY_MS, delay_level.delay_ms)
    -            self._advance(level, message.queue_offset + 1)

``title`` says in one sentence what goes wrong for the user. ``only`` names what it takes to show
the bug: timing, order, damage, kill, power loss, or second crash. A bug that any use shows has no
such line. ``first`` names the test files that are expected to notice the bug; they run before all
other tests.

An edit begins with ``file`` and ``in``: the path of a module, and the qualified name of a function
or class in it, or ``<module>``. A function within a function is ``outer.inner``. The lines below
are code behind a marker, as in a diff: a space for a line that stays, ``-`` for one that goes and
``+`` for one that comes. The lines that stay or go are the old text. They are whole lines with
their indentation, and must occur in the function exactly once. A bug can have several edits; each
repeats ``file`` and ``in``. Blank lines separate bugs and mean nothing else.

Code can move as long as its function keeps its name. When functions, modules or tests get new
names, rewrite the anchors::

    PYTHONPATH=tests python
    >>> from seeded.catalogue import move_anchors
    >>> move_anchors({
    ...     "broker/old.py": "broker/new.py",                      # a module and all in it
    ...     "broker/old.py:Old": "broker/new.py:New",              # a class and all in it
    ...     "broker/old.py:Old.run": "broker/other.py:New.start",  # one function
    ...     "tests/test_old.py": "tests/test_new.py",
    ... })

The longest key that fits an anchor counts. If code within functions is renamed as well, run the
program that renames it over ``bugs/*.txt``, too: they are plain text. The tests of the catalogue
report every bug that no longer fits.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
BUGS = Path(__file__).parent / "bugs"
MODULE = "<module>"
_CODE_MARKERS = (" ", "-", "+")


class DoesNotFit(Exception):
    """A bug cannot be applied: its anchors, or its edits, do not fit the sources."""


class Edit(NamedTuple):
    """One replacement of whole lines in a function, a class or a module."""

    file: str
    qualname: str
    code: list[str]
    """The lines with their markers."""

    @property
    def old(self):
        """Return the text that the edit replaces."""
        return _text(self.code, " -")

    @property
    def new(self):
        """Return the replacement text."""
        return _text(self.code, " +")

    def span(self, source):
        """Return the range of the old text in a module's source."""
        scopes = _scopes(source).get(self.qualname)
        if scopes is None:
            raise DoesNotFit(f"{self.file} has no {self.qualname}")
        starts = [start for scope in scopes for start in _occurrences(self.old, source, *scope)]
        if len(starts) != 1:
            raise DoesNotFit(
                f"{self.qualname} in {self.file} contains this text {len(starts)} times, "
                f"not once:\n{self.old}"
            )
        return starts[0], starts[0] + len(self.old)


class Bug(NamedTuple):
    """A change of the product that some test must notice."""

    name: str
    title: str
    only: str | None
    first: list[str]
    edits: list[Edit]

    def check(self, root):
        """Raise DoesNotFit unless the bug can be applied to the sources below a directory."""
        self._changed(root)

    def apply(self, root):
        """Write the bug into the sources below a directory."""
        for file, source in self._changed(root).items():
            (root / file).write_text(source)

    @property
    def files(self):
        """Return the modules that the bug changes."""
        return {edit.file for edit in self.edits}

    def _changed(self, root):
        try:
            return {file: self._with_edits(file, root) for file in self.files}
        except DoesNotFit as error:
            raise DoesNotFit(f"{self.name}: {error}") from error

    def _with_edits(self, file, root):
        if not (root / file).is_file():
            raise DoesNotFit(f"there is no {file}")
        source = (root / file).read_text()
        edits = [(*edit.span(source), edit.new) for edit in self.edits if edit.file == file]
        for start, end, new in sorted(edits, reverse=True):
            source = source[:start] + new + source[end:]
        try:
            ast.parse(source)
        except SyntaxError as error:
            raise DoesNotFit(f"its edits make {file} invalid: {error}") from error
        return source


def catalogue(directory=BUGS):
    """Return all bugs, by name."""
    bugs = [bug for path in directory.glob("*.txt") for bug in parse(path.read_text())]
    return sorted(bugs, key=lambda bug: bug.name)


def parse(text):
    """Yield the bugs of one file."""
    for part in ("\n" + text).split("\nbug: ")[1:]:
        name, *lines = part.splitlines()
        fields, edits = {}, []
        for line in filter(None, lines):
            if line.startswith(_CODE_MARKERS):
                edits[-1].code.append(line)
                continue
            key, value = line.split(": ", 1)
            fields[key] = value
            if key == "in":
                edits.append(Edit(fields["file"], value, []))
        yield Bug(name, fields["title"], fields.get("only"), fields["first"].split(), edits)


def move_anchors(moves, directory=BUGS):
    """Rewrite the anchors of all bugs by a table of moves (see above)."""
    for path in directory.glob("*.txt"):
        lines = path.read_text().split("\n")
        for index, line in enumerate(lines):
            key, _, value = line.partition(": ")
            if key == "first":
                lines[index] = f"first: {' '.join(moves.get(test, test) for test in value.split())}"
            elif key == "in":
                file = lines[index - 1].removeprefix("file: ")
                file, qualname = _moved(file, value, moves)
                lines[index - 1 : index + 1] = f"file: {file}", f"in: {qualname}"
        path.write_text("\n".join(lines))


def _moved(file, qualname, moves):
    names = qualname.split(".")
    for length in range(len(names), 0, -1):
        target = moves.get(f"{file}:{'.'.join(names[:length])}")
        if target is not None:
            file, _, prefix = target.partition(":")
            return file, ".".join([prefix, *names[length:]])
    return moves.get(file, file), qualname


def _text(code, markers):
    return "".join(f"{line[1:]}\n" for line in code if line[0] in markers)


def _occurrences(old, source, start, end):
    """Yield the positions of whole lines in a part of a source."""
    found = source.find(old, start, end)
    while found >= 0:
        if found == 0 or source[found - 1] == "\n":
            yield found
        found = source.find(old, found + 1, end)


@lru_cache(maxsize=1024)
def _scopes(source):
    """Return the ranges of each qualified name in a source.

    Overloads and properties with a setter are defined more than once.
    """
    starts = [0]
    for line in source.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    found = {MODULE: [(0, len(source))]}

    def collect(parent, prefix):
        for node in ast.iter_child_nodes(parent):
            inner = prefix
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min(each.lineno for each in (node, *node.decorator_list))
                span = starts[first - 1], starts[node.end_lineno]
                found.setdefault(prefix + node.name, []).append(span)
                inner = f"{prefix}{node.name}."
            collect(node, inner)

    collect(ast.parse(source), "")
    return found
