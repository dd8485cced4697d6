"""Processes that import each test file when its turn comes run the tests that pytest selects."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FILES = {
    "test_several.py": """
        import pytest
        from support.suite.late_collection import selected_tests

        @pytest.fixture(scope="module")
        def shared(request):
            names = [test.name for test in selected_tests(request.session, request.path)]
            assert names[:4] == [*(f"test_passes[{number}]" for number in range(3)), "test_fails"]
            yield []

        @pytest.mark.parametrize("number", range(3))
        def test_passes(shared, number):
            shared.append(number)
            assert shared == list(range(number + 1))

        def test_fails():
            assert not "a fault"

        @pytest.mark.deep
        def test_deep():
            pass

        def test_ends():
            pass
        """,
    "test_broken.py": "import there_is_no_such_module\n",
    "test_all_deep.py": """
        import pytest

        pytestmark = pytest.mark.deep

        def test_too_deep():
            pass
        """,
    "one/a/test_first.py": "def test_first():\n    pass\n",
    "one/b/test_nothing.py": "import pytest\n\n@pytest.mark.wide\ndef test_wide():\n    pass\n",
    "test_other.py": "def test_other():\n    pass\n",
}
QUICK = {
    ("PASSED", "tests/test_several.py::test_passes[0]"),
    ("PASSED", "tests/test_several.py::test_passes[1]"),
    ("PASSED", "tests/test_several.py::test_passes[2]"),
    ("FAILED", "tests/test_several.py::test_fails"),
    ("PASSED", "tests/test_several.py::test_ends"),
    ("ERROR", "tests/test_broken.py"),
    ("PASSED", "tests/one/a/test_first.py::test_first"),
    ("PASSED", "tests/test_other.py::test_other"),
}
DEEP = {
    ("PASSED", "tests/test_several.py::test_deep"),
    ("PASSED", "tests/test_all_deep.py::test_too_deep"),
}


@pytest.mark.parametrize(
    ("deep", "options", "results"),
    [("", (), QUICK), ("1", ("-m", "deep"), DEEP)],
    ids=["make-test", "make-deep"],
)
def test_late_collection_runs_what_the_run_selects(tmp_path, deep, options, results):
    folder = tmp_path / "tests"
    folder.mkdir()
    shutil.copy(TESTS / "conftest.py", folder)
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(re.sub(r"^ {8}", "", text, flags=re.MULTILINE))
    markers = "\n    deep: long\n    wide: longer\n    peers: elsewhere"
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\naddopts = --import-mode=importlib\nmarkers ={markers}\n"
    )
    parallel = ("-n", "1", "--dist", "loadfile", "--late-collection", "-rA", "--tb=no")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *parallel, *options, "tests"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TESTS), "ROCKETPOLL_DEEP": deep},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(r"^(PASSED|FAILED|ERROR) (\S+)", ran.stdout, re.MULTILINE)
    assert set(found) == results, ran.stdout + ran.stderr
    assert ran.returncode == (1 if results is QUICK else 0)
