"""Objects bound to a process are recreated in a forked child, and are not pickled."""

import gc
import os
import pickle

import pytest

from rmq_spark.client.concurrency.fork_hooks import ForkAware


class Bound(ForkAware):
    """Records the processes in which its fork hook ran."""

    def __init__(self):
        self.told = []
        super().__init__()

    def _after_fork(self):
        self.told.append(os.getpid())


def seen_in_a_child(action):
    """Return the result of an action in a child process, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, repr(action()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def test_process_bound_after_fork_runs_once_and_only_in_the_child():
    bound = [Bound() for _ in range(3)]
    assert (
        seen_in_a_child(lambda: [each.told == [os.getpid()] for each in bound])
        == "[True, True, True]"
    )
    assert [each.told for each in bound] == [[], [], []]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_failing_after_fork_does_not_block_others():
    class HalfMade(Bound):
        def _after_fork(self):
            raise AttributeError("made by a thread that is not here")

    half_made, bound = HalfMade(), Bound()
    assert seen_in_a_child(lambda: bound.told == [os.getpid()]) == "True"
    del half_made


def test_collected_objects_have_no_after_fork():
    told = []

    class Gone(Bound):
        def _after_fork(self):
            told.append(self)

    Gone()
    gc.collect()
    assert seen_in_a_child(lambda: len(told)) == "0"


def test_process_bound_object_cannot_be_pickled():
    with pytest.raises(TypeError, match=r"a Bound has threads and connections.*: make one there"):
        pickle.dumps(Bound())
