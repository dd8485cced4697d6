"""Calls a function before each statement of loaded modules.

    with interrupted("rmq_spark/client/", call):     a thread may be interrupted anywhere in there

The code of each function is compiled again, with ``if __interrupted__: __interrupted__()`` before
every statement, and replaces the original. It stays there, because the check costs next to nothing
while no function is set. (A trace function would be called for each line and each call in all
threads, and cost more than the code that it watches.)
"""

import ast
import builtins
import contextlib
import gc
import re
import sys
from pathlib import Path
from types import CodeType, FunctionType

_NAME = "__interrupted__"
_BODIES = ("body", "orelse", "finalbody")
_made_over = set()
"""Files whose functions have been changed."""


@contextlib.contextmanager
def interrupted(paths, call):
    """Call a function before each statement of functions in modules whose paths match."""
    setattr(builtins, _NAME, None)
    _make_over({path for path in _paths_loaded() if re.search(paths, path)} - _made_over)
    setattr(builtins, _NAME, call)
    try:
        yield
    finally:
        setattr(builtins, _NAME, None)


def _paths_loaded():
    paths = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return [path for path in paths if path and path.endswith(".py")]


def _make_over(paths):
    """Replace the code of all functions of these files."""
    _made_over.update(paths)
    new = {}
    for path in paths:
        tree = _with_checks(ast.parse(Path(path).read_bytes(), path))
        new[path] = _codes(compile(tree, path, "exec", dont_inherit=True))
    if new:
        gc.unfreeze()  # frozen objects would not be found
        for function in gc.get_objects():
            if type(function) is FunctionType:
                code = function.__code__
                mine = new.get(code.co_filename, {}).get((code.co_name, code.co_firstlineno))
                function.__code__ = mine or code


def _codes(code):
    """Return all code objects within a code object, by name and first line."""
    codes = {}
    for within in code.co_consts:
        if isinstance(within, CodeType):
            if not within.co_name.startswith("<"):  # such as lambdas: a line may have several
                codes[within.co_name, within.co_firstlineno] = within
            codes |= _codes(within)
    return codes


def _with_checks(node, is_function=False):
    """Return a syntax tree with the check before each statement of its functions."""
    is_function |= isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    for name in _BODIES:
        statements = [_with_checks(each, is_function) for each in getattr(node, name, ())]
        if is_function:
            pairs = ((_check_at(each), each) for each in statements)
            statements = [each for pair in pairs for each in pair]
        if statements:
            setattr(node, name, statements)
    for within in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        _with_checks(within, is_function)
    return node


def _check_at(statement):
    """Return the check, on the line of a statement."""
    at = {"lineno": statement.lineno, "col_offset": statement.col_offset}
    called = ast.Name(_NAME, ast.Load(), **at)
    call = ast.Expr(ast.Call(called, [], [], **at), **at)
    return ast.If(ast.Name(_NAME, ast.Load(), **at), [call], [], **at)
