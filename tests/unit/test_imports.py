"""Imports inside the package point one way only, and the page that draws them is correct."""

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

from tests.rig.native import require_library

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
    (
        "listener",
        "_delta",
        "_iceberg",
        "_file_format",
        "_delta_format",
        "_iceberg_format",
        "sink",
        "_backfill",
        "_ingest",
        "_verify",
        "flow",
    ),
    ("consumer",),
    ("session", "testing"),
    ("demo",),
    ("cli",),
)
"""Parts in import order: a part imports only earlier ones, from its row or the rows above."""

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
        "_iceberg",
        "_file_format",
        "_delta_format",
        "_iceberg_format",
        "sink",
        "_backfill",
        "_ingest",
        "_verify",
        "flow",
        "consumer",
        "session",
        "testing",
        "demo",
        "cli",
    },
    "delta": {"_delta", "sink", "consumer", "session", "testing", "demo", "cli"},
    "deltalake": {"_data_files", "_ledger", "_delta", "_verify"},
    "pyiceberg": {"_data_files", "_ledger", "_iceberg"},
    "grpc": {"protocol", "client", "_server", "broker", "consumer", "testing"},
}
"""Parts that may import a package that is slow to load or optional, by package."""

NEWER_NAMES = ("Filter", "EqualTo", "Not", "DataSourceStreamArrowWriter", "ReadAllAvailable", "ReadLimit")
"""Some names of PySpark's data source module that Spark 4.0 lacks."""

GENERATED = ("_pb2.py", "_pb2_grpc.py")


def part_of(path: Path) -> str:
    """Return the part a file belongs to: its folder below the package, or its own name."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if not path.name.endswith(GENERATED))


@cache
def imported_modules(path: Path) -> tuple[str, ...]:
    """Return the full name of every module or name that an import statement of a file requests."""
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
    """Return the part of the package that ``module`` belongs to, or None."""
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
    """A new module or folder needs a place in the order before anything can import it."""
    assert {part_of(path) for path in sources()} - {"__init__"} <= ORDER.keys()


def test_no_part_imports_one_to_its_right() -> None:
    """The parts form one line, so there are no cycles between them."""
    wrong = {(a, b) for a, b in edges() if a != "__init__" and ORDER[a] < ORDER[b]}
    assert wrong == set()


def test_no_files_import_each_other() -> None:
    """Imports for types count too."""
    modules = {module_of(path): path for path in sources()}
    imports = {
        name: {known_module(target, modules) for target in imported_modules(path)} - {None, name}
        for name, path in modules.items()
    }
    TopologicalSorter(imports).prepare()


def module_of(path: Path) -> str:
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
    """Return the arrows of the page's list: ``a --> b & c`` means that a imports b and c."""
    arrows = re.findall(r"^ *(\w+) --> ([\w& ]+)$", page, re.MULTILINE)
    return {(a, b.strip()) for a, targets in arrows for b in targets.split("&")}


EVERYBODY_IMPORTS = {"errors", "_frames", "version", "closing", "seal", "strict_json", "_exports"}
"""Parts that the list omits because every part imports them."""


def test_the_page_lists_the_imports() -> None:
    """docs/how-it-works/architecture.md lists exactly the imports of the code."""
    real = {(a, b) for a, b in edges() if a != "__init__" and b not in EVERYBODY_IMPORTS}
    assert drawn_edges(ARCHITECTURE.read_text()) == real


def test_the_table_shows_the_ranks() -> None:
    """docs/how-it-works/architecture.md describes every part, left to right."""
    described = re.findall(r"^\| `(\w+)` \|", ARCHITECTURE.read_text(), re.MULTILINE)
    assert described == [part for row in RANKS for part in row]


SELDOM = {
    "httpx",
    "jwt",
    "rich",
    "click",
    "pandas",
    "yaml",
    "h11",
    "uvicorn",
    "deltalake",
    "pyiceberg",
    "http",
    "email",
    "urllib.request",
    "multiprocessing",
    "concurrent.futures.process",
    "importlib.metadata",
    "numpy.typing",
    "pyarrow.compute",
    "pyarrow.csv",
    "pyarrow.dataset",
    "gazette_spark._write.spark_writer",
}
"""Modules that a query rarely needs and that are therefore imported where they are used."""

CLIENT = {"grpc", "asyncio", "ssl", "gazette_spark.client", "gazette_spark.protocol.protocol_pb2_grpc"}
PLANNER = {"gazette_spark._planning.plan"}
FILES = {"pyarrow.parquet", "pyarrow.fs"}
BLOCK_PARSER = {"pyarrow.json"}
"""Modules imported for blocks that the native decoder does not read."""

SOURCE = "import gazette_spark.source"

JSON_TASK = (ROOT / "tests" / "rig" / "json_task.py").read_text()

DIRECT_LANE_TASK = """
import tempfile
import numpy as np
import pyarrow as pa
from pyspark.sql.types import LongType, StructType
from gazette_spark._data_files.target import FileTarget
from gazette_spark._data_files.writer import write_files
from gazette_spark._formats.arrays import int64_array
from gazette_spark.spark_versions import arrow_schema
shape = StructType().add("offset", LongType())
rows = pa.RecordBatch.from_arrays([int64_array(np.arange(2000))], schema=arrow_schema(shape))
with tempfile.TemporaryDirectory() as directory:
    target = FileTarget("t", directory, shape.json(), shape.json())
    (files,) = write_files([("journal=a", [rows])], target)
assert files.column("rows").to_pylist() == [2000]
"""

COMMITTED_TASK = """
import tempfile
import numpy as np
from gazette_spark.message.bulk_sequencer import ProducerStates, sequence
from gazette_spark.message.uuids import Clock, ProducerId, split_uuids, stamp, uuid_texts
from gazette_spark._planning import committed
from gazette_spark._planning.states import StateFiles
uuids = split_uuids(uuid_texts(stamp(ProducerId(b"\\1\\0\\0\\0\\0\\1"), Clock(1 << 62), 3, 1)))
with tempfile.TemporaryDirectory() as directory:
    files = StateFiles(directory)
    files.save("a/b", 10, 0, sequence(ProducerStates.none(), uuids, np.arange(3)).states)
    assert files.load("a/b", 10, 0)[0].begins.tolist() == [0]
"""
"""Program that splits UUIDs, sequences messages, and uses the state files of producers."""

PLANNING = """
from pyspark.sql.types import LongType, StructType
from gazette_spark._options.source import parse_options
from gazette_spark._planning.plan import stream_planner
from gazette_spark.source import StreamReader
options = parse_options({"brokerAddress": "http://localhost:1", "path": "a/", "format": "json"}, "stream")
StreamReader(options, StructType().add("id", LongType()))
planner, client = stream_planner(options)
planner.close()
client.close()
"""
"""Program that plans a stream, up to the first request to a broker."""

SINK = "import gazette_spark.sink"

FORMATS = "import gazette_spark._delta_format"
"""Import that PySpark makes in each session that uses a Python data source."""


@pytest.mark.parametrize(
    ("code", "late"),
    [
        pytest.param(SOURCE, SELDOM | CLIENT | PLANNER | FILES | BLOCK_PARSER, id="load"),
        pytest.param(JSON_TASK, SELDOM | CLIENT | PLANNER | FILES, id="task"),
        pytest.param(DIRECT_LANE_TASK, SELDOM | CLIENT - {"ssl"} | PLANNER | BLOCK_PARSER, id="direct lane"),
        pytest.param(COMMITTED_TASK, SELDOM, id="committed messages"),
        pytest.param(PLANNING, SELDOM | FILES | BLOCK_PARSER, id="planner"),
        pytest.param(
            FORMATS, SELDOM | CLIENT | PLANNER | FILES | BLOCK_PARSER | {"google.protobuf"}, id="format"
        ),
        pytest.param(SINK, SELDOM | CLIENT | PLANNER | FILES | BLOCK_PARSER, id="sink"),
    ],
)
def test_spark_starts_many_processes_so_none_loads_what_it_does_not_use(code: str, late: set[str]) -> None:
    """The test compares module names because times depend on the machine; docs/decisions/0040 has some."""
    assert loaded_of(late, code) == []


def test_a_task_whose_blocks_the_native_decoder_reads_needs_no_other_parser() -> None:
    """``pyarrow.json`` is only needed for blocks that the decoder leaves to it."""
    require_library()
    assert loaded_of(BLOCK_PARSER, JSON_TASK) == []


def loaded_of(modules: set[str], code: str) -> list[str]:
    """Run the code in a Spark worker's Python; return those of the modules that it has loaded."""
    command = f"{code}\nimport sys, pyspark.worker\nprint(*sorted({modules!r} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()


def test_a_connect_client_needs_no_py4j() -> None:
    """The package pyspark-client comes without py4j. Source, sink and backfill must still load."""
    modules = "gazette_spark.source, gazette_spark.sink, gazette_spark._backfill"
    code = f"import sys; sys.modules['py4j'] = None; import {modules}; print('loaded')"
    # The variable makes pyspark act as pyspark-client.
    environ = {**os.environ, "SPARK_SKIP_CONNECT_COMPAT_TESTS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60, env=environ
    )
    assert done.stdout.strip() == "loaded", done.stderr


def test_the_package_loads_under_a_spark_that_lacks_names() -> None:
    """Spark 4.0 lacks filters, Arrow writers of streams, and read limits."""
    code = f"""
import sys
from pyspark.sql import datasource
sys.modules["pyspark.sql.streaming.datasource"] = None
for name in {NEWER_NAMES!r}:
    delattr(datasource, name)
from gazette_spark import source, sink, backfill, ingest, listener
from gazette_spark._verify import verify
from gazette_spark.consumer import spark
from gazette_spark._delta_format import DeltaFormat
from gazette_spark._write import spark_writer
from gazette_spark import spark_versions
assert (spark_versions.ADMISSION_CONTROL, spark_versions.ARROW_STREAM_WRITES) == (False, False)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
