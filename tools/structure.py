"""Prints the structure of the product: ``python tools/structure.py [--rooms | --tests]``.

One line for each package: its modules and lines; its rooms (its direct modules and sub-packages)
and their import levels; how many modules have a single importer; and the median size. Then import
cycles, and class names that occur more than once. Imports for types and imports inside functions
count.

``--tests`` prints the files and lines of each directory of tests instead, how often they read a
private name of the product (``x._name``, or its import) and how often they replace an attribute
with ``setattr`` of a monkeypatch; ``--tests PATH ...`` prints the places below these paths.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SIDES = ("rmq_spark", "broker", "rocketpoll")
PACKAGES = ("broker/store", "broker/processor", "broker/server", "broker/state", "broker",
            "rmq_spark/wire", "rmq_spark/client", "rmq_spark/client/consumer", "rmq_spark/spark",
            "rmq_spark/cli", "rmq_spark")  # fmt: skip


def module_of(path: Path) -> str:
    """Return the name under which a module is imported."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] == "broker":
        parts.insert(0, "rocketpoll")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def imports_of(tree: ast.Module, module: str, packages: set[str], modules: set[str]) -> set[str]:
    """Return the product's modules that a module imports, anywhere in its code."""
    found = set()
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if module in packages else module.split(".")[:-1]
                package = package[: len(package) - node.level + 1]
                base = ".".join([*package, base] if base else package)
            names = [f"{base}.{alias.name}" for alias in node.names]
            names = [name if name in modules else base for name in names]
        found |= {name for name in names if name in modules and name != module}
    return found


def components(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected parts of a graph, dependencies first (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            found.append(stack[at:])
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def levels_of(graph: dict[str, set[str]]) -> dict[str, int]:
    """Return the level of each module: one above the highest that it imports; cycles share one."""
    level: dict[str, int] = {}
    for part in components(graph):
        below = [level[other] for node in part for other in graph[node] if other not in part]
        level.update(dict.fromkeys(part, max(below, default=0) + 1))
    return level


def room_of(module: str, prefix: str) -> str:
    """Return the direct module or sub-package of a package to which a module belongs."""
    return module.removeprefix(prefix)[1:].split(".")[0]


def rooms_of(graph: dict[str, set[str]], prefix: str) -> dict[str, set[str]]:
    """Return which direct modules and sub-packages of a package import which others."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for module, others in graph.items():
        room = room_of(module, prefix)
        rooms[room] |= {room_of(other, prefix) for other in others} - {room}
    for others in list(rooms.values()):
        for other in others:
            rooms[other] |= set()
    return dict(rooms)


class Product:
    """All modules of the product: their sources and importers."""

    def __init__(self, root: Path) -> None:
        """Read every module below a root."""
        paths = {
            module_of(path): path for side in SIDES for path in sorted((root / side).rglob("*.py"))
        }
        self.packages = {name for name, path in paths.items() if path.name == "__init__.py"}
        sources = {module: path.read_text(encoding="utf-8") for module, path in paths.items()}
        self.lines = {module: source.count("\n") for module, source in sources.items()}
        self.trees = {module: ast.parse(source) for module, source in sources.items()}
        self.imports = {
            module: imports_of(tree, module, self.packages, set(paths))
            for module, tree in self.trees.items()
        }
        self.importers: dict[str, set[str]] = defaultdict(set)
        for module, others in self.imports.items():
            for other in others:
                self.importers[other].add(module)

    def imports_within(self, prefix: str) -> dict[str, set[str]]:
        """Return the modules of a package, each with those of the same package that it imports."""
        own = {
            module
            for module in self.lines
            if module.startswith(f"{prefix}.") and module not in self.packages
        }
        return {module: self.imports[module] & own for module in own}


ROW = "{:28} {:>7} {:>7} {:>7} {:>7} {:>14} {:>13}"
HEADINGS = ("package", "modules", "lines", "rooms", "levels", "one importer", "median lines")


def show_package(product: Product, name: str) -> None:
    """Print one line about a package, and its rooms that import each other."""
    prefix = module_of(ROOT / name / "__init__.py")
    graph = product.imports_within(prefix)
    rooms = rooms_of(graph, prefix)
    level = levels_of(rooms)
    sizes = [product.lines[module] for module in graph]
    single = sum(len(product.importers[module]) == 1 for module in graph)
    median = round(statistics.median(sizes))
    print(ROW.format(name, len(graph), sum(sizes), len(rooms), max(level.values()), single, median))
    for circle in components(rooms):
        if len(circle) > 1:
            print(f"    rooms that import each other: {', '.join(sorted(circle))}")
    if "--rooms" in sys.argv:
        for room in sorted(rooms, key=lambda each: (level[each], each)):
            print(f"    {level[room]:2} {room}")


TESTS = ROOT / "tests"
NOT_PRIVATE = {"_asdict", "_exit", "_field_defaults", "_fields", "_make", "_replace", "_repr_html_"}
"""Names of named tuples, IPython and `os` that are public in spite of their underscore."""


def is_private(name: str) -> bool:
    """Return whether a name is private by convention."""
    return name.startswith("_") and not name.startswith("__") and name not in NOT_PRIVATE


def names_made_by(tree: ast.Module) -> set[str]:
    """Return the names that a module defines, and the attributes that its classes set."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names.add(name)
    return names


def private_reads(tree: ast.Module, private: set[str]) -> list[tuple[int, str]]:
    """Return the lines and texts at which a file of tests reads private names of the product."""
    found = []
    foreign = private - names_made_by(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr=name) if name in foreign:
                found.append((node.lineno, ast.unparse(node)))
            case ast.ImportFrom(module=str(module), names=names):
                if module.partition(".")[0] in SIDES:
                    texts = [f"{module}.{each.name}" for each in names if is_private(each.name)]
                    found += [(node.lineno, text) for text in texts]
    return found


def patches_in(tree: ast.Module) -> list[tuple[int, str]]:
    """Return the lines and texts at which a file of tests replaces an attribute."""
    return [
        (node.lineno, ast.unparse(node))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in {"setattr", "delattr"}
    ]


def show_tests(product: Product, below: list[str]) -> None:
    """Print how large the tests are and how they use private names; below paths, each place."""
    private = {
        name for tree in product.trees.values() for name in names_made_by(tree) if is_private(name)
    }
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(TESTS.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        places = {"reads": private_reads(tree, private), "patches": patches_in(tree)}
        parts = path.relative_to(TESTS).parts
        for room in (parts[0] if len(parts) > 1 else "*.py", "all"):
            counts[room].update({kind: len(each) for kind, each in places.items()})
            counts[room].update(files=1, lines=source.count("\n"))
        if any(path.is_relative_to(Path(each).resolve()) for each in below):
            for kind, each in places.items():
                for line, text in sorted(each):
                    print(f"{path.relative_to(ROOT)}:{line}: {kind}: {text}")
    if not below:
        row = "{:14} {:>6} {:>8} {:>14} {:>13}"
        print(row.format("tests", "files", "lines", "private reads", "monkeypatches"))
        for room, each in sorted(counts.items(), key=lambda item: item[1]["lines"]):
            print(
                row.format(room, *(each[kind] for kind in ("files", "lines", "reads", "patches")))
            )


def main() -> None:
    """Print the figures."""
    sys.setrecursionlimit(10_000)
    if "--tests" in sys.argv:
        show_tests(Product(ROOT), sys.argv[2:])
        return
    product = Product(ROOT)
    print(ROW.format(*HEADINGS))
    for name in PACKAGES:
        show_package(product, name)
    print(f"\nall: {len(product.lines)} modules, {sum(product.lines.values()):,} lines")
    circles = [part for part in components(product.imports) if len(part) > 1]
    print(f"import circles: {len(circles)}")
    for part in circles:
        print("    " + ", ".join(sorted(part)))
    classes = Counter(
        node.name
        for tree in product.trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    twice = sorted(f"{name} {count}" for name, count in classes.items() if count > 1)
    print(f"class names that occur more than once: {len(twice)}")
    print("    " + ", ".join(twice))


if __name__ == "__main__":
    main()
