"""Receive buffers are allocated without numpy and without zeroing."""

import subprocess
import sys

import pytest

from rmq_spark.client.transport.connection import uninitialized_buffer

_LOADED = """
import sys
from rmq_spark.client.transport.connection import uninitialized_buffer
assert len(uninitialized_buffer(9)) == 9
assert "numpy" not in sys.modules
"""


@pytest.mark.parametrize("size", [1, 9, 8 << 20])
def test_uninitialized_buffer_is_writable(size):
    memory = uninitialized_buffer(size)
    assert (len(memory), memory.format, memory.readonly) == (size, "B", False)
    memory[:] = b"\x05" * size
    assert bytes(memory) == b"\x05" * size


def test_uninitialized_buffer_does_not_load_numpy():
    subprocess.run([sys.executable, "-c", _LOADED], check=True)


def test_uninitialized_buffer_is_created_while_numpy_loads(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", object())
    assert bytes(uninitialized_buffer(3)) == bytes(3)
