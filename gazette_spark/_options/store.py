"""The options of a query that reads a fragment store without brokers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from gazette_spark._options.security import SECURITY_OPTIONS
from gazette_spark._options.values import shown
from gazette_spark.errors import OptionError
from gazette_spark.locations import url_of_path

STORE_FORM = (
    "file:///directory, or pyarrow's URL with s3://, gs:// or abfs://, without credentials: "
    "those come from the environment"
)

BROKER_ONLY = ("brokerAddress", "fragmentRoot", *(option.name for option in SECURITY_OPTIONS))
"""Options that only apply to brokers."""


def parse_store(name: str, text: str) -> str:
    """Parse the URL of a fragment store that is read directly.

    It must not contain credentials: options are shown in plans and logs.
    """
    # The user name and the query may contain a secret, so the error does not show them.
    bad = OptionError(name, shown(re.sub(r"//[^/]*@|\?.*", "***", text)), STORE_FORM)
    try:
        parts = urlsplit(text)
        path = unquote(parts.path)
        keys = (
            {key.lower() for key, _ in parse_qsl(parts.query, strict_parsing=True)} if parts.query else set()
        )
    except ValueError:
        raise bad from None
    if ".." in path.split("/") or "\0" in path or parts.fragment or not text.isprintable():
        raise bad
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or parts.query or len(PurePosixPath(path).parts) < 2:
            raise bad
        return url_of_path(path.rstrip("/"))
    # `gs://anonymous@bucket` makes pyarrow send no credentials. Any other name could be a key.
    users = {"gs": ("", "anonymous"), "gcs": ("", "anonymous"), "s3": ("",)}.get(parts.scheme)
    if parts.scheme not in ("s3", "gs", "gcs", "abfs", "abfss") or not parts.hostname:
        raise bad
    if parts.password is not None or (users is not None and (parts.username or "") not in users):
        raise bad
    if any(word in key for key in keys for word in ("key", "secret", "token", "password")):
        raise bad
    return text


def parse_location(name: str, text: str) -> str:
    """Parse a directory to write to: a path, or a URL as for a store."""
    if text.startswith("/"):
        text = url_of_path(text)
    try:
        return parse_store(name, text)
    except OptionError as error:
        raise OptionError(name, error.got, f"an absolute path, or {STORE_FORM}") from None


def check_store(values: dict[str, Any], texts: Mapping[str, str], *, framed: bool) -> None:
    """Check the options of a query without brokers, and clear the broker's address.

    Args:
        values: Parsed options by key, including the broker's address.
        texts: Texts of the options that are set, by name in lower case.
        framed: Whether the format implies a framing.

    Raises:
        OptionError: a query without brokers does not support an option.
    """
    for name in BROKER_ONLY:
        if name.lower() in texts:
            raise OptionError(
                f"fragmentStore and {name}", "both", "one of them: a store is read without brokers"
            )
    if values["selector"] is not None:
        got = "fragmentStore: stored fragments have no labels"
        raise OptionError("selector", got, "option 'journals', load('a/journal') or load('a/prefix/')")
    if values["framing"] is None and not framed:
        got = "nothing with fragmentStore: stored fragments have no content-type label"
        raise OptionError("framing", got, "lines, fixed, csv or none, or a format that implies it")
    values["broker_address"] = ""
