"""Mixin that makes objects with ``close`` context managers."""

from __future__ import annotations

from typing import Self


class Closing:
    """Mixin that closes an object on leaving its ``with`` block."""

    __slots__ = ()

    def close(self) -> None:
        """Release all resources. Closing twice does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
