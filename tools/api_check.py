"""Lists breaking changes of the public interface since a release: ``python -m tools.api_check [REF]``.

By default, it compares the newest tag ``v…`` with the current files. Only names that ``tools.public_names``
lists count. A breaking change needs a new minor version before 1.0, and a new major version after it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import griffe

from gazette_spark.version import VERSION
from tools.public_names import PUBLIC_MODULES, ROOT, public_names


def interface(package: Any) -> Any:  # noqa: ANN401 - griffe's types are incomplete
    """Return a module with only the public names of a package that griffe loaded."""
    module = griffe.Module("public")
    for public_module in PUBLIC_MODULES:
        for name, member in public_names(public_module, package).items():
            module.members[f"{public_module}.{name}"] = member.final_target if member.is_alias else member
    return module


def breaking_changes(old: Any, new: Any) -> list[str]:  # noqa: ANN401
    """Return a line for each difference between two modules that can break a program."""
    breakages = griffe.find_breaking_changes(old, new)
    return sorted({breakage.explain(griffe.ExplanationStyle.ONE_LINE) for breakage in breakages})


def may_break(released: str, version: str) -> bool:
    """Return whether a version may break programs that were written for a release."""
    old, new = (tuple(map(int, text.split(".")[:2])) for text in (released, version))
    return old != new if old[0] == new[0] == 0 else old[0] != new[0]


def newest_release() -> str | None:
    """Return the newest release tag in this history; None before the first release."""
    command = ["git", "describe", "--tags", "--abbrev=0", "--match", "v*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def main(arguments: Sequence[str]) -> int:
    """Print the breaking changes; return 1 if the version does not allow them."""
    ref = arguments[0] if arguments else newest_release()
    if ref is None:
        sys.stdout.write("There is no release yet with which the interface could be compared.\n")
        return 0
    old = griffe.load_git("gazette_spark", ref=ref, repo=ROOT)
    new = griffe.load("gazette_spark", search_paths=[ROOT])
    lines = breaking_changes(interface(old), interface(new))
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.write(f"{len(lines)} breaking changes since {ref}.\n")
    released = str(old["version.VERSION"].value).strip("'\"")
    return 1 if lines and not may_break(released, VERSION) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
