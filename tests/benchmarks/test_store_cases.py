"""Every case of the store benchmark runs; speed is not checked."""

import pytest

from benchmarks.harness import check_peers
from benchmarks.store import store_cases
from benchmarks.store.workspace import Workspace, copy_sparse

SMALL = {"messages": 2_000, "log_bytes": 500_000, "chunk_bytes": 20_000}
NAMES = [case.name for case in store_cases(None, **SMALL)]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    with Workspace(tmp_path_factory.mktemp("store")) as workspace:
        yield {case.name: case for case in store_cases(workspace, **SMALL)}


@pytest.mark.wide
@pytest.mark.parametrize("name", NAMES)
def test_store_benchmark_case_can_be_prepared_and_run_repeatedly(cases, name):
    for _ in range(2):
        cases[name].prepare()
        cases[name].run()


def test_store_benchmark_peers_exist_and_case_names_are_unique(cases):
    check_peers(list(cases.values()))


def test_workspace_of_a_benchmark_case_is_emptied_before_the_next(tmp_path):
    closed = []

    class Open:
        def shutdown(self):
            closed.append(self)

    with Workspace(tmp_path) as workspace:
        left = workspace.fresh() / "left"
        left.touch()
        workspace.closing(Open())
        workspace.fresh()
        assert len(closed) == 1
        assert not left.exists()
        assert workspace.kept("log", lambda path: path) == workspace.kept("log", lambda _: None)
        workspace.mark_unflushed(Open())
    assert len(closed) == 2


def test_copied_store_has_the_same_bytes_and_holes(tmp_path):
    (tmp_path / "old").mkdir()
    with (tmp_path / "old" / "file").open("wb") as file:
        file.truncate(32 << 20)
        file.seek(16 << 20)
        file.write(b"in the middle")
    copy_sparse(tmp_path / "old", tmp_path / "new")
    copied = tmp_path / "new" / "file"
    assert copied.read_bytes() == (tmp_path / "old" / "file").read_bytes()
    assert copied.stat().st_blocks == (tmp_path / "old" / "file").stat().st_blocks
