"""Builds the native decoder (``native/``) with the package, where Rust is installed; without, it is left out.

What is declarative is in pyproject.toml. The library is loaded by ctypes and serves every version of Python,
so a wheel with it depends on the platform only. ``GAZETTE_SPARK_NATIVE=0`` makes a wheel without it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Command, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

CRATE = Path("native")
SOURCES = ("Cargo.toml", "Cargo.lock", "src/*.rs")
LIBRARY = Path("gazette_spark", "_formats", "libgazette_json.so")
"""One name on all platforms: ctypes loads it by its path."""

BUILT = {"darwin": "libgazette_json.dylib", "win32": "gazette_json.dll"}.get(
    sys.platform, "libgazette_json.so"
)
BUILD_TIMEOUT_S = 300


class BuildNative(Command):
    """Build the library by cargo, and put it beside the modules that load it."""

    def initialize_options(self) -> None:
        """Set what setuptools asks of a part of its command ``build``."""
        self.build_lib: str | None = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        """Take the folder that the wheel is made from."""
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    @property
    def target(self) -> Path:
        """Where the library goes."""
        return LIBRARY if self.editable_mode else Path(self.build_lib or "", LIBRARY)

    def run(self) -> None:
        """Build the library. No failure is one of the installation."""
        # One of an earlier build would make a wheel for this platform out of a pure one.
        self.target.unlink(missing_ok=True)
        problem = self._problem()
        if problem:
            self.warn(f"the native JSON decoder is left out: {problem}")
            return
        self.target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CRATE / "target" / "release" / BUILT, self.target)

    def _problem(self) -> str:
        """Run cargo; return why there is no library, empty if there is one."""
        if os.environ.get("GAZETTE_SPARK_NATIVE") == "0":
            return "GAZETTE_SPARK_NATIVE=0"
        # It has no dependencies, so that nothing is downloaded.
        command = ["cargo", "build", "--quiet", "--release", "--locked", "--offline"]
        try:
            done = subprocess.run(
                command, cwd=CRATE, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return f"cargo failed: {done.stderr}" if done.returncode else ""

    def get_source_files(self) -> list[str]:
        """Return what a source distribution needs."""
        return [str(path) for pattern in SOURCES for path in CRATE.glob(pattern)]

    def get_outputs(self) -> list[str]:
        """Return the library, if there is one."""
        return [str(self.target)] if self.target.exists() else []

    def get_output_mapping(self) -> dict[str, str]:
        """Return the outputs that are files of the source tree: none."""
        return {}


class Build(build):
    """setuptools' ``build``, and the library."""

    sub_commands = [*build.sub_commands, ("build_native", None)]  # noqa: RUF012 - as in setuptools.


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


setup(cmdclass={"build": Build, "build_native": BuildNative, "bdist_wheel": PlatformWheel})
