"""Runs a Gazette broker inside this process.

The guarantees:

* The Journal service over gRPC as Gazette's own brokers serve it - List, Apply, Read, Append,
  ListFragments, FragmentStoreHealth - so that ``gazctl`` and every Gazette client work against it.
* Acknowledged changes are durable: specs, revisions, registers, write heads and the bytes not yet in a
  fragment file survive the end of the process, including SIGKILL, and a power cut - the latter not with
  ``StorageSettings(fsync=False)``, which is for tests that make many small appends.
* Fragment files under the root have Gazette's names and codecs, so a Gazette broker with the same root
  lists and reads them, and vice versa.
* One broker at a time uses a root; a second one is refused.
* With keys, each call and each HTTP request needs a bearer token that allows it (``authorizer``); only the
  signed URLs of fragments need none. With ``tls``, all ports use TLS. Without keys, everyone who can reach
  the port may do everything.
* A test can request faults (``faults``).

It has no Etcd. Unless ``replicas`` is set for a local cluster, it does not replicate: it is the one broker of
its cluster and primary of every journal. By default it listens on the loopback interface. It is for
development and tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self, overload

from gazette_spark.broker.cluster import LocalCluster
from gazette_spark.broker.single import SingleBroker
from gazette_spark.errors import OptionError


class EmbeddedBroker(SingleBroker):
    """A broker in this process. Thread-safe; a context manager, which starts and stops it."""

    @overload
    @classmethod
    def start(cls, root: Path | str, *, replicas: Literal[1] = 1, **options: Any) -> Self: ...  # noqa: ANN401

    @overload
    @classmethod
    def start(cls, root: Path | str, *, replicas: int, **options: Any) -> LocalCluster: ...  # noqa: ANN401

    @classmethod
    def start(
        cls,
        root: Path | str,
        *,
        replicas: int = 1,
        **options: Any,
    ) -> Self | LocalCluster:
        """Start a broker, or a local cluster of brokers that replicate and can be killed one by one.

        Both are ended by ``stop``, and are context managers.

        Args:
            root: directory of the fragment stores and, in ``.gazette``, of the state. It is created if it is
                missing.
            replicas: number of brokers, 3 or more for a :class:`~gazette_spark.broker.LocalCluster`. Each
                journal has replicas on all brokers except one, so that appends continue while one is down: as
                in Gazette, a journal with too few replicas accepts no appends.
            options: arguments of :class:`EmbeddedBroker`, for each broker; a cluster takes neither ``port``
                nor ``tls``.

        Raises:
            OptionError: an option is invalid, or is not allowed for a cluster.
        """
        if replicas > 2:
            return LocalCluster(root, brokers=replicas, replication=replicas - 1, **options).run()
        if replicas != 1:
            raise OptionError("replicas", str(replicas), "1, or at least 3 so that one broker may be down")
        broker = cls(root, **options)
        broker.run()
        return broker
