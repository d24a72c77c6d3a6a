"""The environment and the data of a Databricks notebook, so that its cells run here.

``spark``, ``dbutils`` and ``display`` do what the notebooks need. A broker that requires a token has journals
whose fragments are stored, and a writer keeps appending to them. A workspace has more, and other rules: these
runs show that the cells fit our package, not that a workspace permits them.
"""

from __future__ import annotations

import base64
import json
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gazette_spark import Client, EmbeddedBroker
from gazette_spark.client import Capability, Claims, KeySet, journal_spec
from gazette_spark.protocol import protocol_pb2 as pb
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOURNALS = ("shop/orders", "shop/returns")
KEYS = base64.b64encode(b"keys of the stand-in").decode()
SECRETS = {("gazette", "token")}
"""Secrets that the notebooks may request."""


@dataclass
class Widgets:
    """``dbutils.widgets``: parameters; the workspace's values override a notebook's defaults."""

    given: dict[str, str]

    def text(self, name: str, _default: str, _label: str = "") -> None:
        """Declare a parameter, which the workspace must know."""
        assert name in self.given, f"the stand-in gives no {name!r}"

    def get(self, name: str) -> str:
        return self.given[name]


@dataclass
class Secrets:
    token: str

    def get(self, scope: str, key: str) -> str:
        """Return the token, the only secret."""
        assert (scope, key) in SECRETS
        return self.token


@dataclass
class Library:
    restarts: int = 0

    def restartPython(self) -> None:  # noqa: N802 - Databricks' name
        """Count the call; there is nothing to reload."""
        self.restarts += 1


@dataclass
class DbUtils:
    widgets: Widgets
    secrets: Secrets
    library: Library = field(default_factory=Library)


class Workspace:
    """A broker whose journals keep growing, a session, and the names that a notebook uses."""

    def __init__(self, spark: SparkSession, directory: Path, *, show: Any = print) -> None:
        """Start the broker and the writer.

        Args:
            spark: A session whose catalog takes Delta tables.
            directory: An empty directory for the broker and the volume.
            show: Function that shows a DataFrame or a plot.
        """
        self.spark = spark
        self.appended = dict.fromkeys(JOURNALS, 0)
        """Number of appended records, by journal."""
        self._broker = EmbeddedBroker.start(directory / "broker", auth_keys=KEYS)
        self._client = Client(self._broker.endpoint, auth_keys=KEYS, timeout_s=30)
        self._client.create_journals(*(journal_spec(name, length=16 << 10) for name in JOURNALS))
        for _ in range(6):
            self._append(200)
        roots = [self._broker.root / name for name in JOURNALS]
        wait_until("fragments to be stored", lambda: all(any(root.glob("0*")) for root in roots))
        self._schema = f"nb_{uuid.uuid4().hex[:8]}"
        spark.sql(f"CREATE SCHEMA {self._schema}")
        claims = Claims(Capability.LIST | Capability.READ, pb.LabelSelector())
        token = KeySet.parse(KEYS).sign(claims, now=time.time(), lifetime_s=3600)
        volume = directory / "volume"
        volume.mkdir()
        widgets = {
            "wheel": "gazette_spark.whl",
            "broker": self._broker.endpoint,
            "journals": "shop/",
            "fragments": f"file://{self._broker.root}",
            "schema": f"spark_catalog.{self._schema}",
            "volume": str(volume),
        }
        self.dbutils = DbUtils(Widgets(widgets), Secrets(token))
        self._show = show
        self._stop = threading.Event()
        self._writer = threading.Thread(target=self._keep_appending, name="shop")
        self._writer.start()

    def names(self) -> dict[str, Any]:
        return {"spark": self.spark, "dbutils": self.dbutils, "display": self._show}

    def close(self) -> None:
        self._stop.set()
        self._writer.join(60)
        self.spark.sql(f"DROP SCHEMA {self._schema} CASCADE")
        self._client.close()
        self._broker.stop()

    @classmethod
    def in_kernel(cls, names: dict[str, Any]) -> Self:
        """Start a workspace in a notebook's kernel, with a new session, and add the names."""
        import matplotlib as mpl
        from IPython import display as ipython

        from gazette_spark import local_spark

        folder = tempfile.TemporaryDirectory(prefix="workspace-")
        home = Path(folder.name)
        conf = {"spark.sql.repl.eagerEval.enabled": "true"}
        spark = local_spark(home / "spark", conf=conf, log=home / "spark.log")
        mpl.rcParams["figure.dpi"] = 80
        made = cls(spark, home, show=ipython.display)
        names |= made.names()

        close = made.close

        def close_all() -> None:
            close()
            spark.stop()
            folder.cleanup()

        made.close = close_all  # type: ignore[method-assign]  # It also ends what the notebook started.
        return made

    def _keep_appending(self) -> None:
        while not self._stop.wait(0.3):
            self._append(25)

    def _append(self, count: int) -> None:
        for share, journal in enumerate(JOURNALS, 1):
            # The second one gets less, because curves of journals that grow alike hide each other.
            ids = range(self.appended[journal], self.appended[journal] + count // share)
            rows = ({"id": n, "customer": f"c{n % 40}", "amount": n % 90 / 4} for n in ids)
            self._client.append(journal, b"".join(json.dumps(row).encode() + b"\n" for row in rows))
            self.appended[journal] += len(ids)
