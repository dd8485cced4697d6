"""Tests that are coroutine functions: a decorator runs each with the part that it tests.

on_broker = run_by(tell)

@on_broker(maxHolds=3)
async def test_held_pulls_are_limited(broker): ...
"""

import functools
import inspect


def run_by(play, given=1):
    """Return a decorator of tests that are coroutine functions, which ``play`` runs.

    ``play`` calls the test with its first ``given`` parameters; all others are fixtures. It gets
    the test's directory, if it has a parameter ``root``, and what the decorator is called with.
    """
    root = ["tmp_path"] if "root" in inspect.signature(play).parameters else []

    def with_settings(test=None, /, **settings):
        def decorate(test):
            names = list(inspect.signature(test).parameters)[given:]
            signature = inspect.Signature(
                inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
                for name in dict.fromkeys([*root, *names])
            )

            @functools.wraps(test)
            def run_test(*args, **kwargs):
                fixtures = signature.bind(*args, **kwargs).arguments
                story = functools.partial(test, **{name: fixtures[name] for name in names})
                play(story, *(fixtures[name] for name in root), **settings)

            run_test.__signature__ = signature
            return run_test

        return decorate if test is None else decorate(test)

    return with_settings
