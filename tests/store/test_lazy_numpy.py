"""numpy is loaded with the first array."""

import subprocess
import sys

import numpy

from rocketpoll.broker.store.bulk import lazy_numpy

FIRST_USE = """
import sys
from rocketpoll.broker.store.bulk import lazy_numpy as np
assert "numpy" not in sys.modules
assert np.array([1, 2]).sum() == 3
assert "array" in vars(np)
"""


def test_numpy_is_loaded_with_the_first_array():
    subprocess.run([sys.executable, "-c", FIRST_USE], check=True)


def test_lazy_numpy_exposes_numpy_only():
    lazy_numpy.load_numpy()
    assert lazy_numpy.int64 is numpy.int64
    assert not hasattr(lazy_numpy, "no_such_tool")
    assert not hasattr(lazy_numpy, "__path__")
