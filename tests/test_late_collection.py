"""Processes that import each test file when its turn comes run the tests that pytest selects."""

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


def run_late(directory, files, *options, deep=""):
    """Run files in one process that collects late; return results, exit code and output."""
    folder = directory / "tests"
    folder.mkdir()
    shutil.copy(TESTS / "conftest.py", folder)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(re.sub(r"^ {8}", "", text, flags=re.MULTILINE))
    markers = "\n    deep: long\n    wide: longer\n    peers: elsewhere"
    (directory / "pytest.ini").write_text(
        f"[pytest]\naddopts = --import-mode=importlib\nmarkers ={markers}\n"
    )
    parallel = ("-n", "1", "--dist", "loadfile", "--late-collection", "-rA", "--tb=no")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *parallel, *options, "tests"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(TESTS), "ROCKETPOLL_DEEP": deep},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    found = re.findall(r"^(PASSED|FAILED|ERROR) (\S+)", ran.stdout, re.MULTILINE)
    return sorted(found), ran.returncode, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("deep", "options", "results"),
    [("", (), QUICK), ("1", ("-m", "deep"), DEEP)],
    ids=["make-test", "make-deep"],
)
def test_late_collection_runs_what_the_run_selects(tmp_path, deep, options, results):
    found, code, output = run_late(tmp_path, FILES, *options, deep=deep)
    assert set(found) == results, output
    assert code == (1 if results is QUICK else 0)


CRASH = """
        import os
        from pathlib import Path

        def test_before():
            pass

        def test_crashes_once():
            mark = Path(__file__ + ".crashed")
            if not mark.exists():
                mark.touch()
                os._exit(1)
        """


@pytest.mark.parametrize("deep", ["", "1"], ids=["make-test", "make-deep"])
def test_crash_of_a_process_fails_its_test_and_another_process_runs_the_rest(tmp_path, deep):
    passes = "def test_passes():\n    pass\n"
    files = {"test_a.py": passes, "test_b.py": CRASH, "test_c.py": passes, "test_d.py": passes}
    crashed = [
        ("FAILED", "tests/test_b.py::test_crashes_once"),
        ("PASSED", "tests/test_b.py::test_before"),
        ("PASSED", "tests/test_b.py::test_before"),
        ("PASSED", "tests/test_b.py::test_crashes_once"),
    ]
    others = [("PASSED", f"tests/test_{name}.py::test_passes") for name in "acd"]
    found, code, output = run_late(tmp_path, files, deep=deep)
    assert (found, code) == (sorted(crashed + others), 1), output


def test_test_that_crashes_two_processes_ends_the_run_with_an_error(tmp_path):
    files = {
        "test_a.py": CRASH.replace("mark.touch()", "pass"),
        "test_b.py": FILES["test_other.py"],
    }
    _, code, output = run_late(tmp_path, files)
    assert "test_a.py::test_crashes_once has crashed two processes" in output
    assert code == pytest.ExitCode.INTERNAL_ERROR, output
