"""Imports inside the package point one way only, and the page that draws them is true."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gazette_spark"
ARCHITECTURE = ROOT / "docs" / "how-it-works" / "architecture.md"

RANKS = (
    ("errors", "_frames", "version", "closing", "seal", "strict_json", "_exports"),
    ("failpoints", "progress", "spark_start", "spark_versions", "locations"),
    ("offsets", "protocol", "query_progress"),
    ("_formats",),
    ("_options",),
    ("_ledger",),
    ("client", "_server", "lag"),
    ("message",),
    ("replicated_log", "_planning", "_write", "_data_files", "broker"),
    ("source",),
    ("listener", "_delta", "sink", "_backfill", "_ingest", "_verify"),
    ("consumer",),
    ("session", "testing"),
    ("demo",),
    ("cli",),
)
"""Left to right: a part imports what stands before it, in its own row or an earlier one."""

ORDER = {part: index for index, part in enumerate(part for row in RANKS for part in row)}

HEAVY = {
    "pyspark": {
        "_formats",
        "spark_versions",
        "_planning",
        "_write",
        "_data_files",
        "source",
        "listener",
        "_delta",
        "sink",
        "_backfill",
        "_ingest",
        "_verify",
        "consumer",
        "session",
        "testing",
        "demo",
        "cli",
    },
    "delta": {"_delta", "sink", "consumer", "session", "testing", "demo", "cli"},
    "deltalake": {"_data_files", "_ledger", "_delta", "_verify"},
    "grpc": {"protocol", "client", "_server", "broker", "consumer", "testing"},
}
"""Parts that may import a package which is slow to load or not always there."""

NEWER_NAMES = ("Filter", "EqualTo", "Not", "DataSourceStreamArrowWriter", "ReadAllAvailable", "ReadLimit")
"""Of PySpark's module of data sources, some that Spark 4.0 does not have."""

GENERATED = ("_pb2.py", "_pb2_grpc.py")


def part_of(path: Path) -> str:
    """Return the part a file belongs to: its folder below the package, or its own name."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def sources() -> list[Path]:
    """Return the package's modules, without generated ones."""
    return sorted(path for path in PACKAGE.rglob("*.py") if not path.name.endswith(GENERATED))


@cache
def imported_modules(path: Path) -> tuple[str, ...]:
    """Return the full name of every module or name an import statement of a file asks for."""
    return tuple(_imports_in(path.read_text()))


def _imports_in(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.ImportFrom(level=level) if level > 0:
                raise AssertionError(f"relative import at line {node.lineno}")


def part_imported(module: str) -> str | None:
    """Return the part of the package that ``module`` belongs to, if it does."""
    names = module.split(".")
    return names[1] if names[0] == "gazette_spark" and len(names) > 1 and names[1] in ORDER else None


def edges() -> set[tuple[str, str]]:
    """Return (importing part, imported part) for the whole package, without edges inside a part."""
    found = set()
    for path in sources():
        for module in imported_modules(path):
            target = part_imported(module)
            if target and target != part_of(path):
                found.add((part_of(path), target))
    return found


def test_every_part_has_a_rank() -> None:
    """A new module or folder must be given its place before anything can import it."""
    assert {part_of(path) for path in sources()} - {"__init__"} <= ORDER.keys()


def test_no_part_imports_one_to_its_right() -> None:
    """The parts form one line, so there are no cycles between them."""
    wrong = {(a, b) for a, b in edges() if a != "__init__" and ORDER[a] < ORDER[b]}
    assert wrong == set()


def test_no_files_import_each_other() -> None:
    """All files have an order in which each imports earlier ones only, for types too."""
    modules = {module_of(path): path for path in sources()}
    imports = {
        name: {known_module(target, modules) for target in imported_modules(path)} - {None, name}
        for name, path in modules.items()
    }
    TopologicalSorter(imports).prepare()


def module_of(path: Path) -> str:
    """Return the dotted name of a file of the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def known_module(target: str, modules: Collection[str]) -> str | None:
    """Return the module that ``target``, a module or a name in one, belongs to; None if it is not ours."""
    return next((name for name in (target, target.rpartition(".")[0]) if name in modules), None)


@pytest.mark.parametrize("heavy", HEAVY)
def test_heavy_packages_stay_at_the_rim(heavy: str) -> None:
    """Spark, Delta and gRPC are imported by the parts that act, never by those that decide."""
    users = {
        part_of(path)
        for path in sources()
        for module in imported_modules(path)
        if module.split(".")[0] == heavy
    }
    assert users - {"__init__"} <= HEAVY[heavy]


@pytest.mark.parametrize("module", ["gazette_spark", "gazette_spark.cli.main"])
def test_loading_the_front_door_is_cheap(module: str) -> None:
    """Importing the package loads neither Spark nor gRPC."""
    code = f"import sys, {module}; print(*sorted({{'pyspark', 'grpc', 'delta'}} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == ""


def drawn_edges(page: str) -> set[tuple[str, str]]:
    """Return the arrows of the page's Mermaid diagram: ``a --> b & c`` means a imports b and c."""
    arrows = re.findall(r"^ *(\w+) --> ([\w& ]+)$", page, re.MULTILINE)
    return {(a, b.strip()) for a, targets in arrows for b in targets.split("&")}


EVERYBODY_IMPORTS = {"errors", "_frames", "version", "closing", "seal", "strict_json", "_exports"}
"""Left out of the diagram: an arrow from every part would hide the others."""


def test_the_diagram_shows_the_imports() -> None:
    """docs/how-it-works/architecture.md draws exactly the arrows the code has."""
    real = {(a, b) for a, b in edges() if a != "__init__" and b not in EVERYBODY_IMPORTS}
    assert drawn_edges(ARCHITECTURE.read_text()) == real


def test_the_table_shows_the_ranks() -> None:
    """docs/how-it-works/architecture.md describes every part, left to right."""
    described = re.findall(r"^\| `(\w+)` \|", ARCHITECTURE.read_text(), re.MULTILINE)
    assert described == [part for row in RANKS for part in row]


NOT_FOR_WORKERS = {
    "httpx",
    "jwt",
    "rich",
    "click",
    "pandas",
    "yaml",
    "numpy.typing",
    "pyarrow.compute",
    "gazette_spark._write.spark_writer",
}


def test_what_workers_load_is_light() -> None:
    """Spark starts many Python processes that load the source: what few of them need is loaded later."""
    late = NOT_FOR_WORKERS | {"grpc", "gazette_spark.client", "gazette_spark._planning.plan"}
    code = f"import sys, gazette_spark.source; print(*sorted({late!r} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == ""


def test_what_reads_committed_messages_is_light(tmp_path: Path) -> None:
    """Neither splitting nor sequencing UUIDs, nor files of states, load what takes half a second."""
    code = f"""
import sys
import numpy as np
from gazette_spark.message.bulk_sequencer import ProducerStates, sequence
from gazette_spark.message.uuids import Clock, ProducerId, split_uuids, stamp, uuid_texts
from gazette_spark._planning import committed
from gazette_spark._planning.states import StateFiles
uuids = split_uuids(uuid_texts(stamp(ProducerId(b"\\1\\0\\0\\0\\0\\1"), Clock(1 << 62), 3, 1)))
files = StateFiles({str(tmp_path)!r})
files.save("a/b", 10, 0, sequence(ProducerStates.none(), uuids, np.arange(3)).states)
assert files.load("a/b", 10, 0)[0].begins.tolist() == [0]
print(*sorted({NOT_FOR_WORKERS!r} & sys.modules.keys()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == ""


def test_what_writes_data_files_is_light(tmp_path: Path) -> None:
    """A task of the direct lane that writes raw records loads neither pandas nor Arrow's functions."""
    code = f"""
import sys
import numpy as np
import pyarrow as pa
from pyspark.sql.types import LongType, StructType
from gazette_spark._data_files.target import FileTarget
from gazette_spark._data_files.writer import write_files
from gazette_spark._formats.arrays import int64_array
from gazette_spark.spark_versions import arrow_schema
shape = StructType().add("offset", LongType())
rows = pa.RecordBatch.from_arrays([int64_array(np.arange(2000))], schema=arrow_schema(shape))
target = FileTarget("t", {str(tmp_path)!r}, shape.json(), shape.json())
told = list(write_files([("journal=a", [rows])], target))
assert [each.column("rows")[0].as_py() for each in told] == [2000]
print(*sorted({NOT_FOR_WORKERS!r} & sys.modules.keys()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == ""


def test_a_connect_client_needs_no_py4j() -> None:
    """The package pyspark-client comes without py4j; source, sink and backfill load there."""
    modules = "gazette_spark.source, gazette_spark.sink, gazette_spark._backfill"
    code = f"import sys; sys.modules['py4j'] = None; import {modules}; print('loaded')"
    # With the variable pyspark takes itself for pyspark-client.
    environ = {**os.environ, "SPARK_SKIP_CONNECT_COMPAT_TESTS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60, env=environ
    )
    assert done.stdout.strip() == "loaded", done.stderr


def test_the_package_loads_under_a_spark_that_lacks_names() -> None:
    """Spark 4.0 has neither filters, nor Arrow writers of streams, nor read limits."""
    code = f"""
import sys
from pyspark.sql import datasource
sys.modules["pyspark.sql.streaming.datasource"] = None
for name in {NEWER_NAMES!r}:
    delattr(datasource, name)
from gazette_spark import source, sink, backfill, ingest, listener
from gazette_spark._verify import verify
from gazette_spark.consumer import spark
from gazette_spark._write import spark_writer
from gazette_spark import spark_versions
assert (spark_versions.ADMISSION_CONTROL, spark_versions.ARROW_STREAM_WRITES) == (False, False)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
