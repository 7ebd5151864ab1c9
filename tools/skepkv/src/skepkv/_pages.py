"""Pages of an engine in a server's store: a page lies in several pieces of the engine's memory, and is one block.

Blocks go through memory that is shared with the server, and are copied once: by the library, from and to the pieces of
a page, where each page has several and the engine does not take its memory back (Gate), else here. What a server writes
to is not the engine's memory then: a page that does not come whole leaves it as it was. Where an engine's memory is
itself shared with the server (Region) nothing is copied, and what does not come whole is undefined.
"""

from __future__ import annotations

import contextlib
import ctypes as c
import hashlib
import json
import logging
import math
import os
import threading
import time
from typing import Any, ContextManager, Iterator, NamedTuple, Sequence

from . import Memory, SkepError, Space, Store, Stored, connect, errors
from ._keys import tell
from ._library import LAYERS, PIECES, Placed, library
from ._region import Region

log = logging.getLogger("skepkv")

ALIGN = 4096
STAGE = 32 << 20  # bytes that are under way at a time, of one call
COPIES = 4  # of a block, each on another drive, at most
STAGES = 4  # calls that have such memory at a time; others wait for it
EXISTS = 3  # an outcome of a put, and of a want

Piece = tuple[int, int]  # address, bytes
Page = Sequence[Piece]


class Where(NamedTuple):
    """A namespace of pages of so many bytes; 0: of any. about is what its keys and bytes are by, as JSON. Where it is
    not chained each page is a chain of its own: whoever computes it again has the same bytes, so the first one
    stays."""

    name: str
    model: str
    chained: bool
    tokens: int
    bytes: int
    about: str = ""
    copies: int = 1


class Trouble:
    """Says the first of a kind of errors in a row, and when it is over."""

    def __init__(self, log: logging.Logger, meanwhile: str) -> None:
        self._log, self._meanwhile = log, meanwhile
        self._lock = threading.Lock()
        self._kind = ""

    def complain(self, kind: str, error: str) -> None:
        with self._lock:
            same, self._kind = kind == self._kind, kind
        if not same:
            self._log.warning("skep: %s; %s", error, self._meanwhile)

    def well(self) -> None:
        with self._lock:
            was, self._kind = self._kind, ""
        if was:
            self._log.info("skep answers again")


def check_options(o: dict[str, Any], seconds: dict[str, float]) -> None:
    """Checks options that every engine's class has, and times, each at least so many seconds."""
    for name in ("url", "token", "token_file", "tls_ca", "tls_cert", "tls_key", "tenant", "model", "revision"):
        if not isinstance(o[name], str):
            raise ValueError(f"{name} is {o[name]!r}, must be a string")
    if not o["url"]:
        raise ValueError("url is empty, must be unix:/path or host:port")
    check_copies(o["copies"])
    shared = o["shared_bytes"]
    if shared is not None and (type(shared) is not int or shared < 0):
        raise ValueError(f"shared_bytes is {shared!r}, must be 0 or more bytes")
    for name, least in seconds.items():
        s = o[name]
        if isinstance(s, bool) or not isinstance(s, (int, float)) or not least <= s <= 600 or math.isnan(s):
            raise ValueError(f"{name} is {s!r} s, must be {least} to 600")


def check_copies(n: Any) -> None:
    if type(n) is not int or not 1 <= n <= COPIES:
        raise ValueError(f"copies is {n!r}, must be 1 to {COPIES}, each on another drive")


def secured(tls_ca: str, tls_cert: str, tls_key: str) -> dict[str, str] | None:
    """What connect is given for TLS: tls_ca is a file, or "system", or empty where there is none."""
    if not tls_ca:
        if tls_cert or tls_key:
            raise ValueError('tls_ca is empty, must be a file or "system" where there is a tls_cert or a tls_key')
        return None
    how = {"cert": tls_cert, "key": tls_key, "ca": "" if tls_ca == "system" else tls_ca}
    return {name: file for name, file in how.items() if file}


def weights(model: str) -> str:
    """What tells the weights in a directory from others: their configuration, and names and sizes of their files."""
    h = hashlib.sha256()
    for name in sorted(os.listdir(model)):
        path = os.path.join(model, name)
        if name == "config.json":
            with open(path, "rb") as f:
                h.update(f.read())
        if name.endswith((".safetensors", ".bin", ".gguf", ".pt")):
            h.update(f"{name} {os.path.getsize(path)}\n".encode())
    return h.hexdigest()


def size_of(page: Page) -> int:
    return sum(n for _, n in page)


def _padded(n: int) -> int:
    return (n + ALIGN - 1) // ALIGN * ALIGN


class Gate:
    """Lets one thread copy into and out of an engine's memory, until the engine takes that memory back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.closed = False
        self.lent = 0  # calls under way that have the server use the engine's memory: nobody can stop those

    def __enter__(self) -> None:
        self._lock.acquire()
        if self.closed:
            self._lock.release()
            raise SkepError(errors.CLOSED, "the engine took its memory back")

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def lend(self, n: int) -> None:
        with self:
            self.lent += n

    def back(self, n: int) -> None:
        with self._lock:
            self.lent -= n

    def close(self) -> None:
        """Waits for a copy that is under way, of at most STAGE bytes or a page. No other begins."""
        with self._lock:
            self.closed = True


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

    def abandon(self, store: Store) -> None:
        """Gives memory back that the server may use yet: the library does not lend it before it is known that the
        server does not. What is not shared stays with the store."""
        if self._memory is None:
            return
        end = self.address + self.bytes
        for held in list(store._kept):
            if any(a is not None and self.address <= a < end for a in held.addresses):
                store._kept.remove(held)
                held.release()
        self.free()


class Client:
    """Connects when it is first used, and the library again where that is needed. Any thread may use it; in a forked
    process everything is an error."""

    def __init__(
        self,
        url: str,
        token: str,
        token_file: str,
        tenant: str,
        shared_bytes: int | None,
        tls: dict[str, str] | None = None,
    ) -> None:
        self._url, self._token, self._token_file, self._tls = url, token, token_file, tls
        self._tenant, self._shared = tenant, shared_bytes
        self._pid = os.getpid()
        self._stages = threading.BoundedSemaphore(STAGES)
        self._lock = threading.Lock()  # guards what follows
        self._store: Store | None = None
        self._users = 0
        self._closed = False
        self._spaces: dict[Where, Space] = {}
        self._told: set[Where] = set()
        self._idle: list[_Stage] = []

    @contextlib.contextmanager
    def _use(self, where: Where) -> Iterator[Space]:
        """A namespace, whose store is not closed before it is given back."""
        if os.getpid() != self._pid:
            raise SkepError(errors.UNSUPPORTED, "this process is forked from the one that opened the store")
        with self._lock:
            if self._closed:
                raise SkepError(errors.CLOSED, "the store")
            if self._store is None:
                token = self._token
                if self._token_file:
                    with open(self._token_file, encoding="utf-8") as f:
                        token = f.read().strip()
                self._store = connect(self._url, token=token, tls=self._tls, shared_bytes=self._shared, lazy=True)
            space = self._spaces.get(where)
            if space is None:
                if len(self._spaces) >= 1024:
                    self._spaces.clear()
                space = self._spaces[where] = self._store.namespace(
                    where.name,
                    model=where.model,
                    tenant=self._tenant,
                    chained=True,
                    each=not where.chained,
                    block_tokens=where.tokens,
                    bytes=where.bytes,
                    copies=where.copies,
                    lazy=True,
                )
                if where.about and where not in self._told:
                    self._told.add(where)
                    tell(self._store, self._tenant, where.name, json.loads(where.about))
            self._users += 1
        try:
            yield space
        finally:
            with self._lock:
                self._users -= 1
                last = self._closed and self._users == 0
            if last:
                self._end()

    def give_back(self, region: Region, timeout: float) -> None:
        """Has the server unmap a region."""
        with self._lock:
            store = self._store if os.getpid() == self._pid else None
        region.close(store, timeout)

    def close(self) -> None:
        """Calls under way go on to their end, and the last of them closes the store; later ones are errors."""
        if os.getpid() != self._pid:
            return  # the store is the parent's
        with self._lock:
            last = not self._closed and self._users == 0
            self._closed = True
        if last:
            self._end()

    def _end(self) -> None:
        with self._lock:
            store, self._store = self._store, None
            self._idle.clear()
            self._spaces.clear()
        try:
            if store is not None:
                store.close()
        except SkepError as e:
            log.warning("skep: close: %s", e)

    @contextlib.contextmanager
    def _stage(self, n: int, until: float) -> Iterator[_Stage]:
        """Memory for n bytes."""
        if not self._stages.acquire(timeout=max(0.0, until - time.monotonic())):
            raise SkepError(errors.DEADLINE, f"{STAGES} calls have all memory for blocks under way")
        try:
            with self._lock:
                store = self._store
                stage = self._idle.pop() if self._idle else None
            if store is None:
                raise SkepError(errors.CLOSED, "the store")
            if stage is not None and stage.bytes < n:
                stage.free()
                stage = None
            if stage is None:
                stage = _Stage(store, max(n, STAGE))
            try:
                yield stage
            except errors.NotReleased:
                stage.abandon(store)
                raise
            except BaseException:
                self._keep(stage)
                raise
            self._keep(stage)
        finally:
            self._stages.release()

    def _keep(self, stage: _Stage) -> None:
        with self._lock:
            self._idle.append(stage)

    @contextlib.contextmanager
    def _straight(
        self, space: Space, region: Region | None, gate: ContextManager[Any], until: float
    ) -> Iterator[bool]:
        """Whether a call may have the server use the engine's memory, which it has back when this ends."""
        store, sure = space._store, True
        if region is None or not isinstance(gate, Gate) or not region.lend(store, min(5.0, left(until))):
            yield False
            return
        try:
            gate.lend(1)
            try:
                yield True
            except SkepError as e:
                # Invalid: the engine's file was cut short, and the server takes no more of it.
                sure = not isinstance(e, errors.NotReleased) and e.code != errors.INVALID
                raise
        finally:
            region.back(store, sure)
            if gate.lent:
                gate.back(1)

    # What is done with pages. until is a time of time.monotonic().

    def found(self, where: Where, names: Sequence[bytes], lease: float, until: float) -> int:
        """How many leading pages are there; they stay for so many seconds."""
        with self._use(where) as space:
            return space.lookup(names, lease, timeout=left(until)).blocks

    def leased(self, where: Where, names: Sequence[bytes], lease: float, until: float) -> list[bool]:
        """Of each page whether it is there, by itself; they stay for so many seconds."""
        with self._use(where) as space:
            return space.lookup_each(names, lease, timeout=left(until))[0]

    def there(self, where: Where, names: Sequence[bytes], until: float) -> list[bool]:
        """Of each page whether it is there: of a chain also where the names begin inside it."""
        with self._use(where) as space:
            if where.chained:
                return [o == EXISTS for o in space.want(names, timeout=left(until))]
            return [tier != 0 for tier in space.exists(names, timeout=left(until))]

    def load(
        self,
        where: Where,
        names: Sequence[bytes],
        pages: Sequence[Page],
        until: float,
        gate: ContextManager[Any] = contextlib.nullcontext(),
        prefix: Sequence[bytes] = (),
        region: Region | None = None,
    ) -> list[bool]:
        """Fills pages, in a chain behind those of prefix, and says which are there, whole. Behind the first that is
        not, others may not be looked for. In a region, which is for namespaces without chains, each page is one
        piece."""
        landed = [False] * len(pages)
        chain = [*prefix, *names]
        with self._use(where) as space:
            with self._straight(space, region, gate, until) as lent:
                if lent and region is not None:
                    into = [region.at(address - region.address, n) for ((address, n),) in pages]
                    return space.restore(names, into, timeout=left(until)).landed
            before = prefix if where.chained else ()
            counted = 0 if library().version >= LAYERS else len(before)  # older ones count what is not asked for
            if _scattered(pages, gate) and len(pages) + counted <= MOST:
                into = Placed([*((),) * len(before), *pages])
                return space.restore([*before, *names], into, timeout=left(until)).landed[len(before) :]
            for at, to, total, offsets in _pieces_of(pages):
                with self._stage(total, until) as stage:
                    into = [stage.view[o : o + size_of(p)] for o, p in zip(offsets, pages[at:to])]
                    lead = len(prefix) + at if where.chained else 0
                    part = chain[len(prefix) + at - lead : len(prefix) + to]
                    codes = space.restore(part, [None] * lead + into, timeout=left(until)).codes[lead:]
                    with gate:
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
        gate: ContextManager[Any] = contextlib.nullcontext(),
        accepted: bool = False,
        region: Region | None = None,
    ) -> tuple[list[bool], int, str]:
        """Stores pages that are not there yet, in a chain behind those of prefix. It says which are there now, how
        many were there before, and why one is not. With accepted drives are not waited for. A region is as of load."""
        stored, why = [False] * len(pages), ""
        with self._use(where) as space:
            if where.chained:
                have = [o == EXISTS for o in space.want(names, timeout=left(until))]
                have = have[: have.index(False)] if False in have else have
                have += [False] * (len(names) - len(have))  # a run is put from the first that is missing
            else:
                have = [tier != 0 for tier in space.exists(names, timeout=left(until))]
            for i, there in enumerate(have):
                stored[i] = there
            todo = [i for i, there in enumerate(have) if not there]
            with self._straight(space, region if todo else None, gate, until) as lent:
                if lent and region is not None:
                    data = [region.at(address - region.address, n) for ((address, n),) in (pages[i] for i in todo)]
                    became = space.put([names[i] for i in todo], data, timeout=left(until))
                    for i, outcome, reason in zip(todo, *became):
                        stored[i] = outcome != 0
                        why = why or ("" if outcome else f"declined: {errors.name_of(reason)}")
                    return stored, sum(have), why
            chain = [*prefix, *names]

            def put(part: list[int], data: Any) -> Stored:
                depth = len(prefix) + part[0] if where.chained else 0
                return space.put(
                    [names[i] for i in part],
                    data,
                    parent=chain[depth - 1] if depth else None,
                    depth=depth,
                    timeout=left(until),
                    accepted=accepted,
                )

            missing = [pages[i] for i in todo]
            whole = todo and _scattered(missing, gate)
            for at, to, total, offsets in [(0, len(todo), 0, [])] if whole else _pieces_of(missing):
                part = todo[at:to]
                if whole:
                    became = put(part, Placed(missing))
                else:
                    with self._stage(total, until) as stage:
                        with gate:
                            for i, o in zip(part, offsets):
                                o += stage.address
                                for address, n in pages[i]:
                                    c.memmove(o, address, n)
                                    o += n
                        became = put(part, [stage.view[o : o + size_of(pages[i])] for i, o in zip(part, offsets)])
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


MOST = 65536  # blocks of one call in pieces


def _scattered(pages: Sequence[Page], gate: ContextManager[Any]) -> bool:
    """Whether the library copies pages: it goes through memory of its own where each lies in several pieces."""
    apart = all(any(a + n != b for (a, n), (b, _) in zip(page, page[1:])) for page in pages)
    return apart and not isinstance(gate, Gate) and library().version >= PIECES


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
