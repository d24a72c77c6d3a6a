"""Whatever kills the writer of an Iceberg table or changes the table, each row is there once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rig.iceberg_crashes import IcebergCrashes

pytestmark = pytest.mark.slow


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("seed", "steps"), [(1, 4), *(pytest.param(seed, 40, marks=pytest.mark.soak) for seed in range(2, 14))]
)
def test_no_schedule_loses_or_doubles_a_row(tmp_path: Path, seed: int, steps: int) -> None:
    crashes = IcebergCrashes(tmp_path, seed)
    crashes.run(steps)
    assert crashes.crashes > 0
