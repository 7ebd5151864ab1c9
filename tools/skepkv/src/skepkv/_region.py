"""An engine's own memory, shared with a server on this machine: drives read into it and are written out of it, and
nothing is copied in this process."""

from __future__ import annotations

import ctypes as c
import logging
import threading
import time
from typing import Any

from . import Registered, SkepError, Store, errors

_SOON = (errors.UNAVAILABLE, errors.OVERLOADED, errors.DEADLINE)  # what may be otherwise in a moment
_kept: list[memoryview] = []  # memory that a server may use yet, of regions that are closed. It stays mapped


class Region:
    """Memory that calls are given in place of a copy, as long as the server maps it, too. Any thread may use it.

    memory is a C-contiguous buffer that can be written, at an address; it is kept alive until close. While it is not
    known that the server has let go of what a call gave it, no other call is given the memory."""

    def __init__(self, memory: Any, log: logging.Logger) -> None:
        self._flat = memoryview(memory).cast("B")
        if self._flat.readonly:
            raise ValueError("the memory cannot be written")
        self.address = c.addressof(c.c_char.from_buffer(self._flat))
        self._log = log
        self._cond = threading.Condition()  # guards what follows
        self._with: Registered | None = None  # the server has it
        self._users = 0
        self._busy = False  # it is being registered, or it is not known whether the server has let go of it
        self._again = 0.0  # when it is tried again, of time.monotonic()
        self._said = ""
        self._closed = False

    def __len__(self) -> int:
        return len(self._flat)

    @property
    def shared(self) -> bool:
        """Whether the server maps it."""
        return self._with is not None

    def at(self, offset: int, n: int) -> memoryview:
        """A part of it, for a call that it is lent to."""
        return self._flat[offset : offset + n]

    def lend(self, store: Store, timeout: float) -> bool:
        """Whether a call may have the server use the memory; then back ends that. Else what it moves is copied."""
        with self._cond:
            if self._closed or self._busy:
                return False
            if self._with is None:
                if time.monotonic() < self._again:
                    return False
                self._busy = True
            else:
                self._users += 1
                return True
        got: Registered | None = None
        why, after = "", 60.0
        try:
            got = store.register(self._flat, timeout=timeout)
        except SkepError as e:
            why, after = str(e), 1.0 if e.code in _SOON else after
        except (ValueError, TypeError, BufferError) as e:
            why = str(e)
        with self._cond:
            self._with, self._busy, self._again = got, False, time.monotonic() + after
            self._users += got is not None
            said, self._said = self._said, why or "shared"
            self._cond.notify_all()
        if got is not None and said != "shared":
            self._log.info("skep: drives read into the engine's memory and are written out of it: nothing is copied")
        elif got is None and said != why and after > 1:
            self._log.warning("skep: bytes are copied once, as the server does not map the engine's memory: %s", why)
        return got is not None

    def back(self, store: Store, sure: bool) -> None:
        """Ends what lend began. Where it is not sure that the server has let go of the memory, this waits until it has,
        or its process has ended a while ago."""
        with self._cond:
            self._users -= 1
            self._cond.notify_all()
            if sure:
                return
            first, self._busy = not self._busy, True
            self._cond.wait_for(lambda: self._users == 0 and (first or not self._busy) or self._closed)
            if not first or self._closed:
                return
        wait = 0.01
        while not self._let_go(store, 2.0):
            with self._cond:
                if self._closed or self._cond.wait_for(lambda: self._closed, timeout=wait):
                    return
            wait = min(2 * wait, 1.0)
        with self._cond:
            self._busy, self._again = False, time.monotonic() + 10
            self._cond.notify_all()

    def _let_go(self, store: Store, timeout: float) -> bool:
        """Has the server unmap it: then it does not use it any more."""
        try:
            if self._with is not None:
                self._with.free(timeout)
        except SkepError:
            return False
        end = self.address + len(self._flat)
        for held in list(store._kept):  # of calls whose memory was not released
            if held.count and self.address <= (held.addresses[0] or 0) < end:
                store._kept.remove(held)
                held.release()
        self._with = None
        return True

    def forget(self) -> None:
        """Notes that the store is closed, and that nobody uses the memory any more: another store may."""
        with self._cond:
            self._with, self._busy = None, False
            self._cond.notify_all()

    def close(self, store: Store | None, timeout: float) -> None:
        """Has the server unmap it, where no call uses it any more. Where that is not so in time the memory stays
        mapped, and nobody may use it for anything else."""
        with self._cond:
            if self._closed:
                return
            self._closed = True
            self._cond.notify_all()
            free = self._cond.wait_for(lambda: self._users == 0, timeout=timeout) and not self._busy
        if self._with is None and free or store is not None and free and self._let_go(store, timeout):
            self._flat = memoryview(b"")  # the engine unmaps it
            return
        _kept.append(self._flat)
        self._log.warning("skep: the server may use the engine's memory yet, which stays mapped")
