"""The demo command: refused arguments, missing dependencies, signals, and a shutdown without
leftovers."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support.suite.selection import spread

from rmq_spark.cli.demo import command
from rmq_spark.cli.demo.display import DemoBatch, DemoFigures
from rmq_spark.cli.main import main


@pytest.mark.parametrize(
    "given",
    [["--rate", "0"], ["--seconds", "-1"], ["--bytes", "x"], ["--fast"], ["--picture", "/"]],
)
def test_demo_refuses_likely_argument_mistakes(given, capsys):
    assert main(["demo", *given]) == 2
    assert "See rocketpoll demo --help" in capsys.readouterr().err


def test_demo_without_java_says_how_to_install_it(monkeypatch, tmp_path, capfd):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["demo"]) == 1
    assert (
        "there is no java on PATH. Spark 4 needs Java 17 or 21. On Debian" in capfd.readouterr().err
    )


def test_demo_without_pyspark_says_how_to_install_it(pyspark_that_is_missing, capfd):
    assert main(["demo"]) == 1
    assert f"{sys.executable} -m pip install '{pyspark_that_is_missing}'" in capfd.readouterr().err


def test_demo_without_spark_reads_all_it_sends(tmp_path, capfd):
    picture = tmp_path / "demo.svg"
    given = ["--no-spark", "--seconds", "1", "--rate", "500", "--picture", str(picture)]
    assert main(["demo", *given]) == 0
    said = capfd.readouterr()
    assert "batch 0: " in said.out
    assert "every one of them once" in said.out
    assert said.err == ""
    assert "every" in picture.read_text(encoding="utf-8")


def test_demo_with_no_spark_imports_no_heavy_modules():
    program = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "from rmq_spark.cli.main import main\n"
        "code = main(['demo', '--no-spark', '--seconds', '0.5', '--rate', '100'])\n"
        "heavy = {'numpy', 'pandas', 'pyarrow', 'pyspark', 'rich', 'asyncio'}\n"
        "print(code, *sorted(heavy & (set(sys.modules) - before)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stderr == "0\n"
    assert "every one of them once" in done.stdout


def test_demo_ends_quietly_when_its_output_pipe_closes():
    command = (
        f"{sys.executable} -m rocketpoll demo --no-spark --seconds 60 --rate 100 | head -n 1; "
        "exit 0"
    )
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("the broker is listening; starting a consumer\n", "")


@pytest.mark.parametrize("number", spread(2, [signal.SIGINT, signal.SIGHUP, signal.SIGTERM]))
def test_signal_stops_the_demo_and_leaves_nothing(tmp_path, number):
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "rocketpoll", "demo", "--no-spark", "--seconds", "60"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert "the broker is listening" in process.stdout.readline()
            assert list(tmp_path.iterdir()) != []
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert err == ""
    # If the signal comes while code runs by exec, as for a dataclass, `python -m` ends by SIGINT
    # whatever its exit code; a shell reports both as 130.
    assert process.returncode in {130, -signal.SIGINT}
    assert out.endswith("interrupted: all parts are stopped\n")
    assert list(tmp_path.iterdir()) == []


def test_demo_picture_that_cannot_be_saved_is_reported(tmp_path, capfd):
    given = ["--no-spark", "--seconds", "0.5", "--rate", "500"]
    assert main(["demo", *given, "--picture", str(tmp_path / "no" / "demo.svg")]) == 1
    assert "No such file or directory" in capfd.readouterr().err


def test_demo_waits_until_its_backlog_is_read():
    figures, shown = DemoFigures(1.0, sent=3), []

    def show():
        figures.batches.append(DemoBatch(1, 0.0, 0.1, 0.1, 0.1))
        shown.append(figures.read)

    reader = SimpleNamespace(finish=lambda: None, fault=lambda: None)
    parts = command._DemoParts("", SimpleNamespace(fault=None), reader, figures, None)
    command._wait_until_read(parts, show)
    assert shown == [1, 2, 3]
