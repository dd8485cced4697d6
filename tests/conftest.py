"""Settings for every test: hypothesis knows no deadline, as machines that run CI are slow now and then."""

from hypothesis import settings

settings.register_profile("rocketpoll", deadline=None, print_blob=True)
settings.load_profile("rocketpoll")
