"""A certificate authority for tests, and the certificates that it issues, as files in one folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True)
class Pair:
    cert: Path
    key: Path


class Certificates:
    def __init__(self, folder: Path) -> None:
        """Create all of them in ``folder``, which is created if necessary."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.ca))
        self.server = self.issue("server", "127.0.0.1", "localhost")
        self.client = self.issue("client", "client")

    def issue(self, name: str, *hosts: str) -> Pair:
        """Issue a certificate for some hosts; renaming replaces the files of that name."""
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
        return {
            "tls.caFile": str(self.ca),
            "tls.certFile": str(self.client.cert),
            "tls.keyFile": str(self.client.key),
        }

    def content_options(self) -> dict[str, str]:
        return {
            "tls.ca": self.ca.read_text(),
            "tls.cert": self.client.cert.read_text(),
            "tls.keySecret": self.client.key.read_text(),
        }
