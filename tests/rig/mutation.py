"""Mutation scores: which share of small faults in the modules that decide the nearest tests detect.

``mutmut`` makes the mutants, each of which changes one function in one place, and notes which tests call the
function. The section ``[tool.mutmut]`` of ``pyproject.toml`` names the modules and the tests. Running all
mutants takes hours, so this program draws some of each module at random, the same ones for the same seed and
source:

    python -m tests.rig.mutation --mutants 30 --seed 31

It works on a copy of the files that Git tracks, and prints for each module how many mutants the tests killed,
and which survived. It needs ``mutmut`` 3.8, which ``.ci/soak.sh`` adds for the run.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LIBRARY = "gazette_spark/_formats/libgazette_json.so"
"""The native decoder, which Git does not track."""

PYTEST = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", "not soak", "--hypothesis-seed=0"]

CPU_SECONDS = 20
"""Seconds of CPU time after which a mutant counts as killed. The tests of a function take a few seconds. A
limit of elapsed time would kill mutants on a busy machine."""

OUTCOMES = {0: "survived", 1: "killed", 3: "killed", 5: "no tests", -signal.SIGXCPU: "timed out"}
"""Meaning of pytest's exit code, or of the signal that ended it. 3 is an error in pytest itself."""

KILLED = ("killed", "timed out")


def copy_tree(to: Path) -> None:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in [*names.stdout.rstrip("\0").split("\0"), LIBRARY]:
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def code_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return a function's code without its name and its string literals."""
    for node in ast.walk(function):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            node.value = ""
    return ast.dump(ast.Module(function.body, [])) + ast.dump(function.args)


def draw(mutated: Path, number: int, seed: int) -> list[str]:
    """Draw mutants of a module, except those that change only a string: most strings are parts of errors."""
    names = json.loads(mutated.with_name(f"{mutated.name}.meta").read_text())["exit_code_by_key"]
    nodes = list(ast.walk(ast.parse(mutated.read_text() if names else "")))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    code = {function.name: code_of(function) for function in functions if "__mutmut_" in function.name}
    candidates = []
    for name in sorted(names):
        mutant = name.rpartition(".")[2]
        if code[mutant] != code[re.sub(r"\d+$", "orig", mutant)]:
            candidates.append(name)
    return random.Random(f"{seed}:{mutated.stem}").sample(candidates, len(candidates))[:number]


def run(mutant: str, tests: list[str]) -> str:
    """Run the tests of a mutant in a fork of this process, which has imported them; return the outcome."""
    if not tests:
        return "no tests"
    pid = os.fork()
    if pid == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.environ["MUTANT_UNDER_TEST"] = mutant
        limit = int(time.process_time()) + CPU_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 2))
        os._exit(int(pytest.main([*PYTEST, *tests])))
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return OUTCOMES.get(code, f"exit code {code}")


def run_all(number: int, seed: int) -> float:
    """Run mutants in the working directory, which mutmut has filled; return the percentage of killed ones."""
    os.environ["MUTANT_UNDER_TEST"] = ""
    tests_of = json.loads(Path("mutmut-stats.json").read_text())["tests_by_mangled_function_name"]
    files = sorted({test.partition("::")[0] for tests in tests_of.values() for test in tests})
    with Path(os.devnull).open("w") as null, redirect_stdout(null):
        pytest.main(["--collect-only", *PYTEST, *files])
    total = Counter[str]()
    for meta in sorted(Path("gazette_spark").rglob("*.meta")):
        survivors, outcomes = [], Counter[str]()
        for mutant in draw(meta.with_suffix(""), number, seed):
            # Examples run before searches: most mutants die in the first second.
            tests = tests_of.get(mutant.rpartition("__mutmut_")[0], [])
            outcome = run(mutant, sorted(tests, key=lambda test: ("/property/" in test, test)))
            outcomes[outcome] += 1
            if outcome not in KILLED:
                survivors.append(f"    {outcome}: {mutant}")
        if outcomes:
            counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
            sys.stdout.write("\n".join([f"{meta.name.removesuffix('.py.meta')}: {counts}", *survivors, ""]))
            sys.stdout.flush()
        total += outcomes
    return 100 * sum(total[outcome] for outcome in KILLED) / total.total()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mutants", type=int, default=30, help="number of mutants of each module")
    parser.add_argument("--seed", type=int, default=31, help="seed of the draw")
    parser.add_argument("--fail-under", type=float, default=0, help="least percentage of killed mutants")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        score = run_all(arguments.mutants, arguments.seed)
        sys.exit(f"killed {score:.0f} %" if score < arguments.fail_under else 0)
    tree = ROOT / ".cache" / "mutation"
    shutil.rmtree(tree, ignore_errors=True)
    copy_tree(tree)
    # All mutants get the same examples: under CI, Hypothesis derives them from a test's name and stores none.
    environment = {**os.environ, "CI": "1", "PYTHONHASHSEED": "0", "PYTHONPATH": ""}
    # mutmut refuses a mutant that does not exist. By then, it has created all others and run the tests once.
    command = ["mutmut", "run", "--max-children", "1", "none"]
    with (tree / "mutmut.log").open("w") as log:
        subprocess.run(command, cwd=tree, env=environment, stdout=log, stderr=log, check=False)
    if not (tree / "mutants" / "mutmut-stats.json").exists():
        sys.exit(f"mutmut did not run the tests: see {log.name}")
    command = [sys.executable, "-m", "tests.rig.mutation", "--here", *sys.argv[1:]]
    sys.exit(subprocess.run(command, cwd=tree / "mutants", env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
