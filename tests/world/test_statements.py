"""A function is called before each statement of loaded functions, and afterwards never again."""

import importlib
import sys

import pytest
from world.statements import interrupted

MODULE = """
import contextlib

@contextlib.contextmanager
def decorated():
    yield 1

class Counter:
    def __init__(self):
        self.value = 0

    def up(self):
        def again(times):
            for _ in range(times):
                self.value += 1
        again(2)
        return self.value

def fails():
    try:
        raise ValueError
    except ValueError as error:
        return error.__traceback__.tb_lineno

after = lambda: Counter().up()
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "of_this_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("of_this_test")
    del sys.modules["of_this_test"]


@pytest.mark.parametrize(
    ("call", "statements"),
    [
        (lambda module: module.Counter().up(), 1 + 3 + 1 + 2),
        (lambda module: module.after(), 1 + 3 + 1 + 2),
        (lambda module: module.decorated().__enter__(), 1),
        (lambda module: module.fails(), 3),
    ],
    ids=["a-method-and-what-is-in-it", "by-way-of-a-lambda", "decorated", "behind-an-exception"],
)
def test_interrupted_calls_before_each_statement_until_its_end(module, call, statements):
    called, before = [], call(module)
    with interrupted("of_this_test", lambda: called.append(1)):
        assert call(module) == before
    assert len(called) == statements
    assert call(module) == before
    assert len(called) == statements


def test_interrupted_functions_keep_their_line_numbers(module):
    with interrupted("of_this_test", lambda: None):
        assert module.fails() == MODULE.splitlines().index("        raise ValueError") + 1


def test_interrupted_leaves_modules_of_other_paths_unchanged(module):
    code = module.fails.__code__
    with interrupted("of_another", lambda: None):
        assert module.fails.__code__ is code
