"""Proof files: limited in number, removed with their connections, and harmless for the store."""

import errno
import os
from pathlib import Path

import pytest
from support.stores.small_store import bodies, crash, message, open_store

from rmq_spark.wire.message.hosts import parse_host
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.proof_files import PROOFS_MAX, ProofFiles

NONCE = "0" * 32
ENDS = parse_host("127.0.0.1:9876"), parse_host("127.0.0.1:5")


def proofs_in(root):
    return sorted(path.name for path in Path(root).glob("proof*"))


def test_proof_files_are_bounded_in_number(tmp_path):
    store = open_store(tmp_path)
    places = [store.proof_files.write(client, NONCE, *ENDS) for client in range(PROOFS_MAX + 3)]
    assert [place is None for place in places] == [False] * PROOFS_MAX + [True] * 3
    assert len(proofs_in(tmp_path)) == PROOFS_MAX
    store.proof_files.discard(0)
    assert store.proof_files.write("another", NONCE, *ENDS) is not None
    store.shutdown()
    assert proofs_in(tmp_path) == []


def test_proof_files_that_a_crash_has_left_are_deleted_at_the_next_start(tmp_path):
    store = open_store(tmp_path)
    store.put_message(message("a"))
    store.proof_files.write("client", NONCE, *ENDS)
    crash(store)
    assert proofs_in(tmp_path) == ["proof.0"]
    store = open_store(tmp_path)
    assert proofs_in(tmp_path) == []
    assert bodies(store) == ["a"]
    store.shutdown()


def test_proof_files_are_not_written_after_a_shutdown(tmp_path):
    """Another broker may own the directory by then."""
    store = open_store(tmp_path)
    store.proof_files.write("client", NONCE, *ENDS)
    store.shutdown()
    (tmp_path / "proof.0").write_text("another broker's")
    store.proof_files.discard("client")
    assert store.proof_files.write("client", NONCE, *ENDS) is None
    assert proofs_in(tmp_path) == ["proof.0"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EMFILE])
@pytest.mark.parametrize("operation", ["create", "delete"])
def test_disk_error_at_a_proof_file_only_disables_proof_files(tmp_path, caplog, code, operation):
    class Refusing(LocalDisk):
        refuses = False

        def create(self, path, size):
            self._refuse("create", path)
            return super().create(path, size)

        def delete(self, path):
            self._refuse("delete", path)
            super().delete(path)

        def _refuse(self, what, path):
            if self.refuses and what == operation and path.name.startswith("proof"):
                raise OSError(code, os.strerror(code), str(path))

    disk = Refusing()
    store = open_store(tmp_path, disk=disk)
    disk.refuses = True
    for client in range(3):
        assert store.proof_files.write(client, NONCE, *ENDS) is None
    assert len([each for each in caplog.messages if "proof files" in each]) == 1
    disk.refuses = False
    assert store.proof_files.write("client", NONCE, *ENDS) is not None
    store.put_message(message("a"))
    assert bodies(store) == ["a"]
    store.shutdown()


def test_proof_is_not_written_for_a_log_elsewhere(tmp_path):
    class Elsewhere:
        directory = tmp_path / "other" / "commitlog"
        file_size = 1 << 20

    proofs = ProofFiles(LocalDisk(), tmp_path / "store", Elsewhere)
    assert proofs.write("client", NONCE, *ENDS) is None


def test_proof_is_not_written_at_a_path_that_is_not_utf_8(tmp_path):
    """The bytes of a path may have any encoding, but a response is UTF-8."""
    root = tmp_path / os.fsdecode(b"gr\xf6sse")

    class Files:
        directory = root / "commitlog"
        file_size = 1 << 20

    assert ProofFiles(LocalDisk(), root, Files).write("client", NONCE, *ENDS) is None
