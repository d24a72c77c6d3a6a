"""Schedules: the steps of a query and its table, drawn from a seed.

The same seed and settings give the same schedule in every release with the same drawing code. The effect of a
kill at a random moment is still random.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from gazette_spark.locations import misread_by_deltalake
from tests.rig.crashes import backfills
from tests.rig.crashes.points import reachable
from tests.rig.crashes.sinks import SINKS

Kind = Literal[
    "crash",
    "sink crashes",
    "kill",
    "random kill",
    "run",
    "lose checkpoint",
    "stale checkpoint",
    "zombie",
    "restore",
    "optimize",
    "expire",
    "roll",
    "property",
    "other writer",
    "new journal",
    "lose states",
    "recreate",
    "backfill",
    "kill backfill",
]
"""Action of a step; :class:`tests.rig.crashes.scenario.Scenario` has a method for each."""

KINDS: tuple[Kind, ...] = get_args(Kind)

SIGKILLS: frozenset[Kind] = frozenset({"kill", "random kill", "kill backfill"})

WEIGHTS: Mapping[Kind, int] = {
    "crash": 24,
    "sink crashes": 1,
    "run": 1,
    "lose checkpoint": 1,
    "stale checkpoint": 1,
    "zombie": 3,
    "restore": 1,
    "optimize": 1,
    "expire": 2,
    "roll": 1,
    "property": 1,
    "other writer": 1,
    "new journal": 1,
    "lose states": 2,
    "recreate": 4,
    "backfill": 6,
}
"""Weights of the steps that need no child process. A step ``sink crashes`` has several crashes."""

FEATURE_OF: Mapping[Kind, str] = {
    "lose states": "committed",
    "recreate": "committed",
    "backfill": "committed",
    "kill backfill": "committed",
    "expire": "iceberg",
}
"""Sink feature that each of these steps needs."""

LEFT_OUT: Mapping[str, frozenset[Kind]] = {
    "format": frozenset({"sink crashes", "zombie"}),
    "iceberg": frozenset({"sink crashes", "roll"}),
}
"""Steps that a kind of sink does not support: the commits of a format do not run in this process, and an
Iceberg table has no log to roll."""

OVERTAKEN_AT = ("sink.entry", "sink.before_write", "sink.after_write", "sink.return")
"""Failpoints at which a second writer may overtake."""

SINK_CRASHES = 3
"""Number of kill points per batch after which only the sink is created again."""

KILL_NTHS = (1, 1, 1, 2)
"""Occurrences of a point at which a child may be killed; one is drawn."""


DIRECTORIES = (
    "plain",
    "two words",
    "day%201",
    "100%",
    "a+b",
    "no#1",
    "what?",
    "it's",
    'say "so"',
    "back`tick",
    "größe",
)
"""Names of the directory that holds the table, its dead letters, the query checkpoints and the states.

Their characters have special meanings in URIs, SQL, globs or shells."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step; fields that its kind does not use keep their defaults."""

    kind: Kind
    point: str = ""
    """Points to die at, separated by ``|``, or the failpoint to be overtaken at."""
    nth: int = 1
    records: int = 0
    """Number of records to append before the step."""
    fraction: float = 0.0
    """Choice among the possible targets, or fraction of the maximum delay."""

    def __str__(self) -> str:
        where = f" {self.point} #{self.nth}" if self.point else ""
        return f"{self.kind}{where}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings for drawing schedules, except the seed."""

    steps: int = 20
    kill_share: float = 0.0
    """Fraction of the steps that SIGKILL a child process."""
    only: frozenset[Kind] = frozenset()
    """Allowed kinds of the other steps; empty: all."""
    sinks: tuple[str, ...] = tuple(SINKS)
    """Kinds of sink, which successive seeds use in turn."""


@dataclass(frozen=True, slots=True)
class Schedule:
    sink: str
    """Kind of the sink; see :data:`tests.rig.crashes.sinks.SINKS`."""
    steps: tuple[Step, ...]
    seed: int = 0
    directory: str = DIRECTORIES[0]


def fitting(sink: str) -> list[Kind]:
    """Return the steps without a child process that a kind of sink supports."""
    left_out = LEFT_OUT.get(sink, frozenset())
    return [kind for kind in WEIGHTS if FEATURE_OF.get(kind, sink) == sink and kind not in left_out]


def draw(seed: int, settings: Settings) -> Schedule:
    rng = random.Random(seed)
    sink = settings.sinks[seed % len(settings.sinks)]
    steps = tuple(_step(rng, settings, sink) for _ in range(settings.steps))
    return Schedule(sink, steps, seed, rng.choice(directories(sink)))


def directories(sink: str) -> list[str]:
    """Return the possible directory names for a kind of sink."""
    kind = SINKS[sink]
    if kind.iceberg:
        # Catalogs and pyiceberg parse locations as URLs.
        return [name for name in DIRECTORIES if not set(name) & set("%?#")]
    # deltalake, which commits for the direct lane and the format, confuses some directories with others.
    by_deltalake = kind.direct or kind.is_format
    return [name for name in DIRECTORIES if not (by_deltalake and misread_by_deltalake(f"/{name}"))]


def _step(rng: random.Random, settings: Settings, sink: str) -> Step:
    kind: Kind
    if rng.random() < settings.kill_share:
        more: tuple[Kind, ...] = ("kill backfill",) if sink == FEATURE_OF["kill backfill"] else ()
        kind = rng.choice(("kill", "kill", "random kill", *more))
    else:
        kinds = [kind for kind in fitting(sink) if kind in settings.only] or fitting(sink)
        (kind,) = rng.choices(kinds, [WEIGHTS[each] for each in kinds])
    point, nth = _POINT_OF.get(kind, _nowhere)(rng, frozenset({sink}))
    return Step(kind, point, nth, records=rng.randint(6, 12), fraction=round(rng.random(), 3))


def _crash_point(rng: random.Random, features: frozenset[str], *, by_kill: bool) -> tuple[str, int]:
    point = rng.choice(reachable(features, by_kill=by_kill))
    return point.name, rng.choice(KILL_NTHS if by_kill else point.nths)


def _backfill_point(rng: random.Random, *, by_kill: bool) -> tuple[str, int]:
    return rng.choice(backfills.points(by_kill=by_kill)).name, rng.choice(KILL_NTHS)


def _sink_points(rng: random.Random, features: frozenset[str]) -> tuple[str, int]:
    found = reachable(features, by_kill=False)
    points = [point.name for point in found if point.raises and point.raises.startswith("sink.")]
    return "|".join(rng.choices(points, k=SINK_CRASHES)), 1


def _nowhere(rng: random.Random, features: frozenset[str]) -> tuple[str, int]:
    return "", 1


_POINT_OF: Mapping[Kind, Callable[[random.Random, frozenset[str]], tuple[str, int]]] = {
    "crash": lambda rng, features: _crash_point(rng, features, by_kill=False),
    "sink crashes": _sink_points,
    "kill": lambda rng, features: _crash_point(rng, features, by_kill=True),
    "zombie": lambda rng, _: (rng.choice(OVERTAKEN_AT), rng.randint(1, 2)),
    "backfill": lambda rng, _: _backfill_point(rng, by_kill=False),
    "kill backfill": lambda rng, _: _backfill_point(rng, by_kill=True),
}
