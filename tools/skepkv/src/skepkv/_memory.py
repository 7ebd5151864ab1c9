"""Memory that the server maps, too."""

from __future__ import annotations

import ctypes as c
import weakref
from typing import TYPE_CHECKING, Any

from . import errors
from ._library import Held, _ms, array, library

if TYPE_CHECKING:
    from ._store import Store


def _free(store: "Store", address: int) -> None:
    if store._number and not library().forked():
        try:
            library().call("shared_free", store._number, address)
        except errors.SkepError:
            pass


class Memory:
    """Memory that the server's drives read into. `view` is a memoryview of it; `fd` and `offset` say where another
    process maps it. The memory is given back when `free` was called and the last view of it is gone."""

    def __init__(self, store: "Store", n: int) -> None:
        address, fd, offset = c.c_void_p(), c.c_int(), c.c_int64()
        library().call("shared_alloc", store._number, n, c.byref(address), c.byref(fd), c.byref(offset))
        self.fd, self.offset, self._size = fd.value, offset.value, n
        memory = array(c.c_ubyte, n).from_address(address.value)
        weakref.finalize(memory, _free, store, address.value).atexit = False
        self._view: memoryview | None = memoryview(memory).cast("B")

    def __len__(self) -> int:
        return self._size

    @property
    def view(self) -> memoryview:
        if self._view is None:
            raise ValueError("the memory was freed")
        return self._view

    def blocks(self, n: int) -> list[memoryview]:
        """The memory cut into n places of the same length."""
        each = len(self) // n
        return [self.view[i * each : (i + 1) * each] for i in range(n)]

    def free(self) -> None:
        self._view = None

    def __enter__(self) -> "Memory":
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


class Registered:
    """Memory of the program's own that the server maps, too, until `free`. It is kept alive until then."""

    def __init__(self, store: "Store", buffer: Any, fd: int, offset: int, timeout: float | None) -> None:
        self._store, self._held = store, Held([buffer], True)
        try:
            address, n = self._held.addresses[0], self._held.lengths[0]
            library().call("mem_register", store._number, address, n, fd, offset, _ms(timeout))
        except BaseException:
            self._held.release()
            raise

    def free(self, timeout: float | None = None) -> None:
        """Has the server unmap it, once no call uses it. An error says that it may be written to yet."""
        if self._held.count and self._held._views:
            if not library().forked() and (unsure := self._store._in_use()) is not None:
                raise unsure
            if self._store._number and not library().forked():
                library().call("mem_unregister", self._store._number, self._held.addresses[0], _ms(timeout))
            self._held.release()

    def __enter__(self) -> "Registered":
        return self

    def __exit__(self, *_: object) -> None:
        self.free()
