"""Defines the options of a server that joins a cluster, and creates its Etcd client and member from them."""

from __future__ import annotations

import functools
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import click

from gazette_spark.cli.main import Integer, Number, usage_errors

if TYPE_CHECKING:
    from gazette_spark._server.topology import Member
    from gazette_spark.consumer._cluster.etcd import EtcdClient

_ANY_ADDRESS = ("0.0.0.0", "::", "[::]")  # noqa: S104 - recognized, not bound

_FILE = click.Path(dir_okay=False)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Options with which a process joins a cluster."""

    endpoints: tuple[str, ...]
    """Addresses of Etcd; without any, the process does not join."""
    user: str
    password: str
    ca_file: str | None
    cert_file: str | None
    key_file: str | None
    prefix: str
    zone: str
    suffix: str
    advertise: str
    limit: int
    lease_s: int
    hand_over_s: float

    @usage_errors()
    def open_etcd(self) -> EtcdClient:
        """Return a client of Etcd.

        Raises:
            click.UsageError: an address or a file is invalid.
        """
        from gazette_spark.client._transport.credentials import TlsOptions
        from gazette_spark.consumer._cluster.etcd import CALL_S, EtcdClient
        from gazette_spark.errors import OptionError

        files = self.ca_file, self.cert_file, self.key_file
        try:
            tls = TlsOptions(*files) if any(files) else None
        except OptionError as error:
            part = error.option.removeprefix("tls.").removesuffix("File")
            raise OptionError(f"--etcd-{part}-file", error.got, error.expected) from None
        return EtcdClient(
            self.endpoints,
            user=self.user,
            password=self.password,
            tls=tls,
            # The lease must be renewed several times before it ends, even if a call gets no answer.
            call_s=min(CALL_S, self.lease_s / 4),
        )

    @usage_errors()
    def member(self, endpoint: str) -> Member:
        """Return this process as a member, whose server listens at an endpoint.

        Raises:
            click.UsageError: the zone or the name has an invalid character or length, or the address is not
                a URL.
        """
        from gazette_spark._server.topology import Member
        from gazette_spark.protocol.names import validate_token
        from gazette_spark.protocol.requests import SUFFIX_BYTES, ZONE_BYTES, validate_endpoint

        host = socket.gethostname()
        if not (advertised := self.advertise):
            scheme, _, address = endpoint.partition("://")
            listens_at, _, port = address.rpartition(":")
            # Others cannot call a wildcard address.
            advertised = f"{scheme}://{host if listens_at in _ANY_ADDRESS else listens_at}:{port}"
        # With a random part, a restarted process does not have to wait until its previous lease ends.
        suffix = self.suffix or f"{host}-{secrets.token_hex(4)}"
        # Members in Go ignore a member with an invalid zone, name or address, and others could not call it.
        validate_token("--zone", self.zone, *ZONE_BYTES)
        validate_token("--id", suffix, *SUFFIX_BYTES)
        validate_endpoint(advertised, "--advertise")
        return Member(self.zone, suffix, advertised)


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options. The command gets them as ``cluster``."""

    @click.option(
        "--etcd",
        "endpoints",
        multiple=True,
        envvar="ETCD_ADDRESS",
        metavar="URL",
        help="Address of Etcd. Repeatable. Processes with the same --prefix share their shards and take over "
        "from each other. Without it, this process runs its shards alone.",
    )
    @click.option(
        "--prefix",
        envvar="ETCD_PREFIX",
        default="",
        metavar="PATH",
        help="Prefix of the application's keys in Etcd. Default: /gazette/consumers/ and the application's "
        "name.",
    )
    @click.option(
        "--zone", envvar="CONSUMER_ZONE", default="local", show_default=True, help="Zone of this host."
    )
    @click.option(
        "--id",
        "suffix",
        envvar="CONSUMER_ID",
        default="",
        help="Name of this process among the members. Default: the host's name and a random number.",
    )
    @click.option(
        "--advertise", default="", metavar="URL", help="Address by which others reach this process."
    )
    @click.option(
        "--limit",
        envvar="CONSUMER_LIMIT",
        default=32,
        show_default=True,
        type=Integer(1, 1 << 20),
        help="Maximum number of shards that this process runs.",
    )
    @click.option(
        "--lease",
        "lease_s",
        default=20,
        show_default=True,
        type=Integer(2, 3600),
        metavar="SECONDS",
        help="Time after which others take over from a process that has disappeared.",
    )
    @click.option(
        "--hand-over",
        "hand_over_s",
        type=Number(min=0),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="Time at the end for other members to take over the shards.",
    )
    @click.option("--etcd-user", "user", envvar="ETCD_USER", default="", help="User of Etcd.")
    @click.option(
        "--etcd-password",
        "password",
        envvar="ETCD_PASSWORD",
        default="",
        help="Password of the user. Prefer $ETCD_PASSWORD: others can see a command line.",
    )
    @click.option(
        "--etcd-ca-file",
        "ca_file",
        envvar="ETCD_TRUSTED_CA_FILE",
        type=_FILE,
        help="PEM file of the authorities that sign Etcd's certificate.",
    )
    @click.option(
        "--etcd-cert-file", "cert_file", envvar="ETCD_CERT_FILE", type=_FILE, help="PEM certificate for Etcd."
    )
    @click.option(
        "--etcd-key-file",
        "key_file",
        envvar="ETCD_CERT_KEY_FILE",
        type=_FILE,
        help="PEM private key of this certificate.",
    )
    # click takes a command's docstring and its other options from the function, and wraps copies them.
    @functools.wraps(command)
    def with_cluster(**values: Any) -> None:  # noqa: ANN401 - values of these and the command's options
        options = {declared.name: values.pop(declared.name) for declared in fields(ClusterOptions)}
        command(cluster=ClusterOptions(**options), **values)

    return with_cluster
