"""Builds the package, including two parts that are omitted if their tools are missing.

- Cargo builds the native decoder (``native/``). ctypes loads it in every version of Python, so a wheel with
  it depends only on the platform. ``GAZETTE_SPARK_NATIVE=0`` makes a wheel without it.
- javac builds a log store for Delta tables on S3 (``jvm/``). Its jar runs on every platform.

Package indexes get README.md without its links to files. Static metadata is in pyproject.toml.
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
    """Makes a file of the package with a tool that the machine may lack. Without the tool, it is omitted."""

    file: Path
    """Path of the file in the package."""
    what: str
    sources: tuple[str, ...]
    """Patterns of the files that a source distribution needs for it."""

    def initialize_options(self) -> None:
        """Set the attributes that setuptools requires of a subcommand of ``build``."""
        self.build_lib: str | None = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        """Set the folder from which the wheel is made."""
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    @property
    def target(self) -> Path:
        """Path of the file to make."""
        return self.file if self.editable_mode else Path(self.build_lib or "", self.file)

    def run(self) -> None:
        """Make the file. A failure does not fail the installation."""
        # A file of an earlier build would turn a pure wheel into a wheel for this platform.
        self.target.unlink(missing_ok=True)
        self.target.parent.mkdir(parents=True, exist_ok=True)
        try:
            problem = self.make()
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if problem:
            self.warn(f"{self.what} is omitted: {problem}")

    def make(self) -> str:
        """Make the file at ``target``; return the reason if that failed, or an empty text."""
        raise NotImplementedError

    def get_source_files(self) -> list[str]:
        """Return the files that a source distribution needs."""
        return [str(path) for pattern in self.sources for path in Path().glob(pattern)]

    def get_outputs(self) -> list[str]:
        """Return the file, if it exists."""
        return [str(self.target)] if self.target.exists() else []

    def get_output_mapping(self) -> dict[str, str]:
        """Return no outputs, because none is a file of the source tree."""
        return {}


def run_tool(command: Sequence[str], folder: Path) -> str:
    """Run a tool; return its error output if it failed, or an empty text."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    return f"{command[0]} failed: {done.stderr}" if done.returncode else ""


class BuildNative(OptionalPart):
    """Builds the decoder with cargo, and puts it next to the modules that load it."""

    file = Path("gazette_spark", "_formats", "libgazette_json.so")
    """The same name on all platforms, because ctypes loads the file by its path."""
    what = "the native JSON decoder"
    sources = ("native/Cargo.toml", "native/Cargo.lock", "native/src/*.rs")

    def make(self) -> str:
        """Run cargo."""
        if os.environ.get("GAZETTE_SPARK_NATIVE") == "0":
            return "GAZETTE_SPARK_NATIVE=0"
        # The crate has no dependencies, so nothing is downloaded.
        command = ["cargo", "build", "--quiet", "--release", "--locked", "--offline"]
        if problem := run_tool(command, CRATE):
            return problem
        shutil.copy(CRATE / "target" / "release" / BUILT, self.target)
        return ""


class BuildLogStore(OptionalPart):
    """Compiles Delta's log store for S3, and puts its jar into the package."""

    file = Path("gazette_spark", "_delta", "s3-log-store.jar")
    what = "the log store for Delta tables on s3a://"
    sources = ("jvm/**/*.java",)

    def make(self) -> str:
        """Run javac with stubs of Hadoop and Delta, so that nothing is downloaded."""
        with tempfile.TemporaryDirectory() as classes:
            at_home = Path(os.environ.get("JAVA_HOME", ""), "bin", "javac")
            javac = shutil.which("javac") or str(at_home)
            command = [javac, "--release", "17", "-proc:none", "-implicit:none", "-sourcepath", "stubs"]
            if problem := run_tool([*command, "-d", classes, LOG_STORE], Path("jvm")):
                return problem
            with zipfile.ZipFile(self.target, "w") as jar:
                for path in sorted(Path(classes).rglob("*.class")):
                    # With the zip format's default time, the same sources give the same bytes.
                    name = path.relative_to(classes).as_posix()
                    jar.writestr(zipfile.ZipInfo(name), path.read_bytes())
        return ""


class Build(build):
    """setuptools' ``build`` with the optional parts."""

    sub_commands = [*build.sub_commands, ("build_native", None), ("build_log_store", None)]  # noqa: RUF012 - as in setuptools.


class PlatformWheel(bdist_wheel):
    """A wheel for all Pythons, for this platform if it has the library and otherwise for any."""

    def run(self) -> None:
        """Build the library first, because it determines the kind of the wheel."""
        self.run_command("build_native")
        self.root_is_pure = not self.get_finalized_command("build_native").get_outputs()
        # Put the files of a wheel for a platform where setuptools puts extension modules.
        self.distribution.has_ext_modules = lambda: not self.root_is_pure
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag for Python, its ABI and the platform."""
        python, abi, platform = super().get_tag()
        return (python, abi, platform) if self.root_is_pure else ("py3", "none", platform)


def description() -> str:
    """Return README.md for package indexes, with links to files of the repository as plain text."""
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
