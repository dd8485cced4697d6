"""The command line starts our own broker module, whatever the working directory contains."""

import signal
import subprocess
import sys

import pytest

from rmq_spark.cli.cluster.broker_launcher import broker_command

ROCKETPOLL = [
    sys.executable,
    "-c",
    "import sys; from rmq_spark.cli.main import main; sys.exit(main())",
]


def run(arguments, cwd, **more):
    return subprocess.run(
        [*ROCKETPOLL, "broker", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        **more,
    )


@pytest.fixture
def hostile(tmp_path):
    """Return a directory with other modules of our names."""
    for name in ("broker", "rocketpoll", "start_broker"):
        (tmp_path / f"{name}.py").write_text(
            "raise SystemExit('this is not the broker')\n", encoding="utf-8"
        )
    return tmp_path


def test_broker_command_ignores_stray_modules_in_the_working_directory(hostile):
    done = run(["-p"], hostile)
    assert done.returncode == 0, done.stderr
    assert "listenPort=9876" in done.stdout.splitlines()


def test_broker_command_names_a_module_that_shadows_rocketpoll(hostile, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(hostile / "other"))
    (hostile / "other" / "rocketpoll").mkdir(parents=True)
    (hostile / "other" / "rocketpoll" / "__init__.py").write_text("", encoding="utf-8")
    done = run(["-p"], hostile)
    assert done.returncode == 1
    assert f"finds {hostile / 'other' / 'rocketpoll'}" in done.stderr


def test_broker_command_serves_and_stops_on_sigterm(tmp_path):
    settings = ["listenPort=0", f"storePathRootDir={tmp_path / 'store'}"]
    command = broker_command(settings)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as broker:
        assert "listens on 127.0.0.1:" in broker.stdout.readline()
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(20) == 0
    assert not (tmp_path / "store" / "abort").exists()
