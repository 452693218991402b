"""Which examples does hypothesis draw? The same in every run: ranks draw them independently and
must agree.
"""

from hypothesis import HealthCheck, settings


def load() -> None:
    """Use the profile of all tests: first calls compile, so no deadline; machines are shared, so
    how long it takes to draw an example says nothing about the test.
    """
    settings.register_profile(
        "neocpu",
        deadline=None,
        derandomize=True,
        max_examples=30,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("neocpu")
