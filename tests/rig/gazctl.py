"""The programs of a real broker, and a ``gazctl`` for tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import yaml

from gazette_spark.errors import GazetteError
from tests.rig.certificates import Certificates

GAZCTL_TIMEOUT_S = 60.0
"""Maximum seconds for one ``gazctl`` command, and for the assignment of a new journal."""

CACHE_VARIABLE = "GAZETTE_SPARK_CACHE"
"""Environment variable with the folder of the binaries."""


@dataclass(eq=False)
class BinaryNotFoundError(GazetteError):
    """A program that the real broker needs has not been built."""

    name: str
    looked_in: tuple[str, ...]

    def __str__(self) -> str:
        folders = ", ".join(self.looked_in)
        return (
            f"{self.name!r} was not found in {folders}, nor on PATH. "
            "Build it with tests/deployed/build.sh (needs Go), which `make test` runs first"
        )


@dataclass(eq=False)
class ProcessError(GazetteError):
    """A program started for a test failed, or did not become ready in time."""

    program: str
    problem: str
    output: str = ""

    def __str__(self) -> str:
        return f"{self.program}: {self.problem}\n{self.output}"


@dataclass(frozen=True, slots=True)
class Binaries:
    gazette: Path
    gazctl: Path
    etcd: Path


def find_binaries(environ: Mapping[str, str] = os.environ) -> Binaries:
    """Find a real broker's programs, each like :func:`find_binary`."""
    return Binaries(**{name: find_binary(name, environ) for name in ("gazette", "gazctl", "etcd")})


def find_binary(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Find a program in ``$GAZETTE_SPARK_CACHE``, the repository's ``.cache/gazette``, or on PATH.

    Raises:
        BinaryNotFoundError: the program is in no such place.
    """
    folders = cache_folders(environ)
    search_path = os.pathsep.join([*map(str, folders), environ.get("PATH", os.defpath)])
    found = shutil.which(name, path=search_path)
    if found is None:
        raise BinaryNotFoundError(name, tuple(map(str, folders)))
    return Path(found)


def cache_folders(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the cache folders for the tests' files, in order of priority for reads and writes."""
    folders = [Path(__file__).resolve().parents[2] / ".cache" / "gazette"]
    if named := environ.get(CACHE_VARIABLE):
        folders.insert(0, Path(named))
    return folders


class BrokerHandle:
    """A running broker, embedded or deployed, as tests use it. Any thread may use it."""

    def __init__(self, endpoint: str, file_root: Path) -> None:
        self.endpoint = endpoint
        """URL of the broker, ``http://host:port``."""
        self.file_root = file_root
        """Directory under which ``file:///`` stores keep their fragments."""
        self.auth_keys = ""
        """Keys with which ``gazctl`` signs its tokens; empty for a broker without authorization."""
        self.certificates: Certificates | None = None
        """Certificates that clients trust and present; None for a broker without TLS."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.endpoint or 'nowhere'}, fragments in {self.file_root}>"

    def log_tail(self) -> str:
        """Return the end of the broker's log; empty if it logs through ``logging``."""
        return ""

    def gazctl(self, *args: str, input: bytes | str | None = None) -> str:  # noqa: A002 - as in subprocess
        return self.gazctl_bytes(*args, input=input).decode()

    def gazctl_bytes(self, *args: str, input: bytes | str | None = None) -> bytes:  # noqa: A002 - see above
        """Like :meth:`gazctl`, for binary output.

        Raises:
            ProcessError: it failed, or ran longer than ``GAZCTL_TIMEOUT_S``.
        """
        command = self.gazctl_command(*args)
        given = input.encode() if isinstance(input, str) else input or b""
        shown = "gazctl " + " ".join(args)
        try:
            done = subprocess.run(
                command,
                input=given,
                capture_output=True,
                timeout=GAZCTL_TIMEOUT_S,
                check=False,
                env=clean_environment() | self.client_environment(),
            )
        except subprocess.TimeoutExpired as error:
            seen = (error.stderr or b"").decode(errors="replace")
            raise ProcessError(shown, f"still running after {GAZCTL_TIMEOUT_S:g} s", seen) from None
        if done.returncode:
            raise ProcessError(shown, f"exit code {done.returncode}", done.stderr.decode(errors="replace"))
        return done.stdout

    def client_environment(self) -> dict[str, str]:
        """Return the environment variables with which Gazette's tools and our command reach the broker."""
        env = {"BROKER_ADDRESS": self.endpoint, "BROKER_AUTH_KEYS": self.auth_keys}
        if self.certificates is None:
            return env
        return env | {
            "BROKER_TRUSTED_CA_FILE": str(self.certificates.ca),
            "BROKER_CERT_FILE": str(self.certificates.client.cert),
            "BROKER_CERT_KEY_FILE": str(self.certificates.client.key),
        }

    def gazctl_command(self, *args: str) -> list[str]:
        return [str(find_binary("gazctl")), *args, f"--broker.address={self.endpoint}"]

    def apply_specs(self, specs: str) -> list[str]:
        """Apply a YAML tree of journals by ``gazctl``, wait until each has a primary, and return their names.

        A broker responds before it has assigned the journals, and appends fail until then.
        """
        self.gazctl("journals", "apply", "--specs", "-", input=specs)
        names = sorted(_leaf_names(yaml.safe_load(specs)))
        deadline = monotonic() + GAZCTL_TIMEOUT_S
        while waiting := set(names) - self._assigned(names):
            if monotonic() > deadline:
                raise ProcessError(
                    "gazctl journals apply", f"never assigned: {sorted(waiting)}", self.log_tail()
                )
        return names

    def _assigned(self, names: Sequence[str]) -> set[str]:
        selector = f"name in ({', '.join(names)})"
        listed = json.loads(self.gazctl("journals", "list", "-l", selector, "-o", "json"))
        return {each["spec"]["name"] for each in listed["journals"] if each["route"]["members"]}


def _leaf_names(node: Mapping[str, Any]) -> Iterator[str]:
    children = node.get("children", ())
    if not children:
        yield node["name"]
    for child in children:
        yield from _leaf_names(child)


def clean_environment() -> dict[str, str]:
    """Return the environment without the variables from which gazette, gazctl and etcd read flags."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("BROKER_", "CONSUMER_", "ETCD_", "LOG_"))
    }
