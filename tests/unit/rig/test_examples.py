"""Which test runs draw the same examples."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import settings

from tests.rig import examples


@pytest.fixture
def config() -> Iterator[pytest.Config]:
    """A run whose command line names no seed. The profile of the real run is restored afterwards."""
    profile = settings.get_current_profile_name()
    yield cast("pytest.Config", SimpleNamespace(option=SimpleNamespace(hypothesis_seed=None)))
    settings.load_profile(profile)


def test_every_run_draws_the_same_examples(config: pytest.Config) -> None:
    """A tree that passed must pass again."""
    examples.configure(config, soak=False)
    assert examples.seed_line(config) == f"examples: --hypothesis-seed={examples.SEED}"


def test_a_soak_draws_its_own(config: pytest.Config) -> None:
    """Two of 2**32 seeds are equal only by chance."""
    examples.configure(config, soak=True)
    first = examples.seed_line(config)
    config.option.hypothesis_seed = None
    examples.configure(config, soak=True)
    assert first not in (examples.seed_line(config), f"examples: --hypothesis-seed={examples.SEED}")


def test_the_command_line_decides(config: pytest.Config) -> None:
    """A failure is repeated with the seed that it printed."""
    config.option.hypothesis_seed = "17"
    examples.configure(config, soak=True)
    assert examples.seed_line(config) == "examples: --hypothesis-seed=17"
