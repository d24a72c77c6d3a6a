"""``gazette-spark journals`` for operators: ``prune``, ``suspend``, ``reset-head``, ``store-health``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from gazette_spark.cli.journal_fragments import for_people
from gazette_spark.cli.journal_options import (
    Connect,
    Interrupts,
    chosen_journals,
    is_fully_suspended,
    target_selector_option,
)
from gazette_spark.cli.main import Interrupted, one_line
from gazette_spark.cli.output import Printer, output_option
from gazette_spark.errors import GazetteError
from gazette_spark.progress import counted, progress

if TYPE_CHECKING:
    from gazette_spark.client import Client
    from gazette_spark.client.listing.upkeep import Pruned

Decorated = TypeVar("Decorated", bound=Callable[..., object])


def pruning_options(command: Decorated) -> Decorated:
    """Add the options of commands that delete fragments."""
    dry_run = click.option("--dry-run", is_flag=True, help="Show the fragments, and delete nothing.")
    root = click.option(
        "--file-root",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=None,
        help="Directory of file:/// stores on this machine. Required to delete.",
    )
    return dry_run(root(output_option("table", "json", "jsonl")(command)))


def check_root(*, dry_run: bool, file_root: Path | None) -> None:
    """Refuse to delete where nobody has said where the files are."""
    if not dry_run and file_root is None:
        raise click.UsageError("say where the files are, by --file-root, or --dry-run")


@click.command()
@target_selector_option
@pruning_options
@click.pass_obj
def prune(connect: Connect, selector: str, dry_run: bool, file_root: Path | None, printer: Printer) -> None:
    """Delete stored fragments that are past their retention.

    Journals without a retention keep all fragments. If fragments overlap, brokers list the largest only, so a
    later prune may find more. The command prunes file:// stores only: other stores have their own rules.
    """
    from gazette_spark.client.listing import upkeep

    check_root(dry_run=dry_run, file_root=file_root)
    with connect() as client:
        aged = [
            each
            for spec in chosen_journals(client, None, selector)
            if not is_fully_suspended(spec)
            for each in upkeep.find_aged(client, spec, now=time.time())
        ]
    remove_fragments(aged, None if dry_run else file_root, printer)


def remove_fragments(fragments: Iterable[Pruned], file_root: Path | None, printer: Printer) -> None:
    """Delete fragments, or with no root only show them; a line for each."""
    rows: list[dict[str, object]] = []
    interrupted = False
    found = list(fragments)
    with progress("pruning", len(found)) as bar, Interrupts() as interrupts:
        try:
            for each in counted(found, bar):
                with interrupts.held():
                    rows.append(_removed(each, file_root))
        except KeyboardInterrupt:
            interrupted = True
    shown = [for_people(row) for row in rows] if printer.format == "table" else rows
    printer.rows(shown, ["journal", "begin", "end", "bytes", "mod_time", "done", "file"])
    if failed := [row for row in rows if row["problem"]]:
        problem = f"{failed[0]['problem']}"
        raise click.ClickException(f"{len(failed)} fragments were not removed; the first: {problem}")
    if interrupted:
        raise Interrupted(
            f"interrupted after {len(rows)} of {len(found)} fragments; run it again for the rest"
        )


def _removed(pruned: Pruned, file_root: Path | None) -> dict[str, object]:
    from gazette_spark.client.listing import upkeep

    done, problem = "would remove", ""
    try:
        if file_root is not None:
            done = "removed" if upkeep.remove_fragment(pruned, file_root) else "was gone"
    except GazetteError as error:
        done, problem = "kept", str(error)
    fragment = pruned.fragment
    return {
        "journal": fragment.journal,
        "begin": fragment.begin,
        "end": fragment.end,
        "bytes": fragment.length,
        "mod_time": fragment.mod_time,
        "done": done,
        "file": pruned.url,
        "problem": problem,
    }


@click.command()
@target_selector_option
@click.option(
    "--force", "-f", is_flag=True, help="Store all bytes first, so that the journal can be suspended."
)
@output_option("table", "json", "jsonl")
@click.pass_obj
def suspend(connect: Connect, selector: str, force: bool, printer: Printer) -> None:
    """Suspend idle journals, which then need fewer brokers.

    The next append resumes a journal. Empty journals are suspended fully. Others are suspended partially,
    once all their bytes are stored. With --force, a second call may be needed after that.
    """

    def one(client: Client, name: str) -> str:
        from gazette_spark.client.listing import upkeep

        return "suspended" if upkeep.suspend_journal(client, name, force=force) else "left as it is"

    for_each(connect, selector, one, printer)


@click.command("reset-head")
@target_selector_option
@output_option("table", "json", "jsonl")
@click.pass_obj
def reset_head(connect: Connect, selector: str, printer: Printer) -> None:
    """Move write heads back to the end of the stored bytes.

    Use it after brokers have lost bytes, for journals whose appends fail with INDEX_HAS_GREATER_OFFSET. Wait
    until brokers have stored what they can: bytes stored later would have offsets that were given again. The
    command does no harm to other journals.
    """

    def one(client: Client, name: str) -> str:
        from gazette_spark.client.listing import upkeep

        head = upkeep.reset_head(client, name)
        return "raced by an append" if head is None else f"head at {head}"

    for_each(connect, selector, one, printer)


def for_each(connect: Connect, selector: str, work: Callable[[Client, str], str], printer: Printer) -> None:
    """Do something to each journal that is not fully suspended, whether or not it fails for others."""
    rows: list[dict[str, object]] = []
    problems: list[str] = []
    with connect() as client:
        for spec in chosen_journals(client, None, selector):
            try:
                done = "suspended fully: skipped" if is_fully_suspended(spec) else work(client, spec.name)
            except GazetteError as error:
                done = "failed"
                problems.append(" ".join(str(error).split()))
            rows.append({"journal": spec.name, "done": done})
    printer.rows(rows, ["journal", "done"])
    if problems:
        raise click.ClickException("; ".join(problems))


@click.command("store-health")
@click.argument("store")
@click.option(
    "--check-delete-prefix",
    default=None,
    metavar="PATH",
    help="Also delete, below this path of the store; it ends in '/', and '' is the store's top.",
)
@click.pass_obj
def store_health(connect: Connect, store: str, check_delete_prefix: str | None) -> None:
    """Have the broker write, read and list a fragment store.

    STORE is its URL, such as s3://bucket/prefix/. The embedded broker keeps the fragments of all stores in
    directories, so this command lists a bucket itself, with the credentials of its environment.

    Exit code 1: the store is not healthy, or could not be tried.
    """
    with connect() as client:
        problem, tried = try_store(client, store, check_delete_prefix)
    if problem:
        raise click.ClickException(f"fragment store {store} is unhealthy: {problem}")
    click.echo(f"fragment store {store} is healthy: {tried}")


def try_store(client: Client, store: str, check_delete_prefix: str | None = None) -> tuple[str, str]:
    """Have a broker try a fragment store, and list a bucket from here that the broker cannot try.

    Returns:
        The problem, empty for a healthy store; and what was tried.
    """
    health = client.store_health(store, check_delete_prefix=check_delete_prefix)
    if not health.is_healthy:
        return " ".join(health.problem.split()), ""
    deleted = "" if check_delete_prefix is None else ", and deleted another"
    tried = f"the broker wrote, read and listed an object{deleted}"
    if not health.tried_directory:
        return "", tried
    from gazette_spark.store.files import check_bucket

    instead = f"the broker keeps its fragments in {health.tried_directory}"
    try:
        check_bucket(store)
    except GazetteError as error:
        return f"{instead}, and from this machine {one_line(error)}", ""
    return "", f"it was listed from this machine; {instead}, where {tried}"
