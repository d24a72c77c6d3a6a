"""Keeps the results of the end-to-end benchmark between runs, and makes the page's tables from them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import bench_limits
import bench_plots
from bench_first_row import FirstRow
from bench_first_row import table as first_row_table
from bench_jobs import BACKFILLS, TABLE_FORMATS, WORKS, Result
from bench_latency import TRICKLE_EVERY_S, Latency
from bench_latency import table as latencies
from bench_processes import ROLES
from harness import MEGABYTE, write_section

PEERS = ("Kafka", "spark.read")
"""Readers without Python workers."""

WITHOUT_LIBRARY = ", without the library"
"""Suffix of the names of readers whose workers parse in Python."""

TITLES = {
    "stream-2": "Beside Spark's Kafka source: two journals",
    "stream-1": "Beside Spark's Kafka source: one journal",
    "stream-2-events": "Beside Spark's Kafka source: events in two journals",
    "stream-1-events": "Beside Spark's Kafka source: events in one journal",
    "backfill": "Backfill beside Spark's file readers",
    "backfill-events": "Backfill of events beside Spark's file readers",
    "formats": "Delta and Iceberg tables on the direct lane",
    "formats-events": "Delta and Iceberg tables on the direct lane: events",
    "memory": "Memory of a Python worker",
    "latency": "Latency at a trickle",
    "first-row": "The first row of a query",
    "limits": "The limit",
}

GOALS = {
    "raw → noop": 1.3,
    "JSON → noop": 4.0,
    "raw → Delta": 1.1,
    "JSON → Delta": 1.4,
    "backfill JSON → noop": 2.0,
    "backfill JSON → Delta": 1.2,
}
"""Target ratio of our speed to the peer's by job, if tasks read fragments themselves and Spark writes."""

LANE_GOALS = {"raw → Delta": 2.0, "JSON → Delta": 4.5, "backfill JSON → Delta": 3.0}
"""Target ratios of the direct lane."""

BROKER_LANE_GOALS = {"JSON → Delta": 2.5}
"""Target ratios of the direct lane if all bytes come through the broker."""

FLAT_GOALS = {"JSON → Delta": 1.8}
FLAT_LANE_GOALS = {"raw → Delta": 2.2, "JSON → Delta": 5.0}
"""Target ratios for flat lines, of Spark's writer and of the direct lane."""

ICEBERG_GOAL = 0.9
"""Target ratio of the direct lane into an Iceberg table to the same lane into a Delta table."""

LIMITS_ABOUT = (
    "A job does at least these steps (`--only limits`): it compares fragments with their SHA-1, decompresses "
    "them, and makes columns and Parquet files. Its limit is the speed of two cores that do nothing else. In "
    "addition, each run takes some seconds to start a query, for its empty first batch, and for its commits."
)

FIRST_ROW_ABOUT = (
    "Typed events, 40 MB in two journals, in a session that is already running. The time of a batch query "
    "ends with the row of `limit(1)`. The time of a stream begins with `start()` on an empty checkpoint, and "
    "ends with its first batch. There were eight queries of each kind."
)

PROFILE_ABOUT = (
    "The next table shows the CPU seconds per GB of the jobs that miss their goals. A goal allows two busy "
    "cores for the peer's time divided by the goal. The steps are those of the first table. \"Rest of "
    'Python" is starting, importing, reading files and passing rows on. If a job takes less than its goal '
    "allows, a core is idle while the query starts, plans and commits."
)


OURS = {"stream-2": "flat", "stream-2-events": "events", "backfill": "flat", "backfill-events": "events"}
"""Sections whose missed goals are explained, and their records."""

HEAD = (
    ("stream-2", "JSON → Delta", "deployed, direct lane", ", direct lane"),
    ("stream-2", "JSON → Delta", "deployed, direct", ", Spark's writer"),
    ("stream-2", "JSON → noop", "deployed, direct", ""),
    ("stream-2", "raw → Delta", "deployed, direct lane", ", direct lane"),
    ("backfill", "backfill JSON → Delta", "deployed, direct lane", ", direct lane"),
    ("backfill", "backfill JSON → noop", "deployed, direct", ""),
)
"""Rows of the page's first table, for each shape: section, job, reader, and what the row adds to the job."""

HEAD_COLUMNS = (
    "| job | peer | peer | gazette_spark | ratio | goal | CPU s per GB: peer | gazette_spark "
    "| share of the limit |\n|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True, slots=True)
class Kept:
    """Results by measurement. Results of a later run replace those of an earlier one."""

    path: Path
    sections: dict[str, Any]

    @classmethod
    def at(cls, path: Path) -> Kept:
        """Read the results of earlier runs."""
        return cls(path, json.loads(path.read_text()) if path.exists() else {})

    def keep(self, section: str, value: object) -> None:
        """Store a section's content."""
        self.sections[section] = value
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.sections, indent=1))

    def add(self, section: str, label: str, about: str, result: Result) -> None:
        """Store a result; ``about`` identifies its run."""
        now = asdict(result) | {"about": about}
        same = ("peer", "work", "journals", "size_bytes")
        before = self.sections.get(section, {}).get("results", [])
        left = [
            each
            for each in before
            if each["about"] == about or any(each[field] != now[field] for field in same)
        ]
        self.keep(section, {"label": label, "results": [*left, now]})


def write_page(kept: Kept, page: Path) -> None:
    """Write the sections of the measured results, and the first table if all of its rows were measured."""
    if (table := head_table(kept)) is not None:
        write_head(page, table)
    for section, title in TITLES.items():
        if section not in kept.sections:
            continue
        content = kept.sections[section]
        if section == "latency":
            found = [Latency(**each) for each in content["found"]]
            heading = f"{found[0].records} records, one every {TRICKLE_EVERY_S} s. {content['about']}."
            text = f"{heading}\n\n{latencies(found)}"
        elif section == "first-row":
            first_rows = [FirstRow(**each) for each in content["measured"]]
            text = f"{FIRST_ROW_ABOUT} {content['about']}.\n\n{first_row_table(first_rows)}"
        elif section == "limits":
            tables = [bench_limits.tables(content["found"]), PROFILE_ABOUT, missed(kept)]
            text = "\n\n".join([f"{LIMITS_ABOUT} {content['about']}.", *tables])
        else:
            runs = "\n".join(sorted({f"- {each['about']}" for each in content["results"]}))
            heading = f"{content['label']}. Runs:" if content["label"] else "Runs:"
            if section == "memory":
                tables = [memory(results_of(content))]
            else:
                plot = page.with_name(f"{page.stem}-{section}.svg")
                days = results_by_day(content)
                bench_plots.draw(by_speed(next(iter(days.values()))), plot)
                tables = [f"![MB/s, and CPU seconds per GB by process]({plot.name})"]
                shape = "events" if section.endswith("events") else "flat"
                for day, results in days.items():
                    tables += [f"Measured on {day}:"] if len(days) > 1 else []
                    tables += [speeds(results, shape, limits_of(kept, shape)), costs(results)]
            text = "\n\n".join([f"{heading}\n\n{runs}", *tables])
        write_section(page, title, text)


def by_speed(results: Iterable[Result]) -> dict[tuple[str, str], list[Result]]:
    """Return the runs of each job and peer, the fastest first. Jobs are in the page's order."""
    found: dict[tuple[str, str], list[Result]] = {}
    order = [work.name for work in (*WORKS.values(), *BACKFILLS.values(), *TABLE_FORMATS.values())]
    for each in sorted(results, key=lambda each: order.index(each.work)):
        found.setdefault((each.work, each.peer), []).append(each)
    return {key: sorted(runs, key=lambda each: each.seconds) for key, runs in found.items()}


def median(results: Iterable[Result]) -> dict[tuple[str, str], Result]:
    """Return the run with the median time of each peer and job; of two, the slower one."""
    return {key: runs[len(runs) // 2] for key, runs in by_speed(results).items()}


def newest_medians(kept: Kept, section: str) -> dict[tuple[str, str], Result]:
    """Return the median run of each peer and job on the newest day of a section."""
    days = results_by_day(kept.sections.get(section, {}))
    return median(next(iter(days.values()), []))


def missed(kept: Kept) -> str:
    """Return the table of CPU seconds by step of each job that misses its goal."""
    heads = ("goal allows", "takes", "gzip", "SHA-1", "columns", "Parquet", "rest of Python", "JVM", "broker")
    rows = [f"| job | records | reader | {' | '.join(heads)} |", f"|---|---|---|{'---|' * len(heads)}"]
    for section, shape in OURS.items():
        rates = kept.sections["limits"]["found"].get(shape, {})
        steps = {name: 1e9 / MEGABYTE / rate for name, rate in rates.items()}
        medians = newest_medians(kept, section)
        for (work, who), result in medians.items():
            rival, goal = goal_of(work, who, shape)
            against = medians.get(rival)
            if against is None or (work, who) == rival or against.seconds / result.seconds >= goal:
                continue
            allowed = bench_limits.CORES * against.seconds / goal / (result.size_bytes / 1e9)
            # Spark writes the Parquet files of all jobs, except in the direct lane.
            writes = ("write raw", "write") if "direct lane" in who else ()
            by_step = [
                sum(steps[name] for name in bench_limits.LIMITS[work] if name in names)
                for names in (("gunzip",), ("sha1",), ("raw", "parse"), writes)
            ]
            cpu = result.cpu_s_per_gb
            rest = cpu["Python"] - sum(by_step)
            cells = [allowed, sum(cpu.values()), *by_step, rest, cpu["JVM"], cpu["broker"]]
            shown = " | ".join(f"{cell:.1f}" for cell in cells)
            rows.append(f"| {work} | {shape} | {who} | {shown} |")
    return "\n".join(rows)


def goal_of(work: str, who: str, shape: str) -> tuple[tuple[str, str], float]:
    """Return the job and the peer with which a job is compared, and the target ratio, 0 without one."""
    if work.endswith("Iceberg"):
        return (work.replace("Iceberg", "Delta"), who), ICEBERG_GOAL
    peer = "spark.read" if work.startswith("backfill") else "Kafka"
    if who.endswith("direct lane"):
        goals = GOALS | LANE_GOALS | (FLAT_LANE_GOALS if shape == "flat" else {})
    elif who.endswith("direct lane through the broker"):
        goals = BROKER_LANE_GOALS
    elif who.endswith(("through the broker", WITHOUT_LIBRARY)):
        goals = {}
    else:
        goals = GOALS | (FLAT_GOALS if shape == "flat" else {})
    return (work, peer), goals.get(work, 0.0)


def limits_of(kept: Kept, shape: str) -> dict[str, float]:
    """Return the MB/s that the machine allows, by job; empty if the steps were not measured."""
    steps = kept.sections.get("limits", {"found": {}})["found"].get(shape)
    return {work: bench_limits.limit(steps, work) for work in bench_limits.LIMITS} if steps else {}


def head_table(kept: Kept) -> str | None:
    """Return the page's first table, or None if one of its rows was not measured."""
    rows = [HEAD_COLUMNS]
    for shape, suffix, name in (("events", "-events", "events"), ("flat", "", "lines")):
        limits = limits_of(kept, shape)
        for section, work, who, more in HEAD:
            medians = newest_medians(kept, section + suffix)
            rival, goal = goal_of(work, who, shape)
            if not limits or rival not in medians or (work, who) not in medians:
                return None
            peer, ours = medians[rival], medians[work, who]
            costs_s = [sum(result.cpu_s_per_gb.values()) for result in (peer, ours)]
            peer_name = f"`{peer.peer}`" if "." in peer.peer else peer.peer
            rows.append(
                f"| {name}: {work}{more} | {peer_name} | {peer.mb_s:.0f} MB/s | {ours.mb_s:.0f} MB/s "
                f"| **{peer.seconds / ours.seconds:.1f}** | {goal:g} | {costs_s[0]:.1f} | {costs_s[1]:.1f} "
                f"| {ours.mb_s / limits[work]:.0%} |"
            )
    return "\n".join(rows)


def write_head(page: Path, table: str) -> None:
    """Replace the table above the page's first section, or append it there."""
    text = page.read_text() if page.exists() else "# Performance\n"
    head, mark, rest = text.partition("\n## ")
    pattern = re.compile(r"^\| job \| peer \|.*?(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)
    if pattern.search(head):
        head = pattern.sub(lambda _: table, head)
    else:
        head = f"{head.rstrip()}\n\n{table}\n"
    page.write_text(head + mark + rest)


def results_of(content: Mapping[str, Any]) -> list[Result]:
    """Return a section's results."""
    return [
        Result(**{key: value for key, value in each.items() if key != "about"})
        for each in content.get("results", [])
    ]


def results_by_day(content: Mapping[str, Any]) -> dict[str, list[Result]]:
    """Return a section's results by the day of their run, the newest first.

    Days differ by a factor of two, so ratios only compare results of the same day.
    """
    days: dict[str, list[Result]] = {}
    for result in sorted(content.get("results", []), key=lambda result: result["about"][:10], reverse=True):
        days.setdefault(result["about"][:10], []).extend(results_of({"results": [result]}))
    return days


def speeds(results: Iterable[Result], shape: str, limits: Mapping[str, float]) -> str:
    """Return the table of MB/s of the runs with the median time, with the range, ratios and goals.

    Args:
        results: the runs.
        shape: their records.
        limits: MB/s that the machine allows, by job.
    """
    runs = by_speed(results)
    rows = [
        "| job | reader | MB/s | seconds | runs: seconds | ratio | goal | share of the limit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (work, who), found in runs.items():
        each = found[len(found) // 2]
        rival, wanted = goal_of(work, who, shape)
        against = runs.get(rival)
        ratio, verdict = "", ""
        if against is not None and (work, who) != rival:
            times = against[len(against) // 2].seconds / each.seconds
            ratio = f"{times:.2f}"
            verdict = _verdict(times, wanted) if wanted else ""
        spread = f"{len(found)}: {found[0].seconds:.1f} to {found[-1].seconds:.1f}" if found[1:] else "1"
        share = f"{each.mb_s / limits[work]:.0%}" if who not in PEERS and work in limits else ""
        cells = (work, who, f"{each.mb_s:.0f}", f"{each.seconds:.1f}", spread, ratio, verdict, share)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _verdict(times: float, goal: float) -> str:
    if times >= goal:
        return f"{goal:g} x: met"
    return f"{goal:g} x: missed by {(1 - times / goal) * 100:.0f} %"


def costs(results: Iterable[Result]) -> str:
    """Return the table of CPU seconds per GB, and of the workers' memory."""
    names = " | ".join(ROLES)
    rows = [
        f"| job | reader | CPU s/GB: {names} | total | memory of a worker |",
        f"|---|---|{'---|' * len(ROLES)}---|---|",
    ]
    for (work, who), each in median(results).items():
        per_gb = each.cpu_s_per_gb
        cells = " | ".join(f"{per_gb[role]:.1f}" for role in ROLES)
        # During Kafka's jobs, there are still workers of earlier jobs.
        memory = "" if who in PEERS else f"{each.worker_bytes / MEGABYTE:.0f} MB"
        rows.append(f"| {work} | {who} | {cells} | {sum(per_gb.values()):.1f} | {memory} |")
    return "\n".join(rows)


def memory(results: Iterable[Result]) -> str:
    """Return the table of the workers' memory by the journal's size."""
    sizes = sorted({each.size_bytes for each in results})
    peaks = {(each.peer, each.work, each.size_bytes): each.worker_bytes for each in results}
    kinds = list(dict.fromkeys((each.peer, each.work) for each in results))
    rows = [
        f"| job | reader |{''.join(f' {size / 1e9:.0f} GB |' for size in sizes)}",
        f"|---|---|{'---|' * len(sizes)}",
    ]
    for who, work in kinds:
        cells = "".join(f" {peaks.get((who, work, size), 0) / MEGABYTE:.0f} MB |" for size in sizes)
        rows.append(f"| {work} | {who} |{cells}")
    return "\n".join(rows)
