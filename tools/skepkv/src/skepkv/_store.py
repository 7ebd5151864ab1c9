"""Stores, namespaces and what they answer."""

from __future__ import annotations

import ctypes as c
import json
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, NamedTuple, Sequence, TypeVar

from . import errors
from ._events import Events
from ._library import (
    KEY,
    PAGED_LAYERS,
    PIECES,
    FoundStruct,
    Held,
    Hints,
    PartStruct,
    Scope,
    _ms,
    array,
    in_pieces,
    joined,
    layers_of,
    library,
    named,
    takes,
)
from ._memory import Memory, Registered
from ._pieces import Copies
from ._structured import Paged, Shape, Writer

if TYPE_CHECKING:
    from ._queue import Done, Queue

_T = TypeVar("_T")
# Memory that a drive may use yet, of stores that were closed. It is kept until the process ends.
_kept: list[Held] = []


def _hints(
    pin: float = 0, next_use: float = 0, ttl: float = 0, steps: int = 0, drop: bool = False, program: str = ""
) -> Hints:
    """What Space.hint is given."""
    return Hints(round(pin * 1000), round(next_use * 1000), round(ttl * 1000), steps, drop, program.encode() or None)


class Lease:
    """A promise that the blocks of a lookup stay. It ends with `release`, with the block of a `with`, or by itself."""

    def __init__(self, store: "Store", number: int) -> None:
        self._store, self.number = store, number

    def __bool__(self) -> bool:
        return self.number != 0

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def renew(self, seconds: float = 0) -> None:
        """Makes it last for so many seconds from now (0: as of a lookup that names none). SkepError 10: it has run
        out."""
        library().call("renew", self._store._number, self.number, _ms(seconds or None))

    def release(self) -> None:
        """Gives it back. Once is enough."""
        number, self.number = self.number, 0
        if number:
            library().call("release", self._store._number, number)


class Found(NamedTuple):
    """What a lookup found: the leading keys that can be restored now."""

    blocks: int
    tokens: int
    bytes: int
    lease: Lease


class Stored(NamedTuple):
    """What became of each block of a put: 0 declined, 1 committed, 2 accepted, 3 exists. `reasons` has the code of why
    one was declined. It is true where every block is stored."""

    outcomes: bytes
    reasons: bytes

    def __bool__(self) -> bool:
        return 0 not in self.outcomes


class Restored(NamedTuple):
    """What became of each block of a restore: 0 it is there, whole or in the layers asked for, else the code of why
    not. It is true where every block is there."""

    codes: bytes

    def __bool__(self) -> bool:
        return not any(self.codes)

    @property
    def landed(self) -> list[bool]:
        """Of each block, whether it is there."""
        return [code == 0 for code in self.codes]

    @property
    def blocks(self) -> int:
        """How many blocks are there, from the first, before one that is not."""
        return next((i for i, code in enumerate(self.codes) if code), len(self.codes))


class Space:
    """A namespace of a store. Any thread may use it."""

    def __init__(
        self, store: "Store", spec: dict[str, Any], salt: bytes = b"", shape: Shape | None = None
    ) -> None:
        self._store, self._spec, self._salt, self._shape = store, spec, salt, shape
        self._number = [0]  # shared with the same namespace under other salts; 0: not opened yet

    def salted(self, salt: bytes) -> "Space":
        """The same namespace under a salt: blocks of another salt are not found."""
        out = Space(self._store, self._spec, bytes(salt), self._shape)
        out._number = self._number
        return out

    def open(self, timeout: float | None = None) -> "Space":
        """Opens the namespace on the server, which every call does where that is needed."""
        self._open(_ms(timeout))
        return self

    def _open(self, ms: int) -> None:
        number, spec = c.c_uint32(), json.dumps(self._spec).encode()
        library().call("namespace_within", self._store._number, spec, ms, c.byref(number))
        self._number[0] = number.value

    def _scoped(self, timeout: float | None, do: Callable[[Any, int], _T]) -> _T:
        """Does a call, and opens the namespace anew where a server does not know it: its store is another one. do is
        given what is left of the time, in milliseconds: all of it is one call's."""
        ms, began = _ms(timeout), time.monotonic()

        def left() -> int:
            return ms and max(1, ms - int((time.monotonic() - began) * 1000))

        known = self._number[0] != 0
        if not known:
            self._open(left())
        try:
            return do(c.byref(self._scope()), left())
        except errors.SkepError as e:
            if e.code != errors.NOT_FOUND or not known:
                raise
        self._open(left())
        return do(c.byref(self._scope()), left())

    def _scope(self) -> Scope:
        return Scope(self._number[0], len(self._salt), self._salt or None)

    def lookup(self, keys: Any, lease: float | None = None, timeout: float | None = None) -> Found:
        """Finds the longest prefix of keys that can be restored now, and leases it for so many seconds; None: no
        lease."""
        names, out = joined(keys), FoundStruct()
        held, n = -1 if lease is None else _ms(lease), len(names) // KEY
        self._scoped(
            timeout,
            lambda sc, ms: library().call("lookup_within", self._store._number, sc, names, n, held, ms, c.byref(out)),
        )
        return Found(out.blocks, out.tokens, out.bytes, Lease(self._store, out.lease))

    def lookup_each(
        self, keys: Any, lease: float | None = None, timeout: float | None = None
    ) -> tuple[list[bool], Lease]:
        """Says of each key whether its block can be restored now, and leases those that can, all of them together, for
        so many seconds; None: no lease. The lease is false where nothing is found, or no more may be leased. In a
        chained namespace the keys are one chain."""
        names, number = joined(keys), c.c_uint64()
        held, n = -1 if lease is None else _ms(lease), len(names) // KEY
        out = array(c.c_uint8, n)()
        self._scoped(
            timeout,
            lambda sc, ms: library().call(
                "lookup_each", self._store._number, sc, names, n, held, ms, out, c.byref(number)
            ),
        )
        return [x != 0 for x in out], Lease(self._store, number.value)

    def exists(self, keys: Any, timeout: float | None = None) -> bytes:
        """Says of each key where its block is: 0 nowhere, 1 on a drive, 2 in memory, 3 on another node, 4 in GPU
        memory, 5 in object storage."""
        names = joined(keys)
        out = array(c.c_uint8, len(names) // KEY)()
        self._scoped(
            timeout, lambda sc, ms: library().call("exists", self._store._number, sc, names, len(out), ms, out)
        )
        return bytes(out)

    def want(self, keys: Any, timeout: float | None = None) -> bytes:
        """Says of each key what a put of its block would be: 255 wanted, 3 exists, 0 declined. In a chained namespace
        it finds keys that begin inside a chain, too; in an unchained one all are wanted."""
        names = joined(keys)
        out = array(c.c_uint8, len(names) // KEY)()
        self._scoped(
            timeout, lambda sc, ms: library().call("want", self._store._number, sc, names, len(out), 0, ms, out, None)
        )
        return bytes(out)

    def put(
        self,
        keys: Any,
        data: Sequence[Any],
        parent: bytes | None = None,
        depth: int = 0,
        timeout: float | None = None,
        accepted: bool = False,
    ) -> Stored:
        """Stores a block of each key. data are C-contiguous buffers, or lists or tuples of them: pieces, in the order
        of the block's bytes, which are copied once. In a chained namespace the blocks follow one another, behind
        parent, which is at depth - 1. There with accepted it waits only until the store has them in its memory, outcome
        2; Store.flush waits for the drives."""
        names = self._pair(keys, data)
        if parent is not None and len(parent) != KEY:
            raise ValueError(f"parent has {len(parent)} bytes, must be {KEY}")
        if in_pieces(data):
            if library().version >= PIECES:
                done = self._queued(timeout, lambda q, t: q.put(self, names, data, parent, depth, t, accepted))
                return Stored(done.results, done.reasons)
            with Copies(self._store, data, False) as copies:
                copies.gather()
                return self.put(keys, copies.whole, parent, depth, timeout, accepted)
        outcomes, reasons = array(c.c_uint8, len(data))(), array(c.c_uint8, len(data))()
        self._with(
            data,
            False,
            timeout,
            lambda sc, ms, held: library().call(
                "save_accepted" if accepted else "save",
                self._store._number,
                sc,
                parent,
                depth,
                names,
                held.count,
                held.addresses,
                held.lengths,
                ms,
                outcomes,
                reasons,
            ),
        )
        return Stored(bytes(outcomes), bytes(reasons))

    def restore(
        self,
        keys: Any,
        into: Sequence[Any],
        lease: Lease | None = None,
        timeout: float | None = None,
        part: str = "kv",
        layers: tuple[int, int] | None = None,
    ) -> Restored:
        """Fills each of into, C-contiguous writable buffers, with the block of its key. A block of another length is
        code 17, one that is not stored 21 or 2; a buffer whose code is not 0 is undefined. A list or tuple of buffers
        is pieces, as of put. In a chained namespace leading ones may be None, of code 0: they are not loaded, and say
        what the others continue, without which object storage does not give those. Of blocks that have parts (begin) it
        loads one. Of blocks of a Shape it loads layers (first, last), last not among them, to where they are in the
        whole block; other bytes stay as they are. ValueError, Invalid: there are no such layers."""
        names = self._pair(keys, into)
        if layers is not None or in_pieces(into):
            if layers is not None or library().version >= PIECES:
                done = self._queued(timeout, lambda q, t: q.restore(self, names, into, lease, t, part, layers))
                return Restored(done.results)
            with Copies(self._store, into, True) as copies:
                restored = self.restore(names, copies.whole, lease, timeout, part)
                copies.spread(restored.codes)
                return restored
        results, number = array(c.c_uint8, len(into))(), lease.number if lease is not None else 0
        self._with(
            into,
            True,
            timeout,
            lambda sc, ms, held: library().call(
                "load_part",
                self._store._number,
                sc,
                named(part),
                names,
                held.count,
                number,
                held.addresses,
                held.lengths,
                ms,
                results,
            ),
        )
        return Restored(bytes(results))

    def begin(
        self,
        key: bytes,
        parts: Mapping[str, int],
        parent: bytes | None = None,
        depth: int = 0,
        life: float | None = None,
        timeout: float | None = None,
    ) -> Writer:
        """Begins a block of parts: 1 to 16 names, "kv" the usual one, with bytes of each. It is
        found when it is committed with all of them written, behind parent as of put. Who does not commit it within life
        seconds (None: a minute) has it dropped. With a library before version 10 timeout is of the namespace's opening
        alone."""
        names = self._pair(key, [None])
        if parent is not None and len(parent) != KEY:
            raise ValueError(f"parent has {len(parent)} bytes, must be {KEY}")
        listed, number = array(PartStruct, len(parts))(*((named(n), size) for n, size in parts.items())), c.c_uint64()
        if library().version >= PIECES:
            done = self._queued(timeout, lambda q, t: q._begin(self, names, listed, parent, depth, life, t))
            return Writer(self._store, done.lease.number)
        within = _ms(life)
        self._scoped(
            timeout,
            lambda sc, _: library().call(
                "begin", self._store._number, sc, parent, depth, names, listed, len(parts), within, c.byref(number)
            ),
        )
        return Writer(self._store, number.value)

    def restore_paged(
        self,
        keys: Any,
        cache: Paged,
        slots: Sequence[int],
        first: int = 0,
        to: int | None = None,
        timeout: float | None = None,
        layers: tuple[int, int] | None = None,
    ) -> int:
        """Restores blocks [first, to) of a chain into an engine's paged cache, and says how many of them arrived, in
        order: the tokens of later ones are undefined. slots has page * page_tokens + the token in it for each token of
        those blocks; below 0: that one goes nowhere. The namespace has a Shape. Of layers (first, last), last not among
        them, it restores no others: it takes a library of version 12. Invalid: the cache is of another Shape, a slot
        outside it, or there are no such layers."""
        shape, names, arrived = self._shape, joined(keys), c.c_uint32()
        if shape is None:
            raise ValueError("the namespace has no shape, must be opened with one")
        n = len(names) // KEY
        last = n if to is None else to
        if not 0 <= first < last <= n:
            raise ValueError(f"blocks are {first} to {last}, must be in 0 to {n}")
        if len(slots) != (last - first) * shape.tokens:
            raise ValueError(f"slots are {len(slots)}, must be {(last - first) * shape.tokens}, one for each token")
        name, some = "restore", ()  # type: tuple[str, tuple[int, ...]]
        if layers is not None:
            takes("layers into a paged cache", PAGED_LAYERS)
            name, some = "restore_layers", layers_of(layers)
        numbers = array(c.c_int64, len(slots))(*slots)
        page = shape.bytes * cache._tokens // (shape.tokens * shape.layers * (1 if shape.latent else 2))
        self._do(
            cache._held(),
            timeout,
            lambda sc, ms, held: library().call(
                name,
                self._store._number,
                sc,
                names,
                n,
                first,
                last,
                *some,
                c.byref(cache._struct(held, numbers, page)),
                0,
                ms,
                c.byref(arrived),
            ),
        )
        return arrived.value

    def delete(self, keys: Any, timeout: float | None = None) -> int:
        """Removes blocks, and says how many were there."""
        names, out = joined(keys), c.c_uint32()
        n = len(names) // KEY
        self._scoped(
            timeout, lambda sc, ms: library().call("delete", self._store._number, sc, names, n, ms, c.byref(out))
        )
        return out.value

    def hint(
        self,
        keys: Any,
        *,
        pin: float = 0,
        next_use: float = 0,
        ttl: float = 0,
        steps: int = 0,
        drop: bool = False,
        program: str = "",
        timeout: float | None = None,
    ) -> int:
        """Tells of the future of blocks, and says how many are stored: to keep them for `pin` seconds at least, within
        the tenant's pin budget; that they are used next in `next_use` seconds, or when the program that uses them runs,
        in so many `steps`: they are read ahead; that they are worth nothing after `ttl` seconds, or, with `drop`, now:
        then they are pinned no more. `program` is whose they are, in statistics. It changes what is kept, never what is
        right. SkepError 5: no more may be pinned, and nothing is."""
        names, out = joined(keys), c.c_uint32()
        h, n = _hints(pin, next_use, ttl, steps, drop, program), len(names) // KEY
        self._scoped(
            timeout,
            lambda sc, ms: library().call(
                "hint", self._store._number, sc, names, n, c.byref(h), ms, c.byref(out)
            ),
        )
        return out.value

    def purge(self, timeout: float | None = None) -> None:
        """Makes all of the namespace, or, salted, of the salt, invisible at once, for good."""
        self._scoped(timeout, lambda sc, ms: library().call("purge", self._store._number, None, None, sc, ms))

    def keys(self, timeout: float | None = None) -> Iterator[bytes]:
        """Keys of the namespace's blocks, but for salted ones; one may come twice. timeout is of each call."""
        place, n, room = c.c_uint64(), c.c_uint32(), c.create_string_buffer(1024 * KEY)
        while True:
            self._scoped(
                timeout,
                lambda _, ms: library().call(
                    "list", self._store._number, self._number[0], c.byref(place), room, 1024, ms, c.byref(n)
                ),
            )
            some = room.raw[: n.value * KEY]
            for i in range(0, len(some), KEY):
                yield some[i : i + KEY]
            if not place.value:
                return

    def _pair(self, keys: Any, blocks: Sequence[Any]) -> bytes:
        names = joined(keys)
        if len(names) != KEY * len(blocks):
            raise ValueError(f"{len(names) // KEY} keys and {len(blocks)} blocks")
        return names

    def _queued(self, timeout: float | None, submit: Callable[["Queue", "float | None"], "int | None"]) -> "Done":
        """Does a call by a queue: the library has it for queues alone, or heeds the timeout only there."""
        from ._queue import waited

        return self._scoped(timeout, lambda _, ms: waited(self._store, lambda q: submit(q, ms / 1000 or None)))

    def _with(
        self, blocks: Sequence[Any], writable: bool, timeout: float | None, do: Callable[[Any, int, Held], None]
    ) -> None:
        self._do(Held(blocks, writable), timeout, do)

    def _do(self, held: Held, timeout: float | None, do: Callable[[Any, int, Held], None]) -> None:
        try:
            self._scoped(timeout, lambda sc, ms: do(sc, ms, held))
        except errors.NotReleased:
            self._store._kept.append(held)
            raise
        except BaseException:
            held.release()
            raise
        held.release()


class Store:
    """A store, of a server or in this process: see connect and embed. Any thread may use it, and it is a context
    manager."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._number = 0
        self._kept: list[Held] = []  # memory that a drive may use until the store is closed
        self._over = threading.Event()  # closing it has ended
        self._unsure: errors.SkepError | None = None  # the store is closed, and drives may use its memory yet
        self._ended: list[Callable[[errors.SkepError | None], None]] = []  # are told that it was closed, or why not
        number = c.c_uint64()
        library().call("open", json.dumps(spec).encode(), c.byref(number))
        self._number = number.value

    def namespace(
        self,
        name: str,
        *,
        model: str = "",
        tenant: str = "",
        chained: bool = False,
        each: bool = False,
        block_tokens: int = 1,
        bytes: int = 0,
        copies: int = 1,
        durable: bool = False,
        lazy: bool = False,
        shape: Shape | None = None,
    ) -> Space:
        """Opens a namespace of opaque blocks, of so many bytes each or, where that is 0, of any length; or of blocks of
        a shape, which says their tokens and bytes. An empty tenant is the credential's. With `each`, in a chained one,
        every key is a chain of its own: calls take keys as of an unchained namespace, the first writer of a key wins,
        and a cluster's replicas, its repair and object storage are for them. A lazy one is opened by its first call."""
        if shape is not None and (bytes or block_tokens not in (1, shape.tokens)):
            raise ValueError(f"block_tokens and bytes are {block_tokens} and {bytes}, must be the shape's")
        space = Space(
            self,
            {
                "tenant": tenant,
                "name": name,
                "model": model,
                "chained": chained,
                "each": each,
                "copies": copies,
                "class": int(durable),
                "shape": shape._json() if shape is not None else {"block_tokens": block_tokens, "bytes": bytes},
            },
            shape=shape,
        )
        return space if lazy else space.open()

    def alloc(self, n: int) -> Memory:
        """Takes n bytes of memory that the server maps, too. SkepError 23: there is not so much left."""
        return Memory(self, n)

    def register(self, buffer: Any, *, fd: int = -1, offset: int = 0, timeout: float | None = None) -> Registered:
        """Has the server map memory that there is: a writable buffer over a shared mapping of a file in /dev/shm, say,
        of whole pages. The file is found, or is fd, and buffer begins at offset in it. SkepError 19 or 26 says why it
        cannot be; calls work with it as with any memory then."""
        return Registered(self, buffer, fd, offset, timeout)

    def direct(self, timeout: float = 5.0) -> str | None:
        """Whether drives read into memory of this process: None, or why they do not."""
        try:
            library().call("direct", self._number, _ms(timeout))
        except errors.Forked:
            raise
        except errors.SkepError as e:
            return str(e)
        return None

    def _in_use(self) -> errors.SkepError | None:
        """Of a store that is closed, once that has ended: why drives may use its memory yet."""
        if not self._number:
            self._over.wait()
        return self._unsure

    def flush(self, timeout: float | None = None) -> None:
        """Waits until what was accepted before (Space.put) is on the drives, or declined: then it is a miss."""
        library().call("flush", self._number, _ms(timeout))

    def stats(self, timeout: float | None = None) -> dict[str, Any]:
        """What the store did since it was opened, and how it stands: skep.Stats of the Go package. Sizes are bytes."""
        n, room = c.c_uint64(), 64 << 10
        while True:
            text = c.create_string_buffer(room)
            library().call("stats", self._number, _ms(timeout), text, room, c.byref(n))
            if n.value < room:
                return json.loads(text.value)
            room = 2 * n.value

    def events(self, after: tuple[int, int] | None = None, snapshot: bool = False) -> Events:
        """Follows what happens to blocks: from now on, from behind an event's (epoch, seq) on, or first of all that are
        stored."""
        return Events(self._number, after, snapshot)

    def queue(self, depth: int = 64) -> "Queue":
        """A queue of calls that run side by side, without a thread for each."""
        from ._queue import Queue

        return Queue(self, depth)

    def close(self) -> None:
        """Ends what is under way and closes the store. After an error drives may use memory that calls were given: the
        package keeps it until the process ends. In a forked process it does nothing: the store is the parent's."""
        number, self._number = self._number, 0
        if number and not library().forked():
            why: errors.SkepError | None = None
            try:
                library().call("close", number)
            except errors.SkepError as e:
                _kept.extend(self._kept)
                self._unsure = why = e  # whichever error it is: what it says first need not be all
                raise
            finally:
                self._over.set()
                for tell in self._ended:
                    tell(why)
            for held in self._kept:
                held.release()
            self._kept = []

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
