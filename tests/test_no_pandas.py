"""A broker's process never imports pandas; other programs may."""

import importlib.util
import subprocess
import sys

import pytest

from rocketpoll.broker.process.process_setup import block_pandas

LOADED = """
import sys
from rocketpoll.broker.process.process_setup import block_pandas
from rocketpoll.broker.store.bulk import bulk_tools

with block_pandas():
    bulk_tools.start_loading().result()
    import numpy as np
    import pyarrow as pa
    pa.array(np.arange(3)).to_numpy(), pa.array(["a"]), pa.scalar("a")
print("pandas" in sys.modules)
"""


def test_pyarrow_loads_no_pandas_where_it_cannot_be_imported():
    run = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, check=True)
    assert run.stdout.split() == [b"False"]


WHERE_ELSE = """
import sys, threading
from rocketpoll.broker.store.bulk import bulk_tools

class Asked:
    by = []
    def find_spec(self, name, *_):
        if name == "pandas":
            self.by.append(threading.current_thread().name)

sys.meta_path.insert(0, Asked())
bulk_tools.start_loading().result()
import pyarrow as pa
assert bulk_tools.keys_before(pa.array(["u"]), pa.array(["a b"])).tolist() == [0, 3]
print(*Asked.by)
"""


def test_process_that_may_load_pandas_loads_it_in_another_thread():
    run = subprocess.run([sys.executable, "-c", WHERE_ELSE], capture_output=True, check=True)
    assert run.stdout.split() == [b"LoadChunkTools"]


def test_block_pandas_ends_with_its_block():
    finders = list(sys.meta_path)
    with block_pandas():
        if "pandas" not in sys.modules:
            with pytest.raises(ModuleNotFoundError, match="needs no pandas"):
                importlib.util.find_spec("pandas")
        assert importlib.util.find_spec("json") is not None
    assert sys.meta_path == finders
