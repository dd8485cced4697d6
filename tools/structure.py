"""Prints how the product is built: python tools/structure.py [--rooms]

One line a package: modules, import levels, modules with a single importer, median lines. Then import
circles and class names that occur more than once. Imports for types and inside functions count.
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


def imports_of(tree: ast.Module, module: str, is_package: bool, modules: set[str]) -> set[str]:
    """Return the modules of ours that one imports, wherever in it."""
    found = set()
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                package = package[: len(package) - node.level + 1]
                base = ".".join([*package, base] if base else package)
            names = [f"{base}.{alias.name}" for alias in node.names]
            names = [name if name in modules else base for name in names]
        found |= {name for name in names if name in modules and name != module}
    return found


def components(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected parts of a graph, those first that others need (Tarjan)."""
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
    """Return the level of each module: one above the highest that it imports; circles share one."""
    level: dict[str, int] = {}
    for part in components(graph):
        below = [level[other] for node in part for other in graph[node] if other not in part]
        level.update(dict.fromkeys(part, max(below, default=0) + 1))
    return level


def room_of(module: str, prefix: str) -> str:
    """Return the module or sub-package right below a package to which a module belongs."""
    return module.removeprefix(prefix)[1:].split(".")[0]


def rooms_of(graph: dict[str, set[str]], prefix: str) -> dict[str, set[str]]:
    """Return which modules and sub-packages right below a package import which others."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for module, others in graph.items():
        room = room_of(module, prefix)
        rooms[room] |= {room_of(other, prefix) for other in others} - {room}
    for others in list(rooms.values()):
        for other in others:
            rooms[other] |= set()
    return dict(rooms)


def main() -> None:
    """Print the figures."""
    sys.setrecursionlimit(10_000)
    paths = {
        module_of(path): path for side in SIDES for path in sorted((ROOT / side).rglob("*.py"))
    }
    trees = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in paths.items()}
    lines = {module: path.read_text(encoding="utf-8").count("\n") for module, path in paths.items()}
    names = set(paths)
    imports = {
        module: imports_of(tree, module, paths[module].name == "__init__.py", names)
        for module, tree in trees.items()
    }
    importers: dict[str, set[str]] = defaultdict(set)
    for module, others in imports.items():
        for other in others:
            importers[other].add(module)
    row = "{:28} {:>7} {:>7} {:>6} {:>7} {:>15} {:>13}"
    print(row.format("package", "modules", "lines", "rooms", "levels", "single importer",
                     "median lines"))  # fmt: skip
    shown: list[str] = []
    for name in PACKAGES:
        prefix = module_of(ROOT / name / "__init__.py")
        own = {
            module for module in names if module.startswith(f"{prefix}.")
            and paths[module].name != "__init__.py"
        }  # fmt: skip
        graph = {module: imports[module] & own for module in own}
        single = [module for module in own if len(importers[module]) == 1]
        sizes = [lines[module] for module in own]
        rooms = rooms_of(graph, prefix)
        level = levels_of(rooms)
        print(row.format(name, len(own), sum(sizes), len(rooms), max(level.values()), len(single),
                         round(statistics.median(sizes))))  # fmt: skip
        for part in components(rooms):
            if len(part) > 1:
                print(f"    rooms that import each other: {', '.join(sorted(part))}")
                for room in sorted(part):
                    for module in sorted(own):
                        if room_of(module, prefix) == room:
                            for other in sorted(graph[module]):
                                if (
                                    room_of(other, prefix) in part
                                    and room_of(other, prefix) != room
                                ):
                                    shown.append(f"        {module} -> {other}")
        if f"--{name}" in sys.argv:
            print("\n".join(shown))
            for room in sorted(rooms, key=lambda each: (level[each], each)):
                print(f"    {level[room]:2} {room}")
        shown.clear()
    print(f"\nall: {len(names)} modules, {sum(lines.values()):,} lines")
    circles = [part for part in components(imports) if len(part) > 1]
    print(f"import circles: {len(circles)}")
    for part in circles:
        print("    " + ", ".join(sorted(part)))
    classes = Counter(
        node.name for tree in trees.values() for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )  # fmt: skip
    twice = {name: count for name, count in classes.items() if count > 1}
    print(f"class names that occur more than once: {len(twice)}")
    print("    " + ", ".join(f"{name} {count}" for name, count in sorted(twice.items())))


if __name__ == "__main__":
    main()
