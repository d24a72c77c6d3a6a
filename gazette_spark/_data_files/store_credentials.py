"""Renews the credentials with which tasks write the files of an Iceberg table. Runs on the driver."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gazette_spark._data_files.iceberg_files import store_access
from gazette_spark._data_files.target import CredentialIssuer, StoreAccess
from gazette_spark._ledger.iceberg_reader import TableName, iceberg_errors, open_catalog
from gazette_spark.errors import GazetteError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

log = logging.getLogger(__name__)


class StoreCredentials:
    """Requests a table's store credentials, which its catalog issues for about an hour. For one thread."""

    def __init__(self, issuer: CredentialIssuer) -> None:
        self._name = TableName(issuer.catalog, issuer.identifier)
        self._properties = issuer.properties
        self._catalog: Catalog | None = None
        self._last: StoreAccess | None = None

    def snapshot(self) -> StoreAccess | None:
        """Return the current credentials, or those of the last batch while the catalog does not answer.

        Returns:
            None if the catalog has not answered yet. Then use the credentials of the target.
        """
        try:
            # Open the catalog once, because this may request a token and settings from its server.
            if self._catalog is None:
                self._catalog = open_catalog(self._name.catalog, self._properties)
            with iceberg_errors(str(self._name)):
                self._last = store_access(self._catalog.load_table(self._name.identifier))
        except GazetteError as error:
            # The old ones may still be valid, so a catalog that restarts need not end the query. The commit
            # contacts the catalog again.
            log.warning("credentials_reused table=%s error=%s", self._name, error)
        return self._last
