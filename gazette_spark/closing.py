"""Things to be closed, as context managers."""

from __future__ import annotations

from typing import Self


class Closing:
    """Closes itself when a ``with`` block ends."""

    __slots__ = ()

    def close(self) -> None:
        """Release what is held. Closing twice does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
