"""Plots a section's results: MB/s of each job and reader, and the CPU seconds per process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench_jobs import Result
from bench_processes import ROLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#4477aa", "#ee6677", "#ccbb44")
"""Colours of the roles, which colour-blind people can also distinguish."""


def draw(runs: Mapping[tuple[str, str], Sequence[Result]], path: Path) -> None:
    """Draw the runs of each job and peer, the fastest first, as an SVG file."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = path.stem  # Makes the file reproducible.
    mpl.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot as plt

    names = [f"{work}: {peer}" for work, peer in runs]
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 0.9 + 0.32 * len(names)), sharey=True, layout="constrained"
    )
    rates = [[result.mb_s for result in found] for found in runs.values()]
    middle = [found[len(found) // 2] for found in rates]
    spread = [
        [each - min(found) for each, found in zip(middle, rates, strict=True)],
        [max(found) - each for each, found in zip(middle, rates, strict=True)],
    ]
    left.barh(names, middle, xerr=spread, color="#66aabb", ecolor="#333333", capsize=2)
    left.set_xlabel("MB/s, median of the runs; whiskers: slowest and fastest")
    left.invert_yaxis()
    _stack(right, names, [found[len(found) // 2] for found in runs.values()])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _stack(axes: Axes, names: Sequence[str], results: Sequence[Result]) -> None:
    """Draw the CPU seconds of the processes as stacked bars."""
    before = [0.0] * len(names)
    for role, color in zip(ROLES, COLORS, strict=True):
        costs = [result.cpu_s_per_gb[role] for result in results]
        axes.barh(names, costs, left=before, color=color, label=role)
        before = [a + b for a, b in zip(before, costs, strict=True)]
    axes.set_xlabel("CPU seconds per GB")
    axes.legend(frameon=False)
