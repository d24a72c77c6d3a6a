"""Implements ``gazette-spark doctor``, which checks what a query needs and says how to fix problems."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gazette_spark.cli.journal_options import Connect, broker_options, make_connect
from gazette_spark.cli.main import one_line
from gazette_spark.cli.output import format_option
from gazette_spark.errors import AuthError, GazetteError, ProtocolError, TlsError
from gazette_spark.locations import masked_url
from gazette_spark.progress import progress
from pyspark_gazette.worker_python import COMMAND

if TYPE_CHECKING:
    from gazette_spark.client import Client

MIN_PYTHON = (3, 11)

JAVA_VERSIONS = (17, 21)

# pyspark-client is only Spark Connect, without the JVM's jars.
SPARK = ("pyspark", "pyspark-client", "delta-spark")
"""Packages of Spark and Delta."""

STORES_TRIED = 3
"""Maximum number of stores that the broker tries if the user names none."""

AHEAD_S = 60
"""Maximum time by which a stored fragment may be ahead of this machine's clock, in seconds."""

STATES = {"ok": "OK", "problem": "PROBLEM", "skipped": "-"}


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check."""

    check: str
    state: str
    """Outcome: ``ok``, ``problem`` or ``skipped``."""
    text: str
    remedy: str = ""
    """Solution of the problem."""


Check = Callable[[], Iterator[Finding]]


# A broker that does not answer is a finding. The user should not wait long for it.
@click.command(context_settings={"default_map": {"timeout": 10.0}})
@broker_options
@click.option(
    "--store",
    "stores",
    multiple=True,
    metavar="URL",
    help="Fragment store or object store to test. Repeatable.",
)
@format_option
def doctor(*, endpoint: str, timeout: float, stores: tuple[str, ...], output_format: str) -> None:
    """Check Python, Java, Spark, Delta, the native decoder, the broker, clock, TLS, token and stores.

    Each line is OK, a problem with its solution, or "-" for a check that is optional or was not made. The
    exit code is 1 if there is a problem.
    """
    connect = make_connect(endpoint, timeout)
    findings: list[Finding] = []
    with progress("checking") as bar:
        for name, check in checks(connect, stores):
            bar.show(f"checking {name}")
            findings += check()
    if output_format == "json":
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False))
    else:
        click.echo("\n".join(lines(findings)))
    if any(finding.state == "problem" for finding in findings):
        raise click.exceptions.Exit(1)


def checks(connect: Connect, stores: Sequence[str]) -> Iterator[tuple[str, Check]]:
    """Yield the checks. Each may depend on the ones before it."""
    yield "Python", lambda: check_python(sys.version_info[:3], sys.executable, os.environ)
    # The lag monitor is also installed on machines without Spark.
    if _version("uvicorn") and not any(map(_version, SPARK)):
        text = "not installed; queries need it, but the lag monitor does not"
        yield "Spark", lambda: iter([Finding("spark", "skipped", text)])
    else:
        yield "Java", lambda: check_java(os.environ)
        yield "Spark", check_spark
    yield "native decoder", check_native
    yield "token", lambda: check_token(connect.variables(), time.time())
    yield "broker", lambda: check_broker(connect, stores)


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the lines for people."""
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        yield f"{STATES[finding.state]:<8} {finding.check:<{width}}  {finding.text}"
        if finding.remedy:
            yield f"{'':<8} {'':<{width}}  -> {finding.remedy}"


def check_python(version: tuple[int, ...], executable: str, env: Mapping[str, str]) -> Iterator[Finding]:
    """Check the Python of this process and of Spark's workers."""
    shown = ".".join(map(str, version))
    if version < MIN_PYTHON:
        yield Finding("python", "problem", f"{shown}, {executable}", "install Python 3.11 or newer")
    else:
        yield Finding("python", "ok", f"{shown}, {executable}")
    workers = env.get("PYSPARK_PYTHON")
    if not workers:
        return
    python = Path(shutil.which(workers) or workers)
    if python.resolve().name == COMMAND:  # It runs the Python next to it.
        python = python.resolve().with_name("python")
    # Workers with another Python fail in the first task, with an error that does not name the variable.
    if environment_of(python) != environment_of(Path(executable)):
        remedy = f"export PYSPARK_PYTHON={executable}, unless that Python has gazette-spark[spark], too"
        yield Finding("workers", "problem", f"PYSPARK_PYTHON is {workers}", remedy)


def environment_of(python: Path) -> Path:
    """Return the virtual environment of a Python; outside of one, the interpreter itself."""
    # The Python of an environment is a link to the interpreter that made it, which has none of its packages.
    folders = (python.parent, python.parent.parent)
    return next((folder for folder in folders if (folder / "pyvenv.cfg").is_file()), python).resolve()


def find_java(env: Mapping[str, str]) -> Path | None:
    """Return the Java that Spark starts, from JAVA_HOME or else the first on PATH, or None."""
    home = env.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else shutil.which("java", path=env.get("PATH"))
    return Path(java) if java and Path(java).exists() else None


def no_java(env: Mapping[str, str]) -> str:
    """Return the problem text for a missing Java."""
    home = env.get("JAVA_HOME")
    return f"no Java {f'in JAVA_HOME ({home})' if home else 'on PATH'}"


def check_java(env: Mapping[str, str]) -> Iterator[Finding]:
    """Check that Java is installed, and its version."""
    remedy = "install a JRE of version 17 or 21, and set JAVA_HOME to it"
    java = find_java(env)
    if java is None:
        yield Finding("java", "problem", no_java(env), remedy)
        return
    try:
        command = [str(java), "-version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        # Java prints its version to stderr, after a line for each variable that has options, such as
        # JAVA_TOOL_OPTIONS in a container.
        printed = (done.stderr or done.stdout).strip().splitlines() or [""]
        said = next((line for line in printed if 'version "' in line), printed[0]).strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("java", "problem", f"{java} does not run: {error}", remedy)
        return
    version = re.search(r'version "(\d+)', said)
    good = version is not None and int(version[1]) in JAVA_VERSIONS
    yield Finding("java", "ok" if good else "problem", f"{said}, {java}", "" if good else remedy)


def check_spark() -> Iterator[Finding]:
    """Check that Spark and Delta are installed in compatible releases."""
    install = "pip install 'gazette-spark[spark]'"
    versions = {name: _version(name) for name in SPARK}
    spark = versions["pyspark"] or versions["pyspark-client"]
    if spark is None:
        yield Finding("spark", "problem", "pyspark is not installed", install)
    else:
        yield Finding("spark", "ok", spark)
    delta = versions["delta-spark"]
    if delta is None:
        yield Finding("delta", "problem", "delta-spark is not installed, so that only reading works", install)
        return
    # pip checked this when it installed Delta, but a later installation of pyspark may have broken it.
    needed = delta_needs(metadata.requires("delta-spark") or [])
    if spark is not None and needed is not None and not fits(spark, needed):
        text = f"{delta} needs pyspark {needed}, but pyspark {spark} is installed"
        yield Finding("delta", "problem", text, f"{install}, which installs compatible releases")
        return
    yield Finding("delta", "ok", delta)


def check_native() -> Iterator[Finding]:
    """Check whether the native JSON decoder is installed. It is optional, so its absence is not a problem."""
    from gazette_spark._formats.library import library

    loaded = library()
    if loaded.functions is not None:
        yield Finding("native", "ok", f"JSON decoder {loaded.version} is loaded")
    else:
        text = f"JSON decoder: {loaded.absence}. JSON is read without it, at a fourth of the speed"
        yield Finding("native", "skipped", text)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def delta_needs(requirements: Sequence[str]) -> str | None:
    """Return the releases of Spark that Delta's package requires.

    >>> delta_needs(["importlib-metadata>=1.0.0", "pyspark<4.3.0,>=4.2.0"])
    '<4.3.0,>=4.2.0'
    """
    matches = (re.match(r"pyspark\s*\(?([<>=!~][^;)]*)", requirement) for requirement in requirements)
    return next((match[1].strip() for match in matches if match), None)


def fits(version: str, needed: str) -> bool:
    """Return whether a release satisfies the bounds, which may use ``<``, ``<=``, ``>``, ``>=`` and ``==``.

    >>> fits("4.2.0", "<4.3.0,>=4.2.0"), fits("4.1.3", "<4.3.0,>=4.2.0")
    (True, False)
    """
    here = _numbers(version)
    compared = {
        "<": lambda bound: here < bound,
        "<=": lambda bound: here <= bound,
        ">": lambda bound: here > bound,
        ">=": lambda bound: here >= bound,
        "==": lambda bound: here == bound,
    }
    bounds = (re.fullmatch(r"\s*(<=|>=|==|<|>)\s*([\d.]+)\s*", bound) for bound in needed.split(","))
    return all(compared[bound[1]](_numbers(bound[2])) for bound in bounds if bound)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def check_token(env: Mapping[str, str], now_s: float) -> Iterator[Finding]:
    """Check how long the token is valid, if there is one. Only times are shown."""
    if env.get("BROKER_AUTH_KEYS"):
        yield Finding("token", "ok", "signed for each call with BROKER_AUTH_KEYS")
        return
    token, source = env.get("BROKER_AUTH_TOKEN") or "", "BROKER_AUTH_TOKEN"
    if path := env.get("BROKER_AUTH_TOKEN_FILE"):
        source = path
        try:
            token = Path(path).read_text().strip()
        except OSError as error:
            remedy = "write the token there, or correct --auth-token-file or BROKER_AUTH_TOKEN_FILE"
            yield Finding("token", "problem", f"{path} cannot be read: {error.strerror}", remedy)
            return
    if not token:
        yield Finding("token", "skipped", "none is set; set BROKER_AUTH_TOKEN if the cluster requires one")
        return
    import jwt

    try:
        # Not verified, because only the broker has the key, and only the time is shown.
        expires_s = jwt.decode(token, options={"verify_signature": False}).get("exp")
    except jwt.PyJWTError:
        remedy = "copy the whole token: three parts separated by dots"
        yield Finding("token", "problem", f"{source} is not a token", remedy)
        return
    if not isinstance(expires_s, int | float):
        yield Finding("token", "ok", f"{source}, which does not expire")
    elif expires_s <= now_s:
        remedy = "request a new one; the file of the option auth.tokenFile is read again when it changes"
        yield Finding("token", "problem", f"{source} expired {now_s - expires_s:,.0f} s ago", remedy)
    else:
        yield Finding("token", "ok", f"{source}, valid for {expires_s - now_s:,.0f} s more")


def check_broker(connect: Connect, stores: Sequence[str]) -> Iterator[Finding]:
    """Check that the broker answers, its TLS, the clock, and the stores of its journals."""
    began = time.monotonic()
    try:
        with connect() as client:
            journals = client.list_journals()
            took_ms = (time.monotonic() - began) * 1000
            count = f"{len(journals)} journal{'s'[: len(journals) != 1]}"
            yield Finding("broker", "ok", f"{connect.endpoint}: {count}, in {took_ms:.0f} ms")
            secure = connect.endpoint.startswith("https://")
            plain = "the connection is not encrypted: http://"
            yield Finding(
                "tls", "ok" if secure else "skipped", "the connection is encrypted" if secure else plain
            )
            yield from check_clock(
                client, [journal.spec.name for journal in journals[:STORES_TRIED]], time.time()
            )
            # Most journals share a store. Each store is tried once, because the broker has to call it.
            used = sorted({store for journal in journals for store in journal.spec.fragment.stores})
            yield from check_stores(client, stores, used[:STORES_TRIED])
    except click.UsageError as error:
        remedy = "correct the option; the broker was not called"
        yield Finding("broker", "problem", error.message, remedy)
    except TlsError as error:
        remedy = "give --tls-ca-file the authority that signed the broker's certificate; http:// has no TLS"
        yield Finding("tls", "problem", one_line(error), remedy)
    except AuthError as error:
        remedy = "request a token that allows LIST, and set BROKER_AUTH_TOKEN or give --auth-token-file"
        yield Finding("broker", "problem", one_line(error), remedy)
    except GazetteError as error:
        remedy = "start one with `gazette-spark broker serve`, or give --broker or BROKER_ADDRESS its URL"
        yield Finding("broker", "problem", one_line(error), remedy)


def check_clock(client: Client, journals: Sequence[str], now_s: float) -> Iterator[Finding]:
    """Check that no stored fragment is from the future, because tokens, retention and lag use the clock."""
    newest = 0
    for name in journals:
        try:
            times = [listed.fragment.mod_time for listed in client.list_fragments(name)]
        except GazetteError as error:
            # The broker has answered other calls, so one journal that fails is not a problem of the broker.
            yield Finding("clock", "skipped", f"fragments cannot be listed: {one_line(error)}")
            return
        # Only the newest fragment can be ahead of the clock.
        newest = max([newest, *times])
    if newest > now_s + AHEAD_S:
        text = f"this clock is {newest - now_s:,.0f} s behind the newest stored fragment"
        yield Finding("clock", "problem", text, "set the clock by NTP, here and on the brokers")
    elif newest:
        yield Finding("clock", "ok", "not behind the newest stored fragment")
    else:
        yield Finding("clock", "skipped", "no stored fragment has a time of the brokers")


def check_stores(client: Client, named: Sequence[str], used: Sequence[str]) -> Iterator[Finding]:
    """Let the broker try fragment stores, and let two writers commit to the stores that the user names.

    Args:
        client: Client of the broker.
        named: Stores that the user names.
        used: Stores of journals, which are tried if the user names none.
    """
    stores = named or used
    if not stores:
        yield Finding("store", "skipped", "no journal has a store; name one with --store")
    remedy = "create the store, or give brokers and this machine access to it"
    for store in stores:
        try:
            problem, tried = try_store(client, store)
        except ProtocolError as error:
            problem = f"{masked_url(store)}: {error.problem}"
            yield Finding("store", "problem", problem, "correct the URL; no store was called")
            continue
        except GazetteError as error:
            yield Finding("store", "problem", f"{masked_url(store)}: {one_line(error)}", remedy)
            continue
        state = "problem" if problem else "ok"
        yield Finding("store", state, f"{masked_url(store)}: {problem or tried}", remedy if problem else "")
        # Only stores that the user names, because two writers create files there for a moment. A directory
        # has no conditional puts to test.
        if store in named and not problem and not store.startswith("file:"):
            yield check_commits(store)


def check_commits(store: str) -> Finding:
    """Let two writers commit to a store at once, because not every S3 server accepts exactly one of them."""
    from gazette_spark._data_files.commit_race import COMMITS, lost_commits

    shown = masked_url(store)
    try:
        lost = lost_commits(store)
    except OSError as error:
        remedy = "give this machine access to the store"
        problem = f"{shown}: two writers could not commit: {one_line(str(error))}"
        return Finding("commits", "problem", problem, remedy)
    race = f"{shown}: of {COMMITS} commits by two writers at once"
    if lost:
        remedy = "use a store that honours If-None-Match, or let only one program write each table"
        return Finding("commits", "problem", f"{race}, {lost} were overwritten", remedy)
    return Finding("commits", "ok", f"{race}, none was lost")


def try_store(client: Client, store: str) -> tuple[str, str]:
    """Let a broker try a fragment store. If the broker does not use the bucket itself, list it from here.

    Returns:
        The problem, which is empty for a healthy store, and what was tried.
    """
    health = client.store_health(store)
    if not health.is_healthy:
        return " ".join(health.problem.split()), ""
    tried = "the broker wrote, read and listed an object"
    if not health.tried_directory:
        return "", tried
    from gazette_spark._planning.stores import check_bucket

    instead = f"the broker keeps its fragments in {health.tried_directory}"
    try:
        check_bucket(store)
    except GazetteError as error:
        return f"{one_line(error)} (listed from this machine, because {instead})", ""
    return "", f"it was listed from this machine; {instead}, where {tried}"
