"""The project's wheel, built from the source tree as a release would be.

As a program it builds the wheel for any platform and, if Rust is installed, the wheel for this one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]

BUILT_FROM = (
    "pyproject.toml",
    "setup.py",
    "README.md",
    "LICENSE",
    "native",
    "jvm",
    "gazette_spark",
    "pyspark_gazette",
    "pyspark_gazette_delta",
    "pyspark_gazette_iceberg",
)
"""Files of the repository that the wheel is built from."""

BUILD_TIMEOUT_S = 120


def build_wheel(directory: Path, **variables: str) -> Path:
    """Build the wheel below ``directory``, without access to a registry, and return its path.

    It is built with these environment variables set.

    Raises:
        subprocess.CalledProcessError: the build failed.
    """
    # Built from a copy, because setuptools leaves folders beside its sources.
    source = directory / "source"
    source.mkdir()
    for name in BUILT_FROM:
        (source / name).symlink_to(ROOT / name)
    out = directory / "wheel"
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*command, "-w", str(out), str(source)],
        env=os.environ | variables,
        check=True,
        timeout=BUILD_TIMEOUT_S,
    )
    (found,) = out.glob("*.whl")
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for variables in ({"GAZETTE_SPARK_NATIVE": "0"}, {}):
        with TemporaryDirectory() as directory:
            wheel = build_wheel(Path(directory), **variables)
            shutil.copy(wheel, folder)
            sys.stdout.write(f"{folder / wheel.name}\n")


if __name__ == "__main__":
    main()
