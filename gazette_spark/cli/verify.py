"""Implements ``gazette-spark verify``, which proves that a table matches its journals and ledger."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gazette_spark._delta.java_errors import first_line
from gazette_spark._ledger.iceberg_reader import TableName
from gazette_spark.cli.doctor import find_java, no_java
from gazette_spark.cli.journal_options import (
    Connect,
    broker_options,
    interrupted_by_signals,
    make_connect,
    record_options,
)
from gazette_spark.cli.main import one_line
from gazette_spark.cli.offsets import checked_location
from gazette_spark.cli.output import format_option, text_table
from gazette_spark.errors import GazetteError, InputError, MissingPackageError, OptionError
from gazette_spark.progress import of_spark, progress
from gazette_spark.spark_start import log_tail, starting_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gazette_spark._verify.verify import Report

log = logging.getLogger(__name__)

DIFFERENT, NOT_VERIFIED = 1, 3
"""Exit codes. Code 2 means wrong usage."""

NEEDS = "Java 17 or 21, and Delta's jars from Maven Central or SPARK_DIST_CLASSPATH; try gazette-spark doctor"
"""Requirements of a local session."""

IDENTITIES = {
    "BROKER_AUTH_KEYS": "auth.keysSecret",
    "BROKER_AUTH_TOKEN_FILE": "auth.tokenFile",
    "BROKER_AUTH_TOKEN": "auth.token",
}
"""Variables with the command's credentials, of which the first applies, and the source's options for them."""

PEM_FILES = {
    "BROKER_TRUSTED_CA_FILE": "tls.ca",
    "BROKER_CERT_FILE": "tls.cert",
    "BROKER_CERT_KEY_FILE": "tls.keySecret",
}
"""Variables that name files, and the source's options for their contents."""

COMPARED = {
    "counts": "compared by number only",
    "offsets": "compared by offset, not by bytes",
    "bytes": "compared by offset and bytes",
}
"""Text in the verdict for each depth of the comparison."""


@click.command()
@click.argument("table")
@broker_options
@click.option(
    "--app-id", default=None, help="Verify one writer. Default: all writers in the table's history."
)
@click.option("--entries-only", is_flag=True, help="Check the ledger only; read neither journals nor rows.")
@click.option(
    "--allow-gone",
    is_flag=True,
    help="Accept bytes that journals no longer have: list them, and verify the rest.",
)
@click.option(
    "--allow-unclaimed",
    is_flag=True,
    help="Accept rows of other sources, and from before an adopted ledger: list them, and verify the rest.",
)
@click.option(
    "--dead-letters",
    multiple=True,
    metavar="NAME=LOCATION",
    help="Location of a dead letter table that the ledger names by its catalog name. Repeatable.",
)
@click.option(
    "--spark",
    "in_spark",
    is_flag=True,
    help="Compare in a local Spark session even if the table is small.",
)
@click.option(
    "--remote",
    default=None,
    metavar="URL",
    help="Compare on a Spark Connect server, such as sc://host:15002.",
)
@click.option(
    "--conf",
    multiple=True,
    metavar="KEY=VALUE",
    help="Setting of the local Spark session, such as spark.master. Repeatable; implies --spark.",
)
@record_options
@click.option(
    "--uuid-path", default=None, help="The query's option uuidPath, for a table of committed messages."
)
@click.option(
    "--include-acks", is_flag=True, help="The query's option includeAcks, for a table of committed messages."
)
@format_option
def verify(
    *,
    table: str,
    endpoint: str,
    timeout: float,
    app_id: str | None,
    entries_only: bool,
    allow_gone: bool,
    allow_unclaimed: bool,
    dead_letters: tuple[str, ...],
    in_spark: bool,
    remote: str | None,
    conf: tuple[str, ...],
    output_format: str,
    **options: Any,  # noqa: ANN401 - values of record_options
) -> None:
    """Prove that the table TABLE holds its journals' records exactly.

    TABLE is the directory or the URL of a Delta table, or iceberg:catalog/namespace.table for an Iceberg
    table of pyiceberg's configuration.

    The command checks that the ledger's entries cover each journal without gap or overlap, except for gaps
    that they name. It reads the journals again and compares their records with the rows: by the columns
    _journal and _offset, or, including the bytes, by the columns journal, offset and value. Digests of
    entries (DeltaSink(audit=True)) are also compared, and prove rows whose bytes the journals no longer have.
    Commits without a ledger entry that may have changed rows are listed.

    Dead letters must have no row in the table. With isolationLevel=read_committed, the records are the
    committed messages. A query that filters records, or makes several rows of one record, is not exact in
    this sense.

    This process compares Iceberg tables, and Delta tables of up to 64 MiB. Larger Delta tables are compared
    by a local Spark session or, with --remote, by the executors of a Spark Connect server, which need this
    package and a connection to the brokers.

    The last line is the verdict. Exit code 0: VERIFIED. 1: DIFFERENT, with the first difference. 3: NOT
    VERIFIED: nothing differs, but some rows were not compared, or only counted; the report says which and
    why.
    """
    locations = dict(_pair(pair, "--dead-letters", "NAME=LOCATION") for pair in dead_letters)
    settings = dict(_pair(pair, "--conf", "KEY=VALUE") for pair in conf)
    if remote and settings:
        raise click.UsageError("--conf is for a local session; the server of --remote has its own settings")
    connect = make_connect(endpoint, timeout)
    # With --remote the path is on the server, and cannot be checked here.
    location = table if remote else checked_location(table)
    try:
        check_spark(remote)
        from gazette_spark._delta.delta_table import DeltaTable
        from gazette_spark._verify.driver_engine import DriverEngine, NeedsSparkError
        from gazette_spark._verify.verify import Accepted, audit, verify_table

        accepted = Accepted(allow_gone, allow_unclaimed)
        read = source_options(connect, remote=remote is not None, **options)
        with ExitStack() as stack:
            client = None if entries_only else stack.enter_context(connect())
            bar = stack.enter_context(progress("comparing rows and records"))
            report = None
            # This process compares small tables itself, because starting Spark takes longer than the
            # comparison (decision 0038).
            if not (in_spark or remote or settings):
                try:
                    engine = DriverEngine(location, read, locations)
                    report = audit(engine, client, read, app_id=app_id, accepted=accepted)
                except NeedsSparkError as reason:
                    log.info("the table is compared in Spark: %s", reason)
            elif TableName.parse(location) is not None:
                raise InputError("an Iceberg table is compared by this process; leave out Spark's options")
            if report is None:
                bar.show(starting_spark())
                spark = stack.enter_context(open_session(remote, settings))
                stack.enter_context(of_spark(spark, bar, "comparing rows and records"))
                stack.enter_context(spark_errors())
                delta = DeltaTable(path=location, table=None)
                report = verify_table(
                    spark, delta, client, read, app_id=app_id, accepted=accepted, locations=locations
                )
    except GazetteError as error:
        # An error is not a difference. Scripts must be able to distinguish a wrong table from one that could
        # not be checked.
        click.echo(f"Error: not verified: {one_line(error)}", err=True)
        raise click.exceptions.Exit(NOT_VERIFIED) from error
    if output_format == "json":
        click.echo(json.dumps(report_json(report, table), indent=2, ensure_ascii=False))
    else:
        click.echo("\n".join(report_lines(report)))
    if report.result != "verified":
        raise click.exceptions.Exit(DIFFERENT if report.difference else NOT_VERIFIED)


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise click.BadParameter(f"{text!r} is not {form}", param_hint=option)
    return name, value


def source_options(
    connect: Connect,
    *,
    remote: bool,
    framing: str | None,
    separator: str,
    quote: str,
    max_record_bytes: int,
    uuid_path: str | None,
    include_acks: bool,
) -> dict[str, str]:
    """Return the options with which executors read the journals, with the command's credentials."""
    env = connect.variables()
    options = {
        "brokerAddress": connect.endpoint,
        "sep": separator,
        "quote": quote,
        "maxRecordBytes": str(max_record_bytes),
    }
    optional = {"framing": framing, "uuidPath": uuid_path, "includeAcks": "true" if include_acks else None}
    options |= {option: text for option, text in optional.items() if text}
    # The same order as in the client, so that driver and executors have the same identity.
    if identity := next((name for name in IDENTITIES if env.get(name)), None):
        options[IDENTITIES[identity]] = env[identity]
    if remote and "auth.tokenFile" in options:
        # The server does not have this machine's files.
        options["auth.token"] = _content(options.pop("auth.tokenFile")).strip()
    # Pass the contents of files, because a Connect server does not have this machine's files.
    return options | {option: _content(env[name]) for name, option in PEM_FILES.items() if env.get(name)}


def _content(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise OptionError(path, f"a file that cannot be read: {error.strerror}", "a file") from None


def check_spark(remote: str | None) -> None:
    """Check that Spark is installed.

    Raises:
        MissingPackageError: Spark, or a package that a Spark Connect client needs, is missing.
    """
    try:
        # Imported instead of looked up, because pyspark may be installed without Spark Connect's packages.
        import_module("pyspark.sql.connect.session" if remote else "pyspark.sql")
    except ImportError as error:
        problem = f"Spark{' Connect' * bool(remote)} is not installed ({first_line(error)})"
        package = "pyspark[connect]" if remote else "gazette-spark[spark]"
        raise MissingPackageError(problem, package) from None


@contextmanager
def spark_errors() -> Iterator[None]:
    """Replace Spark's errors by errors with their first line.

    Raises:
        InputError: Spark could not compare the table.
    """
    from gazette_spark._delta.files import SPARK_ERRORS

    try:
        yield
    except SPARK_ERRORS as error:
        raise InputError(f"Spark could not compare the table: {first_line(error)}") from error


@contextmanager
def open_session(remote: str | None, conf: dict[str, str]) -> Iterator[SparkSession]:
    """Yield the session of a Spark Connect server, the active one, or a local one that ends afterwards."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if remote:
        try:
            session = SparkSession.builder.remote(remote).getOrCreate()
        except PySparkException as error:
            got = f"{remote}: {first_line(error)}"
            raise OptionError("--remote", got, "a Spark Connect server, such as sc://host:15002") from error
        yield session
    elif active := SparkSession.getActiveSession():
        yield active
    else:
        from gazette_spark.session import children_log_to, local_spark

        # Otherwise the launch script and PySpark report it in several lines.
        if find_java(os.environ) is None:
            raise OptionError("spark", no_java(os.environ), NEEDS)

        # Spark's log goes to a file there, and is shown only if Spark does not start.
        with interrupted_by_signals(), tempfile.TemporaryDirectory(prefix="verify-") as directory:
            log = Path(directory) / "spark.log"
            try:
                with children_log_to(log):
                    spark = local_spark(Path(directory), master="local[*]", conf=conf)
            except PySparkException as error:
                click.echo(log_tail(log), err=True)
                raise OptionError("spark", f"a JVM that does not start: {first_line(error)}", NEEDS) from None
            try:
                yield spark
            finally:
                spark.stop()


def journal_rows(report: Report) -> Iterator[dict[str, object]]:
    """Yield a row for each journal of each writer."""
    for claim in report.claims:
        records = report.records.get(claim.journal)
        yield {
            "app_id": claim.app_id,
            "journal": claim.journal,
            "begin": claim.start,
            "end": claim.end,
            "commits": len(claim.spans),
            "records": records,
            # Dead letters are only counted together with the records.
            "dead_letters": None if records is None else report.dead.get(claim.journal, 0),
        }


def lost_rows(report: Report) -> Iterator[dict[str, object]]:
    """Yield a row for each gap that entries name, and for other ranges of bytes that are gone."""
    # A gap in the ledger was known when the batch was written. Bytes that are only missing now may have been
    # read then.
    recorded_gaps = [(claim.journal, *gap, True) for claim in report.claims for gap in claim.gaps]
    gone = [(*span, False) for span in report.gone]
    for journal, begin, end, recorded in sorted(recorded_gaps + gone):
        yield {"journal": journal, "begin": begin, "end": end, "bytes": end - begin, "recorded": recorded}


def report_lines(report: Report) -> Iterator[str]:
    """Yield the report's lines for people; the last one is the verdict."""
    if rows := list(journal_rows(report)):
        yield text_table(rows, ["app_id", "journal", "begin", "end", "commits", "records"])
    if lost := list(lost_rows(report)):
        yield "\nBytes that are gone: in the ledger (recorded), or only now missing in the journal:"
        yield text_table(lost, ["journal", "begin", "end", "bytes", "recorded"])
    for tiling in report.tilings:
        if tiling.cleaned_up:
            yield f"app id {tiling.app_id!r}: Delta's log no longer has its first entries"
    words = {"nothing": "not at all", "counts": "by count", "entry": "with their entry"}
    uneven: list[dict[str, object]] = [
        asdict(part) | {"compared": words.get(part.depth, f"by {part.depth}")}
        for part in report.ranges
        # The report states the depth of the comparison; only ranges that differ from it are listed.
        if part.reason or part.depth != report.depth
    ]
    if uneven:
        yield "\nOffsets whose rows were not compared like the rest:"
        yield text_table(uneven, ["app_id", "journal", "begin", "end", "compared", "reason"])
    if report.others:
        yield "\nCommits without a ledger entry that may have changed rows:"
        # Not necessarily an error: an intended DELETE is such a commit, too. The reader of the report knows
        # which were intended.
        yield from (f"  {commit}" for commit in report.others)
    if report.difference:
        yield f"DIFFERENT: {report.difference}"
        return
    compared = f"table version {report.table_version}"
    if report.depth == "entries":
        entries = sum(tiling.entries for tiling in report.tilings)
        cover = "ledger entry covers" if entries == 1 else "ledger entries cover"
        yield f"{entries:,} {cover} the journals without gap or overlap."
        compared = f"the ledger of {compared}; no row was compared"
    else:
        records, dead = sum(report.records.values()), sum(report.dead.values())
        once = "" if report.depth == "counts" else ", each once"
        as_dead = f", {dead:,} of them in a dead letter table" if dead else ""
        noun = "record" if records == 1 else "records"
        compared = f"{records:,} {noun}{once}{as_dead}; {compared}, {COMPARED[report.depth]}"
    if report.audited:
        yield f"{report.audited:,} ranges have the rows and digests that their entries state."
    if report.unproven:
        yield f"No difference was found in what was compared: {compared}."
        yield f"NOT VERIFIED: {'; '.join(report.unproven)}"
    else:
        but = ", but for the offsets listed" if any(part.accepted for part in report.ranges) else ""
        yield f"VERIFIED{but}: {compared}."


def report_json(report: Report, table: str) -> dict[str, Any]:
    """Return the report's JSON for programs."""
    return {
        "table": table,
        "table_version": report.table_version,
        "result": report.result,
        "verified": report.result == "verified",
        "compared": report.depth,
        "not_verified": report.unproven,
        "difference": report.difference and asdict(report.difference),
        "writers": [
            {
                "app_id": tiling.app_id,
                "entries": tiling.entries,
                "first_entries_cleaned_up": tiling.cleaned_up,
                "commits": [
                    {"table_version": version, "rows": report.appended.get(version)}
                    for version in sorted(
                        {span.table_version for claim in tiling.claims for span in claim.spans}
                    )
                ],
            }
            for tiling in report.tilings
        ],
        "journals": list(journal_rows(report)),
        "ranges": [asdict(part) for part in report.ranges],
        "gone": list(lost_rows(report)),
        "audited": report.audited,
        "commits_of_others": [asdict(commit) for commit in report.others],
    }
