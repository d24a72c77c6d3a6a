"""Builds and validates journal names and specs.

Brokers have no defaults: a spec without replication, fragment length, codec or refresh interval is
invalid. :func:`journal_spec` has defaults that suit a development broker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import SplitResult, urlsplit

from google.protobuf.duration_pb2 import Duration

from gazette_spark.errors import ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.durations import duration_of
from gazette_spark.protocol.labels import label_set, validate_journal_labels
from gazette_spark.protocol.names import validate_path

JOURNAL_NAME_BYTES = (4, 512)
"""Minimum and maximum length of a journal's name."""
MAX_OFFSET = (1 << 63) - 1
"""Maximum offset of a journal."""
META_BYTES = (1, 512)
"""Minimum and maximum length of the suffix after a name's ``;``."""
REPLICATION = (1, 5)
"""Minimum and maximum number of replicas."""
FRAGMENT_LENGTH = (1 << 10, 1 << 34)
"""Minimum and maximum fragment length, in bytes."""
REFRESH_INTERVAL_S = (1, 24 * 3600)
"""Minimum and maximum interval between listings of the stores, in seconds."""
MIN_FLUSH_INTERVAL_S = 60
"""Minimum flush interval other than zero, in seconds."""

_NO_URL = re.compile(r"[\x00-\x1f\x7f]|%(?![0-9a-fA-F]{2})")
"""Text that makes a URL invalid: control characters, which ``urlsplit`` drops, and invalid escapes."""

ARGUMENTS = {
    "fragment.length": "length",
    "fragment.compression_codec": "codec",
    "fragment.stores": "stores",
    "fragment.refresh_interval": "refresh_interval_s",
    "fragment.flush_interval": "flush_interval_s",
    "fragment.path_postfix_template": "path_postfix_template",
}
"""Fields of a spec and the arguments of :func:`journal_spec` that set them, where the names differ."""

_BUCKET_SCHEMES = frozenset({"s3", "gs", "azure"})


def split_meta(name: str) -> tuple[str, str]:
    """Split a name into the journal's name and the metadata suffix, which is empty or begins with ``;``."""
    journal, delimiter, meta = name.partition(";")
    return journal, delimiter + meta


def validate_journal_name(name: str, allow_meta: bool = False, where: str = "Journal") -> None:  # noqa: FBT001, FBT002 - reads well where it is used
    """Raise ProtocolError unless ``name`` is a journal name, with a ``;meta`` suffix only if allowed."""
    journal, meta = split_meta(name)
    validate_path(where, journal, *JOURNAL_NAME_BYTES)
    if not meta:
        return
    if not allow_meta:
        raise ProtocolError(where, f"cannot have a metadata suffix: {name!r}")
    validate_path(f"{where}.Meta", meta[1:], *META_BYTES)


@contextmanager
def named_as(arguments: Mapping[str, str]) -> Iterator[None]:
    """Name the caller's argument, instead of the spec's field, in errors.

    Raises:
        ProtocolError: replaces an error whose ``where`` begins with a field.
    """
    try:
        yield
    except ProtocolError as error:
        # An index, as in stores[1], stays after the name.
        field, at, rest = error.where.removeprefix(".").partition("[")
        raise ProtocolError(f"{arguments.get(field, field)}{at}{rest}", error.problem) from None


def journal_spec(
    name: str,
    *,
    labels: Mapping[str, str | Iterable[str]] | pb.LabelSet | None = None,
    replication: int = 1,
    length: int = 16 << 20,
    codec: str = "SNAPPY",
    stores: Sequence[str] = ("file:///",),
    refresh_interval_s: float = 60,
    flush_interval_s: float = 0,
    retention_s: float = 0,
    path_postfix_template: str = "",
    flags: int = pb.JournalSpec.NOT_SPECIFIED,
    max_append_rate: int = 0,
) -> pb.JournalSpec:
    """Return a valid spec.

    Args:
        name: name of the journal.
        labels: label set, or label values by name.
        replication: desired number of replicas.
        length: uncompressed bytes at which a fragment is closed.
        codec: name of the compression codec, such as ``GZIP``.
        stores: URLs of fragment stores; new fragments go to the first. Without stores, nothing is persisted.
        refresh_interval_s: interval between listings of the stores.
        flush_interval_s: length of uniform UTC segments whose ends close a fragment; 0 turns them off.
        retention_s: age at which fragments may be pruned; 0 keeps them.
        path_postfix_template: Go template of additional path components.
        flags: one of ``JournalSpec.Flag``.
        max_append_rate: maximum bytes per second; 0 is unlimited.

    Raises:
        ProtocolError: a value breaks a rule of specs.
    """
    if codec not in pb.CompressionCodec.keys():  # noqa: SIM118 - an enum wrapper is no container
        codecs = ", ".join(sorted(set(pb.CompressionCodec.keys()) - {"INVALID"}))
        raise ProtocolError("codec", f"{codec!r} is not one of {codecs}")
    spec = pb.JournalSpec(
        name=name,
        replication=replication,
        labels=labels if isinstance(labels, pb.LabelSet) else label_set(labels or {}),
        fragment=pb.JournalSpec.Fragment(
            length=length,
            compression_codec=codec,
            stores=stores,
            refresh_interval=duration_of(refresh_interval_s, "refresh_interval_s"),
            retention=duration_of(retention_s, "retention_s"),
            flush_interval=duration_of(flush_interval_s, "flush_interval_s"),
            path_postfix_template=path_postfix_template,
        ),
        flags=flags,
        max_append_rate=max_append_rate,
    )
    with named_as(ARGUMENTS):
        validate_journal_spec(spec, "")
    return spec


def validate_journal_spec(spec: pb.JournalSpec, where: str = "JournalSpec") -> None:
    """Raise ProtocolError unless brokers would accept the spec.

    An error names a field as in messages and YAML, such as ``JournalSpec.fragment.length``.

    A path postfix template is only checked for balanced braces, because only Go can parse it.
    """
    validate_journal_name(spec.name, where=f"{where}.name")
    _check_range(f"{where}.replication", spec.replication, *REPLICATION)
    validate_journal_labels(spec.labels, f"{where}.labels")
    fragment, of_fragment = spec.fragment, f"{where}.fragment"
    _check_range(f"{of_fragment}.length", fragment.length, *FRAGMENT_LENGTH)
    validate_codec(fragment.compression_codec, f"{of_fragment}.compression_codec")
    stores = [validate_store(url, f"{of_fragment}.stores[{at}]") for at, url in enumerate(fragment.stores)]
    offloads = fragment.compression_codec == pb.GZIP_OFFLOAD_DECOMPRESSION
    # With this codec, the store's HTTP server decompresses, and a file store has no server. Only the first
    # store matters, because new fragments go there.
    if offloads and stores and stores[0].scheme == "file":
        raise ProtocolError(
            f"{of_fragment}.compression_codec",
            f"GZIP_OFFLOAD_DECOMPRESSION needs a store that decompresses, got {fragment.stores[0]!r} first",
        )
    refresh_s, flush_s = _seconds(fragment.refresh_interval), _seconds(fragment.flush_interval)
    _check_range(f"{of_fragment}.refresh_interval", refresh_s, *REFRESH_INTERVAL_S, unit=" s")
    # Each interval closes a fragment, so a shorter one would fill the store with small files.
    if flush_s != 0 and flush_s < MIN_FLUSH_INTERVAL_S:
        raise ProtocolError(f"{of_fragment}.flush_interval", f"must be 0 or at least 60 s, got {flush_s:g} s")
    template = fragment.path_postfix_template
    if template.count("{{") != template.count("}}"):
        raise ProtocolError(f"{of_fragment}.path_postfix_template", f"unbalanced braces in {template!r}")
    if spec.flags not in pb.JournalSpec.Flag.values():
        raise ProtocolError(
            f"{where}.flags", f"must be one of {pb.JournalSpec.Flag.items()}, got {spec.flags}"
        )
    if spec.max_append_rate < 0:
        raise ProtocolError(f"{where}.max_append_rate", f"must be at least 0, got {spec.max_append_rate}")
    if spec.suspend.level not in pb.JournalSpec.Suspend.Level.values():
        raise ProtocolError(f"{where}.suspend.level", f"unknown level {spec.suspend.level}")
    if spec.suspend.offset < 0:
        raise ProtocolError(f"{where}.suspend.offset", f"must be at least 0, got {spec.suspend.offset}")


def validate_codec(codec: int, where: str = "CompressionCodec") -> None:
    """Raise ProtocolError unless ``codec`` is the number of a codec; INVALID is not a codec."""
    if codec == pb.INVALID or codec not in pb.CompressionCodec.values():
        raise ProtocolError(where, f"{codec} is not the number of a codec")


def validate_store(url: str, where: str = "FragmentStore") -> SplitResult:
    """Return the parts of a fragment store's URL; raise ProtocolError unless it is well formed.

    Query arguments are not checked, because they differ between kinds of stores.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ProtocolError(where, f"{url!r} is not a URL: {error}") from None
    account, _, rest = parts.path.removeprefix("/").partition("/")
    # urlsplit drops control characters and accepts invalid escapes. Brokers use Go's parser, which refuses
    # both.
    if _NO_URL.search(url) or " " in parts.netloc:
        problem = "is not a URL"
    elif parts.scheme in _BUCKET_SCHEMES and not parts.netloc:
        problem = "lacks a bucket"
    # azure-ad://tenant/account/container/prefix/ has three parts where other stores have a bucket.
    elif parts.scheme == "azure-ad" and not (parts.netloc and account and rest.partition("/")[0]):
        problem = "lacks a tenant, an account or a container"
    elif parts.scheme == "file" and parts.netloc:
        problem = "a file store has no host"
    elif parts.scheme not in _BUCKET_SCHEMES | {"azure-ad", "file"}:
        problem = "is not absolute" if not parts.scheme else f"has the unknown scheme {parts.scheme!r}"
    # The journal's name follows the prefix directly. Without the slash, "a" and "ab" would share files.
    elif not parts.path.endswith("/"):
        problem = "has a path that does not end in '/'"
    else:
        return parts
    raise ProtocolError(where, f"{problem}: {url!r}; an example is 's3://bucket/prefix/'")


def _seconds(duration: Duration) -> float:
    return duration.ToNanoseconds() / 1_000_000_000


def _check_range(where: str, value: float, least: int, greatest: int, *, unit: str = "") -> None:
    if not least <= value <= greatest:
        raise ProtocolError(where, f"must be from {least} to {greatest}{unit}, got {value}{unit}")
