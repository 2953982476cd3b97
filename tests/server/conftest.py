"""Set-up for the server's tests."""

from hypothesis import settings

# Examples are timed by wall clock, which says nothing on a busy machine.
settings.register_profile("server", deadline=None)
settings.load_profile("server")
