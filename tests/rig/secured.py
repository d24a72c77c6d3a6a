"""A broker that requires client certificates and tokens: the real one, or the embedded one."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gazette_spark import Client, EmbeddedBroker
from gazette_spark.broker import ServerTls
from gazette_spark.client import Capability, Claims, KeySet, TlsOptions
from gazette_spark.errors import AuthError
from gazette_spark.protocol import protocol_pb2 as pb
from tests.rig.brokers import DeployedBroker
from tests.rig.certificates import Certificates
from tests.rig.gazctl import BrokerHandle

CANARY = "canary-5f2c91-of-the-broker"
KEYS = base64.b64encode(CANARY.encode()).decode()
"""Keys of the broker. Output that contains their text, or the text of a token, is a leak."""


SECRETS = (CANARY, KEYS, "eyJ", "PRIVATE KEY")
"""Texts that reveal a leak of keys, of any token, or of any certificate's private key."""


SHORT_S = 3.0
"""Lifetime of a token in a file, in seconds. Brokers accept it for five more seconds, their leeway."""

RENEWED_S = 0.5
"""Seconds between two tokens in a file."""


def token(lifetime_s: float = 3600.0, capability: int = Capability.ALL) -> str:
    claims = Claims(capability, pb.LabelSelector())
    return KeySet.parse(KEYS).sign(claims, now=time.time(), lifetime_s=lifetime_s)


def tls_options(broker: BrokerHandle) -> TlsOptions:
    assert broker.certificates is not None
    made = broker.certificates
    return TlsOptions(str(made.ca), str(made.client.cert), str(made.client.key))


def open_client(broker: BrokerHandle, *, timeout_s: float = 30) -> Client:
    """Return a client with full access to a secured broker."""
    return Client(broker.endpoint, auth_keys=broker.auth_keys, tls=tls_options(broker), timeout_s=timeout_s)


@contextmanager
def secured_broker(directory: Path, kind: str = "deployed") -> Iterator[BrokerHandle]:
    """Run a broker with TLS, client certificates and keys.

    Args:
        directory: directory for its data and the certificates.
        kind: ``embedded`` or ``deployed``.
    """
    made = Certificates(directory / "certificates")
    if kind == "deployed":
        with DeployedBroker(directory / "broker", auth_keys=KEYS, certificates=made) as deployed:
            yield deployed
        return
    tls = ServerTls(made.server.cert, made.server.key, made.ca)
    with EmbeddedBroker(directory / "broker", auth_keys=KEYS, tls=tls) as embedded:
        handle = BrokerHandle(embedded.endpoint, directory / "broker")
        handle.auth_keys, handle.certificates = KEYS, made
        yield handle


@contextmanager
def renewed(path: Path, lifetime_s: float = SHORT_S) -> Iterator[None]:
    """Keep a short-lived token in a file and renew it, like a process beside a query."""
    ended = threading.Event()

    def renew() -> None:
        while True:
            fresh = path.with_suffix(".new")
            fresh.write_text(token(lifetime_s))
            fresh.rename(path)
            if ended.wait(RENEWED_S):
                return

    path.write_text(token(lifetime_s))
    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def is_refused(broker: BrokerHandle, text: str) -> bool:
    with Client(broker.endpoint, token=text, tls=tls_options(broker), timeout_s=10) as stranger:
        try:
            stranger.list_journals("name=no/such")
        except AuthError:
            return True
        return False
