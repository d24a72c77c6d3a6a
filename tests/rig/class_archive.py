"""A class data archive, because tests start JVMs by the dozen.

Half of what a local Spark spends until its first Delta commit goes into loading and checking classes. The
JVM can record the classes it loaded (JEP 350) and map them into the next JVM. An archive fits one Java
and one class path, to which jars may only be appended; a JVM that finds it does not fit goes on without
it. So an archive is a matter of speed alone, and without one everything here does nothing.

``python -m tests.rig.class_archive`` makes it: it runs a small stream into a Delta table, once
to learn which jars Delta needs, and once to write the archive. Delta's jars are put at the end of the
class path, for classes of jars that Spark loads later, as it does with packages, are not archived.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlparse

from gazette_spark.session import CLASS_PATH_VARIABLE
from tests.rig.gazctl import cache_folders

JAVA_OPTIONS_VARIABLE = "SPARK_SUBMIT_OPTS"
"""Environment variable whose options Spark's launcher adds to those of a driver's JVM."""

RUN_TIMEOUT_S = 600
"""Maximum seconds for each of the two runs on a busy machine; half a minute is usual."""

FORMAT = 1
"""Version of the way archives are created; part of their names."""


def spark_home() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pyspark is not installed: pip install 'gazette-spark[spark]'")
    return Path(spec.origin).parent


@dataclass(frozen=True, slots=True)
class ClassArchive:
    file: Path
    jars: tuple[str, ...]
    """Jars to append to the class path, in this order."""

    @property
    def java_options(self) -> str:
        """JVM options that use the archive if it fits, and otherwise ignore it silently."""
        return f"-Xshare:auto -XX:SharedArchiveFile={self.file} -Xlog:cds=off -Xlog:cds+dynamic=off"

    def environment(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the environment variables that make Spark's launcher use the archive.

        The archive's jars come first on the class path, before those that the variable already names.
        """
        before = environ.get(CLASS_PATH_VARIABLE)
        return {
            CLASS_PATH_VARIABLE: os.pathsep.join([*self.jars, *([before] if before else [])]),
            JAVA_OPTIONS_VARIABLE: self.java_options,
        }


def find_archive(environ: Mapping[str, str] = os.environ) -> ClassArchive | None:
    name = archive_name(environ)
    for folder in cache_folders(environ) if name else ():
        file = folder / f"{name}.jsa"
        try:
            jars = tuple(json.loads(file.with_suffix(".json").read_text())["jars"])
        except (OSError, ValueError, KeyError):
            continue
        if file.exists() and all(Path(jar).exists() for jar in jars):
            return ClassArchive(file, jars)
    return None


def archive_name(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the archive's name for this Java, Spark and Delta; None if Java is not found."""
    java = environ.get("JAVA_HOME") or _java_home_on_path(environ)
    release = Path(java, "release") if java else None
    if release is None or not release.exists():
        return None
    parts = [str(FORMAT), str(java), release.read_text(), str(spark_home())]
    parts += [version(package) for package in ("pyspark", "delta-spark")]
    return "classes-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _java_home_on_path(environ: Mapping[str, str]) -> str | None:
    java = shutil.which("java", path=environ.get("PATH"))
    return str(Path(java).resolve().parents[1]) if java else None


def make_archive(environ: Mapping[str, str] = os.environ) -> ClassArchive:
    """Create the archive unless it exists.

    Raises:
        RuntimeError: Java is not to be found.
        subprocess.CalledProcessError: one of the runs failed.
    """
    found = find_archive(environ)
    if found:
        return found
    name = archive_name(environ)
    if name is None:
        raise RuntimeError("no Java found: set JAVA_HOME")
    folder = cache_folders(environ)[0]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="class-archive-") as scratch:
        resolved = Path(scratch, "jars.json")
        _run(["--jars", str(resolved)], Path(scratch, "resolve"))
        jars = not_of_spark(json.loads(resolved.read_text()))
        # Renamed into place, with the file that identifies it last: others may look for it meanwhile.
        made, description = Path(scratch, "made.jsa"), Path(scratch, "made.json")
        _run(["--archive", str(made), *jars], Path(scratch, "record"))
        description.write_text(json.dumps({"jars": jars}))
        for file in (made, description):
            staged = folder / f".{name}-{os.getpid()}{file.suffix}"
            shutil.move(file, staged)
            staged.rename(folder / f"{name}{file.suffix}")
    return ClassArchive(folder / f"{name}.jsa", tuple(jars))


def not_of_spark(jars: Sequence[str]) -> list[str]:
    """Return those jars, given as paths or URLs, that do not come with Spark."""
    bundled = {_artifact(path.name) for path in (spark_home() / "jars").glob("*.jar")}
    paths = [unquote(urlparse(jar).path) for jar in jars]
    # Ivy puts the organisation before an artifact's name.
    return [path for path in paths if _artifact(Path(path).name.partition("_")[2]) not in bundled]


def _artifact(jar: str) -> str:
    """Return a jar's name without its version, such as ``jackson-core`` for ``jackson-core-2.13.5.jar``."""
    words = jar.removesuffix(".jar").split("-")
    kept = [word for word in words[1:] if not word[:1].isdigit()]
    return "-".join([words[0], *kept])


def _run(arguments: Sequence[str], directory: Path) -> None:
    directory.mkdir()
    command = [sys.executable, "-m", "tests.rig.class_archive_run", str(directory), *arguments]
    subprocess.run(
        command,
        check=True,
        timeout=RUN_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def main() -> None:
    """Create the archive and report it; after a failure, tests are only slower."""
    try:
        archive = make_archive()
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        print(f"no class data archive, JVMs will start slower: {error}", file=sys.stderr)  # noqa: T201
        return
    print(f"class data archive: {archive.file}")  # noqa: T201


if __name__ == "__main__":
    main()
