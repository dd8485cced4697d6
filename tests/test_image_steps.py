"""The Dockerfile's steps as `make image` runs them: its stages, and its files from the tree."""

import subprocess
import sys

import pytest
from support.programs import image_steps
from support.programs.fresh_debian import CLONE, CommandFailed
from support.programs.image_steps import Stage, build, context, image_of, stages

HERE = image_steps.DOCKERFILE.read_text(encoding="utf-8")


def test_dockerfile_stages_are_parsed_and_the_last_one_is_the_image():
    first, last = stages(HERE)
    assert (first.name, [word for word, _ in first.steps]) == ("build", ["COPY", "RUN"])
    image = image_of(last)
    assert (image["user"], image["volume"]) == ("10001", "/var/lib/rocketpoll")
    assert image["entrypoint"][:2] == ["rocketpoll", "broker"]
    assert image["healthcheck"][:2] == ["python", "-c"]


def test_dockerfile_step_copies_or_runs_and_unknown_steps_fail(tmp_path):
    earlier, root, ran = tmp_path / "earlier", tmp_path / "root", []
    (earlier / "opt").mkdir(parents=True)
    (earlier / "opt" / "made").write_text("x", encoding="utf-8")
    stage = Stage("1", [("COPY", "--from=build /opt /srv/opt"), ("RUN", "useradd x")])
    build(stage, root, {"build": earlier}, ran.append)
    assert (root / "srv" / "opt" / "made").read_text(encoding="utf-8") == "x"
    assert ran == ["useradd x"]
    with pytest.raises(CommandFailed, match="ADD x /: this does not know how"):
        build(Stage("1", [("ADD", "x /")]), root, {}, ran.append)


@pytest.mark.deep
def test_image_build_context_is_enough_to_install(tmp_path):
    given = context(CLONE, image_steps.IGNORED.read_text(encoding="utf-8"), tmp_path / "given")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*pip, "-w", tmp_path / "wheel", given], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2_000:]
