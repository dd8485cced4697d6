"""Moves and merges modules by a table, and rewrites all that names them.

    python relayout.py TREE TABLE.json ...      rewrites the checkout TREE in place

A table has four kinds of entries, all by paths of the tree as it stands:

    move    module -> new path; a path that ends with / keeps the name
    merge   module -> module that takes it in, which may move as well
    split   module -> {new path: [names]} that leave it for another module
    rename  module -> {name: new name}, where two merged modules share one

Imports are rewritten by their syntax, in statements and inside functions; quoted dotted names and
paths by their text, in every tracked text file. Modules below broker/ get relative imports.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

DOTTED = re.compile(r"\b(?:rocketpoll\.broker|rmq_spark)(?:\.[A-Za-z_]\w*)+")
PATHS = re.compile(r"\b(?:broker|rmq_spark|rocketpoll)/(?:[\w-]+/)*[\w-]+\.py\b")
TEXTS = {".py", ".md", ".cfg", ".toml", ".yml", ".ipynb", ".patch", ".txt", ".json", ".sh", ".conf"}


def module_of(path: str) -> str:
    parts = list(PurePosixPath(path).with_suffix("").parts)
    if parts[0] == "broker":
        parts.insert(0, "rocketpoll")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


@dataclass
class Layout:
    paths: list[str]
    move: dict[str, str] = field(default_factory=dict)
    merge: dict[str, str] = field(default_factory=dict)
    split: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    rename: dict[str, dict[str, str]] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    inits: dict[str, str] = field(default_factory=dict)
    post: dict[str, list[list[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.modules = {module_of(path): path for path in self.paths}
        for path in [*self.move, *self.merge, *self.split, *self.rename]:
            if path not in self.paths:
                raise SystemExit(f"no module {path}")

    def home(self, path: str) -> str:
        """The new path of a module's contents."""
        seen = [path]
        while seen[-1] in self.merge:
            seen.append(self.merge[seen[-1]])
            if len(seen) > 9:
                raise SystemExit(f"merges in a circle: {seen}")
        path = seen[-1]
        new = self.move.get(path, path)
        return new + PurePosixPath(path).name if new.endswith("/") else new

    def new_module(self, module: str, name: str | None = None) -> str:
        path = self.modules[module]
        if name is not None:
            for target, names in self.split.get(path, {}).items():
                if name in names:
                    return module_of(target)
        return module_of(self.home(path))

    def new_name(self, module: str, name: str) -> str:
        return self.rename.get(self.modules[module], {}).get(name, name)

    def dotted(self, text: str) -> str:
        """The new form of a dotted name that begins with a module, or the same."""
        parts = text.split(".")
        for end in range(len(parts), 0, -1):
            module = ".".join(parts[:end])
            if module in self.modules:
                rest = parts[end:]
                if self.modules[module].endswith("__init__.py"):
                    new = self.packages.get(module, module)
                else:
                    new = self.new_module(module, rest[0] if rest else None)
                    if rest:
                        rest[0] = self.new_name(module, rest[0])
                return ".".join([new, *rest])
        return text

    def texts(self, text: str) -> str:
        text = DOTTED.sub(lambda found: self.dotted(found[0]), text)
        return PATHS.sub(
            lambda found: self.home(found[0]) if found[0] in self.modules.values() else found[0],
            text,
        )


def statement(module: str, names: list[tuple[str, str | None]], indent: str) -> str:
    names = [(name, None if alias == name else alias) for name, alias in names]
    listed = ", ".join(name if alias is None else f"{name} as {alias}" for name, alias in names)
    line = f"{indent}from {module} import {listed}"
    if len(line) <= 100:
        return line
    inner = "".join(
        f"{indent}    {name if alias is None else f'{name} as {alias}'},\n" for name, alias in names
    )
    return f"{indent}from {module} import (\n{inner}{indent})"


def relative(target: str, package: list[str]) -> str:
    parts = target.split(".")
    common = 0
    while common < min(len(parts), len(package)) and parts[common] == package[common]:
        common += 1
    return "." * (len(package) - common + 1) + ".".join(parts[common:])


class Rewriter:
    """Rewrites the imports of one file."""

    def __init__(self, layout: Layout, old_path: str, new_path: str) -> None:
        self.layout, self.old_path, self.new_path = layout, old_path, new_path
        is_product = new_path.split("/")[0] in {"broker", "rmq_spark", "rocketpoll"}
        self.self_module = module_of(new_path) if is_product else None
        self.package: list[str] | None = None
        if new_path.startswith("broker/"):
            module = module_of(new_path).split(".")
            self.package = module if new_path.endswith("__init__.py") else module[:-1]
        self.aliases: dict[str, str] = {}
        """Names of modules in this file that get another name."""

    def import_text(self, node: ast.ImportFrom, indent: str) -> str | None:
        """The new statements; None if nothing changes. Empty if nothing is left to import."""
        layout = self.layout
        module = node.module or ""
        if node.level:
            raise SystemExit(f"{self.old_path}:{node.lineno}: a relative import already")
        if not (
            module == "rmq_spark"
            or module.startswith(("rmq_spark.", "rocketpoll.broker"))
            or module == "rocketpoll"
        ):
            return None
        wanted: dict[str, list[tuple[str, str | None]]] = defaultdict(list)
        for alias in node.names:
            sub = f"{module}.{alias.name}"
            if sub in layout.modules and not layout.modules[sub].endswith("__init__.py"):
                new = layout.new_module(sub)
                package, _, base = new.rpartition(".")
                if new == self.self_module:
                    print(f"{self.old_path}:{node.lineno}: imports {sub}, which becomes itself")
                    continue
                shown = alias.asname
                if shown is None and base != alias.name:
                    if (
                        base in self.names or alias.name in self.stored
                    ):  # taken here: the file keeps its own name for it
                        shown = alias.name
                    else:
                        self.aliases[alias.name] = base
                wanted[package].append((base, shown))
                continue
            if sub in layout.modules:  # a package
                new = layout.packages.get(sub, sub)
                package, _, base = new.rpartition(".")
                if alias.asname is None and base != alias.name:
                    self.aliases[alias.name] = base
                wanted[package].append((base, alias.asname))
                continue
            if module not in layout.modules or layout.modules[module].endswith("__init__.py"):
                wanted[layout.packages.get(module, module)].append((alias.name, alias.asname))
                continue
            new, name = layout.new_module(module, alias.name), layout.new_name(module, alias.name)
            shown = alias.asname
            if name != alias.name and shown is None:
                self.aliases[alias.name] = name
            if new == self.self_module:
                if shown is not None and shown != name:
                    self.aliases[shown] = name
                continue
            wanted[new].append((name, shown))
        lines = []
        for target in sorted(wanted):
            shown_module = target
            if self.package is not None and target.startswith("rocketpoll.broker"):
                shown_module = relative(target, self.package)
            lines.append(
                statement(
                    shown_module,
                    sorted(wanted[target], key=lambda each: (each[0], each[1] or "")),
                    indent,
                )
            )
        return "\n".join(lines)

    def rewrite(self, text: str) -> str:
        """The whole file with new imports, names of modules and texts."""
        tree = ast.parse(text)
        self.names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | {
            node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)
        }
        self.stored = {
            node.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
        } | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        lines = text.split("\n")
        edits: list[tuple[int, int, list[str]]] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                first = lines[node.lineno - 1]
                indent = first[: len(first) - len(first.lstrip())]
                new = self.import_text(node, indent)
                if new is None:
                    edits.append(
                        (node.lineno, node.end_lineno, lines[node.lineno - 1 : node.end_lineno])
                    )
                    continue
                tail = lines[node.end_lineno - 1][node.end_col_offset :]
                if not tail.strip() and node.end_lineno > node.lineno and "#" in first:
                    tail = "  " + first[first.index("#") :]
                if new and tail.strip():
                    new = "\n".join(
                        line + tail if re.match(r"\s*from ", line) else line
                        for line in new.split("\n")
                    )
                if not new and indent:
                    new = f"{indent}pass"  # which may be all that the block has
                edits.append((node.lineno, node.end_lineno, new.split("\n") if new else []))
        edits.sort()
        out: list[str] = []
        at = 1
        pending: list[str] = []
        for first, last, new in edits:
            out += (
                self.layout.texts("\n".join(lines[at - 1 : first - 1])).split("\n")
                if at < first
                else []
            )
            out += new
            at = last + 1
        out += self.layout.texts("\n".join(lines[at - 1 :])).split("\n")
        text = "\n".join(out)
        for old, new in self.aliases.items():
            text = rename_names(text, old, new, self.old_path)
        for old, new in self.layout.rename.get(self.old_path, {}).items():
            text = rename_names(text, old, new, self.old_path)
        return text


def rename_names(text: str, old: str, new: str, where: str) -> str:
    """Rename a global name of a file, by its syntax; definitions too."""
    tree = ast.parse(text)
    places: list[tuple[int, int]] = []
    lines = text.split("\n")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if node.id == new:
                print(f"{where}: {new} is there already, beside {old}")
            if node.id == old:
                places.append((node.lineno, node.col_offset))
        elif isinstance(node, ast.arg) and node.arg == old:
            print(f"{where}:{node.lineno}: an argument is called {old}, as what becomes {new}")
        elif (
            isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))
            and node.name == old
            and node in tree.body
        ):
            line = lines[node.lineno - 1]
            places.append((node.lineno, len(line[: line.index(old)].encode())))
    for number, column in sorted(places, reverse=True):
        raw = lines[number - 1].encode()
        assert raw[column : column + len(old)] == old.encode(), (where, number, old)
        lines[number - 1] = (raw[:column] + new.encode() + raw[column + len(old) :]).decode()
    return "\n".join(lines)


@dataclass
class Part:
    """One old module, taken apart."""

    docstring: str
    future: bool
    imports: list[str]
    typing_imports: list[str]
    body: str


def is_typing_block(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        and not node.orelse
        and all(isinstance(each, (ast.Import, ast.ImportFrom, ast.Pass)) for each in node.body)
    )


def taken_apart(text: str) -> Part:
    tree = ast.parse(text)
    lines = text.split("\n")
    docstring = ast.get_docstring(tree, clean=True) or ""
    imports, typing_imports, future = [], [], False
    drop: set[int] = set()
    for number, node in enumerate(tree.body):
        span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        source = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        if number == 0 and docstring and isinstance(node, ast.Expr):
            drop.update(span)
        elif isinstance(node, ast.ImportFrom) and node.module == "__future__":
            future = True
            drop.update(span)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            imports.append(source)
            drop.update(span)
        elif is_typing_block(node):
            typing_imports += [
                "\n".join(line[4:] for line in lines[each.lineno - 1 : each.end_lineno])
                for each in node.body
                if not isinstance(each, ast.Pass)
            ]
            drop.update(span)
    body = "\n".join(line for number, line in enumerate(lines, 1) if number not in drop)
    return Part(docstring, future, imports, typing_imports, body.strip("\n"))


def top_definitions(body: str) -> dict[str, str]:
    """The top-level names of a body, with the source of what defines them."""
    found = {}
    for node in ast.parse(body).body:
        source = ast.get_source_segment(body, node) or ""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found[node.name] = source
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found[target.id] = source
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = source
    return found


def without(body: str, names: set[str]) -> str:
    """A body without the definitions of some names, and the strings that document them."""
    tree, lines = ast.parse(body), body.split("\n")
    drop: set[int] = set()
    nodes = tree.body
    for number, node in enumerate(nodes):
        defined = None
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            defined = node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            defined = node.targets[0].id
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            defined = node.target.id
        if defined in names:
            first = min(
                [node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))]
            )
            drop.update(range(first, node.end_lineno + 1))
            after = nodes[number + 1] if number + 1 < len(nodes) else None
            if (
                isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                drop.update(range(after.lineno, after.end_lineno + 1))
    return "\n".join(line for number, line in enumerate(lines, 1) if number not in drop).strip("\n")


def definitions_of(body: str, names: list[str]) -> str:
    """The source of some definitions, in their order, with the strings that document them."""
    all_names = set(top_definitions(body))
    return without(body, all_names - set(names))


def assembled(parts: list[tuple[str, Part]], main: str, where: str) -> str:
    """One module of several; the docstring is that of ``main``."""
    imports: dict[str, None] = {}
    typing_imports: dict[str, None] = {}
    bodies = []
    defined: dict[str, tuple[str, str]] = {}
    docstring = ""
    for path, part in parts:
        imports.update(dict.fromkeys(part.imports))
        typing_imports.update(dict.fromkeys(part.typing_imports))
        if any(text.endswith("import lazy_numpy as np") for text in imports):
            typing_imports.pop("import numpy as np", None)
        body = part.body
        same: set[str] = set()
        for name, source in top_definitions(body).items():
            if name in defined:
                if defined[name][1] == source:
                    same.add(name)
                else:
                    print(f"{where}: {name} is defined by {defined[name][0]} and by {path}")
            else:
                defined[name] = path, source
        body = without(body, same) if same else body
        if path == main:
            docstring = part.docstring
        bodies.append((path, part.docstring, body))
    out = ['"""' + docstring + ('\n"""' if "\n" in docstring else '"""'), ""]
    out += ["from __future__ import annotations", ""]
    out += [*imports, ""]
    if typing_imports:
        out += ["if TYPE_CHECKING:"]
        out += [
            "    " + line if line else line for text in typing_imports for line in text.split("\n")
        ]
        out += [""]
    for path, text, body in bodies:
        if path != main and text and len(bodies) > 1:
            title = text.split("\n\n", 1)[0].replace("\n", " ")
            out += ["", f"# ---- {title}"] if len(title) < 92 else ["", *wrapped(f"---- {title}")]
            out += [""]
        out += [body, "", ""]
    return "\n".join(out).rstrip("\n") + "\n"


def wrapped(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, 98, initial_indent="# ", subsequent_indent="# ")


def ordered(paths: list[str], texts: dict[str, str], layout: Layout) -> list[str]:
    """Old modules of one new file, what is imported by another first."""
    modules = {module_of(path): path for path in paths}
    needs: dict[str, set[str]] = {path: set() for path in paths}
    for path in paths:
        for node in ast.walk(ast.parse(texts[path])):
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                needs[path].add(modules[node.module])
    out: list[str] = []

    def visit(path: str, way: tuple[str, ...]) -> None:
        if path in way:
            print("circle", way, path)
            return
        for each in sorted(needs[path]):
            visit(each, (*way, path))
        if path not in out:
            out.append(path)

    for path in paths:
        visit(path, ())
    return out


def transformed(texts: dict[str, str], layout: Layout, only: str | None = None) -> dict[str, str]:
    """The new contents of all product modules, or of the new file ``only``, by new path."""
    groups: dict[str, list[str]] = defaultdict(list)
    for path in layout.paths:
        groups[layout.home(path)].append(path)
    extracted: dict[str, list[tuple[str, list[str]]]] = defaultdict(list)
    for path, targets in layout.split.items():
        for target, names in targets.items():
            extracted[target].append((path, names))
    result: dict[str, str] = {}
    for new_path in sorted({*groups, *extracted}):
        if only is not None and new_path != only:
            continue
        paths = groups.get(new_path, [])
        if len(paths) == 1 and not layout.split.get(paths[0]) and not extracted.get(new_path):
            result[new_path] = Rewriter(layout, paths[0], new_path).rewrite(texts[paths[0]])
            continue
        parts: list[tuple[str, Part]] = []
        for path, names in extracted.get(new_path, []):
            part = taken_apart(Rewriter(layout, path, new_path).rewrite(texts[path]))
            part.body = definitions_of(part.body, names)
            part.docstring = ""
            parts.append((path + "#", part))
        main = next((path for path in paths if path not in layout.merge), None)
        for path in ordered(paths, texts, layout):
            rewriter = Rewriter(layout, path, new_path)
            part = taken_apart(rewriter.rewrite(texts[path]))
            for target, names in layout.split.get(path, {}).items():
                if target == new_path:
                    continue
                part.body = without(part.body, set(names))
                used = {
                    node.id for node in ast.walk(ast.parse(part.body)) if isinstance(node, ast.Name)
                }
                back = sorted(used & set(names))
                if back:
                    module = module_of(target)
                    if rewriter.package is not None:
                        module = relative(module, rewriter.package)
                    part.imports.append(statement(module, [(name, None) for name in back], ""))
            parts.append((path, part))
        text = assembled(parts, main or "", new_path)
        if main is None:
            text = (
                f'"""{Path(new_path).stem}."""\n' + text.split("\n", 1)[1]
                if text.startswith('""""""')
                else text
            )
        result[new_path] = text
    return result


def wrapped_page(old: str, new: str) -> str:
    """A page whose lines have become too long, wrapped again, paragraph by paragraph."""
    import textwrap

    before = set(old.split("\n"))
    out: list[str] = []
    in_code = False
    lines = new.split("\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.lstrip().startswith("```"):
            in_code = not in_code
        if (
            in_code
            or len(line) <= 100
            or line in before
            or line.lstrip().startswith(("|", "#", "<"))
        ):
            out.append(line)
            at += 1
            continue
        # the rest of the paragraph flows on from the line that is too long
        first = at
        while (
            at + 1 < len(lines)
            and lines[at + 1].strip()
            and not re.match(r"\s*([-*|#]|\d+\.|```)", lines[at + 1])
        ):
            at += 1
        hang = re.match(r"(\s*)([-*] |\d+\. )?", lines[first])
        indent = " " * len(hang[0])
        text = " ".join(each.strip() for each in lines[first : at + 1])
        out += textwrap.wrap(
            text,
            100,
            initial_indent=hang[1],
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        at += 1
    return "\n".join(out)


def run(tree: Path, layout: Layout, tracked: list[str]) -> None:
    texts = {path: (tree / path).read_text(encoding="utf-8") for path in layout.paths}
    result = transformed(texts, layout)
    others = {}
    for path in tracked:
        if path in layout.paths or (tree / path).is_symlink() or not (tree / path).is_file():
            continue
        if Path(path).suffix not in TEXTS and Path(path).name not in {"Makefile", "Dockerfile"}:
            continue
        text = (tree / path).read_text(encoding="utf-8")
        if path.endswith(".patch"):
            continue
        if path.endswith(".py"):
            new = Rewriter(layout, path, path).rewrite(text)
        else:
            new = layout.texts(text)
            if path == "docs/store.md":  # where files are named by their places below broker/store
                new = re.sub(
                    r"`((?:records/)?\w+\.py)`",
                    lambda found: (
                        f"`{layout.home('broker/store/' + found[1]).removeprefix('broker/store/')}`"
                        if f"broker/store/{found[1]}" in layout.paths
                        else found[0]
                    ),
                    new,
                )
            if path.endswith(".md") and new != text:
                new = wrapped_page(text, new)
        if new != text:
            others[path] = new
    for path in layout.paths:
        if path not in result:
            (tree / path).unlink()
    for path, docstring in layout.inits.items():
        result[f"{path}/__init__.py"] = f'"""{docstring}"""\n'
    for path, edits in layout.post.items():
        into = result if path in result else others
        text = into.get(path) or (tree / path).read_text(encoding="utf-8")
        for old, new in edits:
            if old.startswith("re:"):
                text, count = re.subn(old[3:], new, text)
                if not count:
                    print(f"{path}: {old!r} is nowhere")
                continue
            if text.count(old) != 1:
                print(f"{path}: {old!r} is there {text.count(old)} times")
            text = text.replace(old, new)
        into[path] = text
    for path, text in {**result, **others}.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text, encoding="utf-8")


def main() -> None:
    tree = Path(sys.argv[1])
    tracked = subprocess.run(
        ["git", "-C", str(tree), "ls-files"], check=True, capture_output=True, text=True
    ).stdout.split("\n")
    tracked = [path for path in tracked if path]
    paths = [
        p
        for p in tracked
        if p.endswith(".py") and p.split("/")[0] in {"broker", "rmq_spark", "rocketpoll"}
    ]
    table: dict[str, dict] = {
        "move": {},
        "merge": {},
        "split": {},
        "rename": {},
        "packages": {},
        "inits": {},
        "post": {},
    }
    for name in sys.argv[2:]:
        given = json.loads(Path(name).read_text())
        for kind in table:
            table[kind].update(given.get(kind, {}))
    layout = Layout(paths, **table)
    run(tree, layout, tracked)


if __name__ == "__main__":
    main()
