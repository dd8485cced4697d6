"""The committed test vectors match the output of RocketMQ's own classes on this machine."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from support.rocketmq import java_vectors

from rmq_spark.wire.codes import MessageSysFlag

pytestmark = pytest.mark.interop

COMMITTED = Path(java_vectors.__file__).parent / "vectors"
COMPRESSED = MessageSysFlag.COMPRESSED
BY_ZLIB = {COMPRESSED, COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB}


@pytest.mark.wide
def test_java_writes_vectors_equal_to_the_committed_ones(java, tmp_path):
    java.write(tmp_path)
    committed = COMMITTED / java.version
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in committed.iterdir()}
    for file in committed.iterdir():
        again = tmp_path / file.name
        # zlib belongs to the JDK or the system: another release may compress to other bytes. All
        # other bytes are RocketMQ's, and must be equal.
        if again.read_bytes() != file.read_bytes():
            kind = file.stem
            assert kind in {"compressed", "records"}
            assert [beneath_zlib(kind, each) for each in lines_of(again)] == [
                beneath_zlib(kind, each) for each in lines_of(file)
            ]


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="ascii").splitlines()]


def beneath_zlib(kind: str, vector: dict[str, Any]) -> dict[str, Any]:
    """Return a vector's content, decompressed, because releases of zlib compress differently."""
    if kind == "compressed":
        if vector["type"] != "ZLIB":
            return vector
        return {**vector, "compressed": zlib.decompress(bytes.fromhex(vector["compressed"])).hex()}
    fields = vector["fields"]
    if fields["sysFlag"] & (COMPRESSED | MessageSysFlag.COMPRESSION_MASK) not in BY_ZLIB:
        return vector
    of_the_bytes = {"totalSize", "bodyCrc", "body"}
    return {name: value for name, value in fields.items() if name not in of_the_bytes}
