"""Settings for every test.

Hypothesis knows no deadline, as machines that run CI are slow now and then. A shell has what it starts in the
background ignore Ctrl-C, and so would all programs that tests start: they are as in the foreground.
"""

import signal

from hypothesis import settings

settings.register_profile("rocketpoll", deadline=None, print_blob=True)
settings.load_profile("rocketpoll")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
