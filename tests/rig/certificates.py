"""An authority for tests, and the certificates it issues, as files of one folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True)
class Pair:
    """Files of a certificate and its key."""

    cert: Path
    key: Path


class Certificates:
    """One authority, a broker's certificate for this machine, and a client's."""

    def __init__(self, folder: Path) -> None:
        """Make all of them in ``folder``, which is made if need be."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.ca))
        self.server = self.issue("server", "127.0.0.1", "localhost")
        self.client = self.issue("client", "client")

    def issue(self, name: str, *hosts: str) -> Pair:
        """Issue a certificate for some hosts; replace the files of that name by renames."""
        issued = self._authority.issue_cert(*hosts)
        made = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        for path, content in (
            (made.cert, b"".join(blob.bytes() for blob in issued.cert_chain_pems)),
            (made.key, issued.private_key_pem.bytes()),
        ):
            fresh = path.with_name(f"{path.name}.new")
            fresh.write_bytes(content)
            fresh.rename(path)
        return made

    def file_options(self) -> dict[str, str]:
        """Return the options of a query that name the files."""
        return {
            "tls.caFile": str(self.ca),
            "tls.certFile": str(self.client.cert),
            "tls.keyFile": str(self.client.key),
        }

    def content_options(self) -> dict[str, str]:
        """Return the options of a query that have the contents."""
        return {
            "tls.ca": self.ca.read_text(),
            "tls.cert": self.client.cert.read_text(),
            "tls.keySecret": self.client.key.read_text(),
        }
