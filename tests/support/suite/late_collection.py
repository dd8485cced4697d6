"""Collection of each test file by the one process that runs it, when its turn comes.

By default, each process of pytest-xdist collects all tests: five processes import a thousand files,
and each runs a fifth. With ``--late-collection`` an item of a process is a whole file. When it
runs, the process collects the file's tests and runs them; their reports have their own names.
"""

import gc

import pytest

_LATE_TESTS = pytest.StashKey[list]()
"""Stash key for the tests of the file that is running, if it was collected late."""


def selected_tests(session, path):
    """Return all selected tests of a file, in execution order."""
    tests = session.stash.get(_LATE_TESTS, session.items)
    return [test for test in tests if test.path == path]


def is_late(config):
    """Return whether this process collects late: one of several processes that run whole files."""
    return (
        config.getoption("late_collection")
        and hasattr(config, "workerinput")
        and not any("::" in argument for argument in config.args)
    )


class LateFile(pytest.File):
    """A test file that is not imported yet, with a single item."""

    def collect(self):
        item = LateItem.from_parent(self, name=self.name)
        item.add_marker(pytest.mark.timeout(0))  # each test has its own timeout
        yield item


class LateItem(pytest.Item):
    """The item of a file: all its tests."""

    @property
    def nodeid(self):
        return self.parent.nodeid

    def runtest(self, nextitem=None):
        """Run the selected tests; pytest-xdist sees them as one item."""
        items = self.session.items
        place = items.index(self)
        tests = self.session.stash[_LATE_TESTS] = self._collect_tests()
        for number, test in enumerate(tests, 1):
            items[place] = test
            following = tests[number] if number < len(tests) else nextitem
            self.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            if self.session.shouldfail or self.session.shouldstop:
                break
        if not tests:  # tear down what the previous file had set up
            self.session._setupstate.teardown_exact(nextitem)  # pytest has no hook for it
        items[place] = self
        del self.session.stash[_LATE_TESTS]

    def _collect_tests(self):
        file = self.parent
        gc.collect()  # collects garbage of the previous file before the freeze
        gc.disable()
        try:
            module = pytest.Module.from_parent(file.parent, path=file.path)
            tests = list(self.session.genitems(module))
        finally:
            gc.freeze()  # later collections skip the modules
            gc.enable()
        self.config.hook.pytest_collection_modifyitems(
            session=self.session, config=self.config, items=tests
        )
        return tests


class LateCollection:
    """The plugin of a process that collects late; ``turn`` returns the rank of an item's file."""

    def __init__(self, turn):
        self._turn = turn

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path, parent):
        return LateFile.from_parent(parent, path=module_path)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        """Keep files from being deselected; their tests are deselected when the files run."""
        files = [item for item in items if isinstance(item, LateItem)]
        items[:] = [item for item in items if not isinstance(item, LateItem)]
        result = yield
        items += sorted(files, key=self._turn)
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        if not isinstance(item, LateItem):
            return None
        item.runtest(nextitem)
        return True


class CrashReports:
    """The plugin of the main process: a crash counts as the failure of a test, as in other runs.

    pytest-xdist knows only the item, which is the whole file, and ``--last-failed`` would not run
    the tests of a file again if it finds others that failed. Another process runs the file again.
    If that process crashes at the same test, the tests after it cannot run; the whole run then ends
    with an error instead of failed tests.
    """

    def __init__(self):
        self._last_tests = {}
        self._crashed = set()

    def pytest_runtest_logstart(self, nodeid):
        self._last_tests[nodeid.partition("::")[0]] = nodeid

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem, report):
        report.nodeid = self._last_tests.get(crashitem, crashitem)
        if report.nodeid in self._crashed:
            reason = f"{report.nodeid} has crashed two processes: correct or skip it"
            pytest.exit(reason, pytest.ExitCode.INTERNAL_ERROR)
        self._crashed.add(report.nodeid)
