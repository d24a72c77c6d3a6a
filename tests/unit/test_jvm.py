"""The Java that Spark needs is found, installed where allowed, or requested in one sentence."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "jvm.sh"
TOOLS = ("cat", "dirname", "head", "mkdir", "chmod", "readlink", "sed", "sh")


@dataclass
class Machine:
    """A machine whose PATH has only a few tools."""

    directory: Path

    @property
    def bin(self) -> Path:
        return self.directory / "bin"

    def tool(self, name: str, script: str) -> None:
        self.program(self.bin / name, script)

    def program(self, path: Path, script: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def java(self, home: Path, version: str) -> Path:
        self.program(home / "bin" / "java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")
        return home

    def find(self, *args: str, java_home: Path | None = None) -> subprocess.CompletedProcess[str]:
        env = {"PATH": str(self.bin), "JVM_ROOT": str(self.directory / "jvm")}
        if java_home is not None:
            env["JAVA_HOME"] = str(java_home)
        return subprocess.run(
            ["/bin/sh", str(SCRIPT), *args], env=env, capture_output=True, text=True, timeout=30, check=False
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine without Java, used by root."""
    made = Machine(tmp_path)
    made.bin.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None
        (made.bin / name).symlink_to(found)
    made.tool("id", "echo 0")
    return made


@pytest.mark.parametrize("version", ["17.0.15", "21", "17-ea"])
def test_java_home_comes_first(machine: Machine, tmp_path: Path, version: str) -> None:
    machine.java(tmp_path / "jvm" / "java-17-debian", "17.0.1")
    home = machine.java(tmp_path / "mine", version)
    assert machine.find(java_home=home).stdout.strip() == str(home)


@pytest.mark.parametrize("version", ["1.8.0_202", "11.0.2", "25", "nonsense"])
def test_an_unsuitable_java_is_passed_over(machine: Machine, tmp_path: Path, version: str) -> None:
    wrong = machine.java(tmp_path / "wrong", version)
    (machine.bin / "java").symlink_to(wrong / "bin" / "java")
    good = machine.java(tmp_path / "jvm" / "java-21-openjdk-amd64", "21.0.1")
    assert machine.find(java_home=wrong).stdout.strip() == str(good)


def test_the_java_on_path_is_followed_home(machine: Machine, tmp_path: Path) -> None:
    """Links such as Debian's alternatives lead to the home."""
    home = machine.java(tmp_path / "opt" / "jdk", "17.0.9")
    (machine.bin / "java").symlink_to(home / "bin" / "java")
    assert machine.find().stdout.strip() == str(home)


def test_debians_java_is_installed_where_it_may_be(machine: Machine, tmp_path: Path) -> None:
    """Root on Debian is not prompted. The output of apt-get must not mix with the answer."""
    home = tmp_path / "jvm" / "java-17-openjdk-amd64"
    machine.tool(
        "apt-get",
        f"echo apt-get \"$@\"; if [ \"$1\" = install ]; then mkdir -p {home}/bin; printf '%s\\n' '#!/bin/sh' "
        f'"echo \'openjdk version \\"17.0.2\\"\' >&2" > {home}/bin/java; chmod +x {home}/bin/java; fi',
    )
    done = machine.find("--install")
    assert (done.returncode, done.stdout.strip()) == (0, str(home))
    assert "apt-get update" in done.stderr
    assert "apt-get install -y openjdk-17-jre-headless" in done.stderr


@pytest.mark.parametrize(
    ("user", "apt", "args"),
    [
        pytest.param("1000", "exit 0", ["--install"], id="not root"),
        pytest.param("0", "exit 100", ["--install"], id="apt-get fails"),
        pytest.param("0", "exit 0", [], id="not asked to"),
    ],
)
def test_else_one_sentence_says_what_to_install(
    machine: Machine, user: str, apt: str, args: list[str]
) -> None:
    machine.tool("id", f"echo {user}")
    machine.tool("apt-get", apt)
    done = machine.find(*args)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith(
        "Spark needs Java 17 or 21: install openjdk-17-jre-headless"
    )
