"""The number of examples that Hypothesis draws: a fixed few in every run, 20 times as many in soak.

A tree that has passed passes again, so ``make test`` fails only because of the change under test. Soak
searches for new examples: each of its runs uses a new seed. Every run prints its seed, and
``pytest --hypothesis-seed=<seed>`` draws its examples again.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings

DEFAULT_EXAMPLES = 100
"""Number of examples for a property that does not specify it."""
BRIEFLY, SOAK = 0.5, 10
"""Factors of a property's number of examples: in every run, and with ``--soak``."""
SEED = "1"
"""Seed of every run except the soak."""

# The duration of an example depends more on the load of the machine than on the code under test.
settings.register_profile(
    "test",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    max_examples=int(DEFAULT_EXAMPLES * BRIEFLY),
)
settings.register_profile("soak", settings.get_profile("test"), max_examples=DEFAULT_EXAMPLES * SOAK)
settings.load_profile("test")


def configure(config: pytest.Config, *, soak: bool) -> None:
    """Load the profile before tests are imported, and set the seed unless the command line has one."""
    settings.load_profile("soak" if soak else "test")
    if config.option.hypothesis_seed is None:
        # xdist passes the option to its workers, so the whole run has one seed.
        fresh = str(random.SystemRandom().randrange(1 << 32))
        config.option.hypothesis_seed = fresh if soak else SEED


def examples(number: int) -> int:
    """Return how many examples to draw in the current profile, where ``number`` is the base."""
    profile = settings.default
    assert profile is not None
    return number * profile.max_examples // DEFAULT_EXAMPLES


def seed_line(config: pytest.Config) -> str:
    return f"examples: --hypothesis-seed={config.option.hypothesis_seed}"
