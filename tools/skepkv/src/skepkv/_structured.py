"""Blocks that have parts, and those of a shape, into an engine's paged cache."""

from __future__ import annotations

import ctypes as c
from typing import TYPE_CHECKING, Any, NamedTuple, Sequence

from . import errors
from ._library import Held, PagedStruct, _ms, array, library, named

if TYPE_CHECKING:
    from ._store import Store, Stored

_ELEMENTS = ("bf16", "f16", "f32", "fp8", "i8", "fp4")
_BITS = (16, 16, 32, 8, 8, 4)
_ORDERS = ("hnd", "nhd")


def _one_of(field: str, value: str, known: Sequence[str]) -> int:
    if value not in known:
        raise ValueError(f"{field} is {value!r}, must be one of {', '.join(known)}")
    return known.index(value)


class Shape(NamedTuple):
    """What a block's part "kv" is: [layers][K, V][heads][tokens][dim] elements, or, of order "nhd", tokens before
    heads; of a latent, which has no heads, [layers][tokens][dim]. element is bf16, f16, f32, fp8, i8 or fp4."""

    layers: int
    heads: int
    dim: int
    tokens: int
    element: str = "bf16"
    order: str = "hnd"
    latent: bool = False

    @property
    def bytes(self) -> int:
        """Of a block's "kv"."""
        each = self.dim * _BITS[_one_of("element", self.element, _ELEMENTS)] // 8
        return self.layers * self.tokens * each * (1 if self.latent else 2 * self.heads)

    def _json(self) -> dict[str, int]:
        return {
            "kind": 2 if self.latent else 1,
            "layers": self.layers,
            "kv_heads": self.heads,
            "head_dim": self.dim,
            "element": _one_of("element", self.element, _ELEMENTS) + 1,
            "block_tokens": self.tokens,
            "order": _one_of("order", self.order, _ORDERS),
        }


class Writer:
    """A block of parts that is written, from Space.begin. Any thread may write. It is a context manager, which drops
    the block unless it was committed."""

    def __init__(self, store: "Store", number: int) -> None:
        self._store, self._number = store, number

    def write(self, part: str, offset: int, data: Any, timeout: float | None = None) -> None:
        """Copies data, a C-contiguous buffer, to offset bytes behind the part's begin. Ranges come in any order and do
        not overlap. Invalid: no such part, or not of its bytes."""
        if isinstance(data, (list, tuple)):
            raise TypeError("data is a list, must be one buffer: write the pieces one by one")
        held = Held([data], False)
        try:
            address, n = held.addresses[0], held.lengths[0]
            library().call("write", self._number, named(part), offset, address, n, _ms(timeout))
        finally:
            held.release()

    def commit(self, accepted: bool = False, timeout: float | None = None) -> "Stored":
        """Stores the block, as Space.put does, and says what became of it: Stored, of one block. Invalid: a byte was
        not written, and the writer goes on."""
        from ._store import Stored

        outcome, reason = c.c_uint8(), c.c_uint8()
        out = c.byref(outcome), c.byref(reason)
        try:
            library().call("commit", self._number, int(accepted), _ms(timeout), *out)
        except errors.SkepError as e:
            if e.code != errors.INVALID:
                self._number = 0  # it has ended
            raise
        self._number = 0
        return Stored(bytes([outcome.value]), bytes([reason.value]))

    def abort(self) -> None:
        """Drops what was written. Once is enough, and after a commit there is nothing to drop."""
        number, self._number = self._number, 0
        if number and self._store._number and not library().forked():
            library().call("abort", number)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.abort()
        except errors.SkepError:
            pass  # it is dropped when its life is over


class Paged:
    """An engine's paged cache in this process's memory: k and v have a plane for each layer, v none (None) of a latent.
    Planes are C-contiguous writable buffers of one length. Page p begins p * page_stride bytes behind a plane's begin
    (0: pages touch) and has page_tokens tokens, [heads][tokens][dim] elements, or of order "nhd"
    [tokens][heads][dim]."""

    def __init__(
        self,
        k: Sequence[Any],
        v: Sequence[Any] | None,
        *,
        page_tokens: int,
        page_stride: int = 0,
        order: str = "hnd",
    ) -> None:
        self._planes = [*k, *(v or ())]
        self._layers, self._two = len(k), v is not None
        if not self._layers or v is not None and len(v) != self._layers:
            raise ValueError(f"planes of V are {len(v or ())}, must be one for each of the {self._layers} or more of K")
        self._tokens, self._stride, self._order = page_tokens, page_stride, _one_of("order", order, _ORDERS)

    def _held(self) -> Held:
        held = Held(self._planes, True)
        if any(n != held.lengths[0] for n in held.lengths):
            held.release()
            raise ValueError(f"planes have {sorted(set(held.lengths))} bytes, must have one length")
        return held

    def _struct(self, held: Held, slots: Any, page: int) -> PagedStruct:
        """page is the bytes of one that touches the next."""
        addresses = [a or 0 for a in held.addresses]
        out = PagedStruct(self._order, 0, self._layers, self._tokens, self._stride or page, held.lengths[0])
        out.k = array(c.c_uint64, self._layers)(*addresses[: self._layers])
        if self._two:
            out.v = array(c.c_uint64, self._layers)(*addresses[self._layers :])
        out.slots = slots
        return out
