"""Pages of an engine in a server's store: a page lies in several pieces of the engine's memory, and is one block.

Blocks go through memory that is shared with the server, and are copied once. What a server writes to is never the
engine's memory: a page that does not come whole leaves it as it was.
"""

from __future__ import annotations

import contextlib
import ctypes as c
import logging
import os
import threading
import time
from typing import Any, Iterator, NamedTuple, Sequence

from . import Memory, SkepError, Space, Store, connect, errors

log = logging.getLogger("skepkv")

ALIGN = 4096
STAGE = 32 << 20  # bytes that are under way at a time, of one call
STAGES = 4  # calls that have such memory at a time; others wait for it
EXISTS = 3  # an outcome of a put, and of a want

Piece = tuple[int, int]  # address, bytes
Page = Sequence[Piece]


class Where(NamedTuple):
    """A namespace of pages of so many bytes; 0: of any."""

    name: str
    model: str
    chained: bool
    tokens: int
    bytes: int


def size_of(page: Page) -> int:
    return sum(n for _, n in page)


def _padded(n: int) -> int:
    return (n + ALIGN - 1) // ALIGN * ALIGN


class _Stage:
    """Memory that blocks are in on their way: shared with the server where there is some left."""

    def __init__(self, store: Store, n: int) -> None:
        self.bytes = n
        self._memory: Memory | None = None
        try:
            self._memory = store.alloc(n)
            self.view = self._memory.view
        except SkepError:
            self.view = memoryview(bytearray(n))
        self.address = c.addressof(c.c_char.from_buffer(self.view))

    def free(self) -> None:
        if self._memory is not None:
            self._memory.free()


class _Opened:
    """A connection's store. It is closed when nobody uses it any more."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.users = 0
        self.over = False
        self.spaces: dict[Where, Space] = {}
        self.idle: list[_Stage] = []
        self.lost: list[_Stage] = []  # a drive may write there yet


class Client:
    """Connects when it is first used, and anew where that is needed. Any thread may use it; in a forked process
    everything is an error."""

    def __init__(self, url: str, token: str, token_file: str, tenant: str, shared_bytes: int | None) -> None:
        self._url, self._token, self._token_file = url, token, token_file
        self._tenant, self._shared = tenant, shared_bytes
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards what follows
        self._now: _Opened | None = None
        self._closed = False
        self._stages = threading.BoundedSemaphore(STAGES)

    @contextlib.contextmanager
    def _use(self) -> Iterator[_Opened]:
        if os.getpid() != self._pid:
            raise SkepError(errors.UNSUPPORTED, "this process is forked from the one that opened the store")
        with self._lock:
            if self._closed:
                raise SkepError(errors.CLOSED, "the store")
            if self._now is None:
                token = self._token
                if self._token_file:
                    with open(self._token_file, encoding="utf-8") as f:
                        token = f.read().strip()
                self._now = _Opened(connect(self._url, token=token, shared_bytes=self._shared, lazy=True))
            mine = self._now
            mine.users += 1
        try:
            yield mine
        except SkepError as e:
            if e.code in (errors.NOT_RELEASED, errors.CLOSED):
                self._give_up(mine)
            raise
        finally:
            with self._lock:
                mine.users -= 1
                last = mine.over and mine.users == 0
            if last:
                _end(mine)

    def _give_up(self, it: _Opened) -> None:
        """The next who wants a store opens another one."""
        with self._lock:
            it.over = True
            if self._now is it:
                self._now = None

    def close(self) -> None:
        """Calls under way go on to their end; later ones are errors."""
        if os.getpid() != self._pid:
            return  # the store is the parent's
        with self._lock:
            self._closed = True
            it, self._now = self._now, None
            if it is not None:
                it.over = True
            last = it is not None and it.users == 0
        if last:
            _end(it)

    def _space(self, it: _Opened, where: Where) -> Space:
        with self._lock:
            space = it.spaces.get(where)
            if space is None:
                if len(it.spaces) >= 1024:
                    it.spaces.clear()
                space = it.spaces[where] = it.store.namespace(
                    where.name,
                    model=where.model,
                    tenant=self._tenant,
                    chained=where.chained,
                    block_tokens=where.tokens,
                    bytes=where.bytes,
                    lazy=True,
                )
        return space

    @contextlib.contextmanager
    def _stage(self, it: _Opened, n: int, until: float) -> Iterator[_Stage]:
        """Memory for n bytes."""
        if not self._stages.acquire(timeout=max(0.0, until - time.monotonic())):
            raise SkepError(errors.DEADLINE, f"{STAGES} calls have all memory for blocks under way")
        try:
            with self._lock:
                stage = it.idle.pop() if it.idle else None
            if stage is not None and stage.bytes < n:
                stage.free()
                stage = None
            if stage is None:
                stage = _Stage(it.store, max(n, STAGE))
            try:
                yield stage
            except errors.NotReleased:
                with self._lock:
                    it.lost.append(stage)
                raise
            except BaseException:
                with self._lock:
                    it.idle.append(stage)
                raise
            with self._lock:
                it.idle.append(stage)
        finally:
            self._stages.release()

    # What is done with pages. until is a time of time.monotonic().

    def found(self, where: Where, names: Sequence[bytes], lease: float, until: float) -> int:
        """How many leading pages are there; they stay for so many seconds."""
        with self._use() as it:
            return self._space(it, where).lookup(names, lease, timeout=left(until)).blocks

    def there(self, where: Where, names: Sequence[bytes], until: float) -> list[bool]:
        """Of each page whether it is there: of a chain also where the names begin inside it."""
        with self._use() as it:
            space = self._space(it, where)
            if where.chained:
                return [o == EXISTS for o in space.want(names, timeout=left(until))]
            return [tier != 0 for tier in space.exists(names, timeout=left(until))]

    def load(self, where: Where, names: Sequence[bytes], pages: Sequence[Page], until: float) -> list[bool]:
        """Fills pages, and says which are there, whole. Behind the first that is not, others may not be looked for."""
        landed = [False] * len(pages)
        with self._use() as it:
            space = self._space(it, where)
            for at, to, total, offsets in _pieces_of(pages):
                with self._stage(it, total, until) as stage:
                    into = [stage.view[o : o + size_of(p)] for o, p in zip(offsets, pages[at:to])]
                    codes = space.restore(names[at:to], into, timeout=left(until)).codes
                    for i, (code, o) in enumerate(zip(codes, offsets), at):
                        if code == 0:
                            o += stage.address
                            for address, n in pages[i]:
                                c.memmove(address, o, n)
                                o += n
                            landed[i] = True
                    del into
                if any(codes):
                    break
        return landed

    def save(
        self,
        where: Where,
        names: Sequence[bytes],
        pages: Sequence[Page],
        until: float,
        prefix: Sequence[bytes] = (),
    ) -> tuple[list[bool], int, str]:
        """Stores pages that are not there yet, in a chain behind those of prefix. It says which are there now, how
        many were there before, and why one is not."""
        stored, why = [False] * len(pages), ""
        with self._use() as it:
            space = self._space(it, where)
            if where.chained:
                have = [o == EXISTS for o in space.want(names, timeout=left(until))]
                have = have[: have.index(False)] if False in have else have
                have += [False] * (len(names) - len(have))  # a run is put from the first that is missing
            else:
                have = [tier != 0 for tier in space.exists(names, timeout=left(until))]
            for i, there in enumerate(have):
                stored[i] = there
            todo = [i for i, there in enumerate(have) if not there]
            chain = [*prefix, *names]
            for at, to, total, offsets in _pieces_of([pages[i] for i in todo]):
                part = todo[at:to]
                with self._stage(it, total, until) as stage:
                    for i, o in zip(part, offsets):
                        o += stage.address
                        for address, n in pages[i]:
                            c.memmove(o, address, n)
                            o += n
                    depth = len(prefix) + part[0] if where.chained else 0
                    became = space.put(
                        [names[i] for i in part],
                        [stage.view[o : o + size_of(pages[i])] for i, o in zip(part, offsets)],
                        parent=chain[depth - 1] if depth else None,
                        depth=depth,
                        timeout=left(until),
                    )
                for i, outcome, reason in zip(part, *became):
                    stored[i] = outcome != 0
                    why = why or ("" if outcome else f"declined: {errors.name_of(reason)}")
                if why:
                    break
        return stored, sum(have), why


def left(until: float) -> float:
    """Seconds left, and an error where there are none."""
    seconds = until - time.monotonic()
    if seconds <= 0:
        raise SkepError(errors.DEADLINE, "the call's time is over")
    return seconds


def _pieces_of(pages: Sequence[Page]) -> Iterator[tuple[int, int, int, list[int]]]:
    """Cuts pages into runs of at most STAGE bytes: from, to, bytes, and where each page begins."""
    at = 0
    while at < len(pages):
        to, total, offsets = at, 0, []
        while to < len(pages):
            n = _padded(size_of(pages[to]))
            if to > at and total + n > STAGE:
                break
            offsets.append(total)
            total += n
            to += 1
        yield at, to, total, offsets
        at = to


def _end(it: _Opened) -> None:
    it.idle.clear()
    try:
        it.store.close()
    except SkepError as e:
        log.warning("skep: close: %s", e)
