"""Builds two parts with the package, each of which is left out where its tool is missing.

- The native decoder (``native/``), by cargo. It is loaded by ctypes and serves every version of Python, so a
  wheel with it depends on the platform only. ``GAZETTE_SPARK_NATIVE=0`` makes a wheel without it.
- A log store for Delta tables on S3 (``jvm/``), by javac. Its jar runs on every platform.

Package indexes get README.md without its links to files. What is declarative is in pyproject.toml.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from setuptools import Command, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

CRATE = Path("native")
LOG_STORE = "gazette/spark/ConditionalS3LogStore.java"

BUILT = {"darwin": "libgazette_json.dylib", "win32": "gazette_json.dll"}.get(
    sys.platform, "libgazette_json.so"
)
BUILD_TIMEOUT_S = 300


class OptionalPart(Command):
    """Make a file of the package with a tool that the machine may lack; without it the file is left out."""

    file: Path
    """Where it is in the package."""
    what: str
    sources: tuple[str, ...]
    """Patterns of what a source distribution needs for it."""

    def initialize_options(self) -> None:
        """Set what setuptools asks of a part of its command ``build``."""
        self.build_lib: str | None = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        """Take the folder that the wheel is made from."""
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    @property
    def target(self) -> Path:
        """Where the file goes."""
        return self.file if self.editable_mode else Path(self.build_lib or "", self.file)

    def run(self) -> None:
        """Make the file. No failure is one of the installation."""
        # One of an earlier build would make a wheel for this platform out of a pure one.
        self.target.unlink(missing_ok=True)
        self.target.parent.mkdir(parents=True, exist_ok=True)
        try:
            problem = self.make()
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if problem:
            self.warn(f"{self.what} is left out: {problem}")

    def make(self) -> str:
        """Make the file at ``target``; return why that failed, empty if it did not."""
        raise NotImplementedError

    def get_source_files(self) -> list[str]:
        """Return what a source distribution needs."""
        return [str(path) for pattern in self.sources for path in Path().glob(pattern)]

    def get_outputs(self) -> list[str]:
        """Return the file, if there is one."""
        return [str(self.target)] if self.target.exists() else []

    def get_output_mapping(self) -> dict[str, str]:
        """Return the outputs that are files of the source tree: none."""
        return {}


def run_tool(command: Sequence[str], folder: Path) -> str:
    """Run a tool; return what it wrote if it failed, else nothing."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    return f"{command[0]} failed: {done.stderr}" if done.returncode else ""


class BuildNative(OptionalPart):
    """Build the decoder by cargo, and put it beside the modules that load it."""

    file = Path("gazette_spark", "_formats", "libgazette_json.so")
    """One name on all platforms: ctypes loads it by its path."""
    what = "the native JSON decoder"
    sources = ("native/Cargo.toml", "native/Cargo.lock", "native/src/*.rs")

    def make(self) -> str:
        """Run cargo."""
        if os.environ.get("GAZETTE_SPARK_NATIVE") == "0":
            return "GAZETTE_SPARK_NATIVE=0"
        # It has no dependencies, so that nothing is downloaded.
        command = ["cargo", "build", "--quiet", "--release", "--locked", "--offline"]
        if problem := run_tool(command, CRATE):
            return problem
        shutil.copy(CRATE / "target" / "release" / BUILT, self.target)
        return ""


class BuildLogStore(OptionalPart):
    """Compile Delta's log store for S3, and put its jar into the package."""

    file = Path("gazette_spark", "_delta", "s3-log-store.jar")
    what = "the log store for Delta tables on s3a://"
    sources = ("jvm/**/*.java",)

    def make(self) -> str:
        """Run javac. Instead of Hadoop and Delta it sees their signatures, so that nothing is downloaded."""
        with tempfile.TemporaryDirectory() as classes:
            at_home = Path(os.environ.get("JAVA_HOME", ""), "bin", "javac")
            javac = shutil.which("javac") or str(at_home)
            command = [javac, "--release", "17", "-proc:none", "-implicit:none", "-sourcepath", "stubs"]
            if problem := run_tool([*command, "-d", classes, LOG_STORE], Path("jvm")):
                return problem
            with zipfile.ZipFile(self.target, "w") as jar:
                for path in sorted(Path(classes).rglob("*.class")):
                    # With the zip format's first time, the same sources give the same bytes.
                    name = path.relative_to(classes).as_posix()
                    jar.writestr(zipfile.ZipInfo(name), path.read_bytes())
        return ""


class Build(build):
    """setuptools' ``build``, and the optional parts."""

    sub_commands = [*build.sub_commands, ("build_native", None), ("build_log_store", None)]  # noqa: RUF012 - as in setuptools.


class PlatformWheel(bdist_wheel):
    """A wheel for all Pythons, of this platform if it has the library and of any if not."""

    def run(self) -> None:
        """Build the library first: it decides what kind of wheel this is."""
        self.run_command("build_native")
        self.root_is_pure = not self.get_finalized_command("build_native").get_outputs()
        # Files of a wheel for a platform go where setuptools puts those beside extension modules.
        self.distribution.has_ext_modules = lambda: not self.root_is_pure
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag for Python, for its ABI and for the platform."""
        python, abi, platform = super().get_tag()
        return (python, abi, platform) if self.root_is_pure else ("py3", "none", platform)


def description() -> str:
    """Return README.md as package indexes show it: links to files of the repository, dead there, are text."""
    readme = Path("README.md").read_text(encoding="utf-8")
    return re.sub(r"\[([^\]]+)\]\((?!https?://)[^)]*\)", r"\1", readme)


setup(
    long_description=description(),
    long_description_content_type="text/markdown",
    cmdclass={
        "build": Build,
        "build_native": BuildNative,
        "build_log_store": BuildLogStore,
        "bdist_wheel": PlatformWheel,
    },
)
