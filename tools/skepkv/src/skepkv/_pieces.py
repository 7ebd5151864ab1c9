"""Blocks in pieces, for the calls that take whole ones."""

from __future__ import annotations

import ctypes as c
from typing import TYPE_CHECKING, Any, Sequence

from . import errors
from ._library import Held

if TYPE_CHECKING:
    from ._store import Store


class Copies:
    """Memory that blocks are whole in, on their way from their pieces or to them: shared with the server where there is
    some left. whole is None of a block that is None. Memory that the server may use yet outlasts this."""

    def __init__(self, store: "Store", blocks: Sequence[Any], writable: bool) -> None:
        self._held = Held(blocks, writable)
        each, at = [], 0
        for n in self._held.pieces:
            each.append(range(at, at + n))
            at += n
        self._each = [(of, sum(self._held.lengths[i] for i in of)) for of in each]
        total = sum(n for _, n in self._each)
        self._memory = None
        try:
            self._memory = store.alloc(max(1, total))
            view = self._memory.view
        except errors.SkepError:
            view = memoryview(bytearray(max(1, total)))
        self._base = c.addressof(c.c_char.from_buffer(view))
        self.whole: list[Any] = []
        at = 0
        for block, (_, n) in zip(blocks, self._each):
            self.whole.append(None if block is None else view[at : at + n])
            at += n

    def _move(self, out: bool, codes: bytes) -> None:
        at = self._base
        for i, (of, n) in enumerate(self._each):
            if codes and codes[i]:
                at += n
                continue
            for k in of:
                piece, length = self._held.addresses[k], self._held.lengths[k]
                if out:
                    c.memmove(piece, at, length)
                else:
                    c.memmove(at, piece, length)
                at += length

    def gather(self) -> None:
        """Copies blocks from their pieces."""
        self._move(False, b"")

    def spread(self, codes: bytes) -> None:
        """Copies blocks whose code is 0 to their pieces."""
        self._move(True, codes)

    def __enter__(self) -> "Copies":
        return self

    def __exit__(self, *_: object) -> None:
        self.whole = []
        self._held.release()
        if self._memory is not None:
            self._memory.free()
