"""Calls side by side without a thread for each."""

from __future__ import annotations

import builtins
import ctypes as c
import itertools
import os
import select
import threading
from typing import Any, Callable, NamedTuple, Sequence

from . import _store, errors
from ._library import (
    KEY,
    LAYERS,
    PIECES,
    DoneStruct,
    Held,
    Hints,
    OpStruct,
    _ms,
    array,
    held_of,
    joined,
    layers_of,
    library,
    named,
    takes,
)
from ._store import Lease, Space, Store, _hints

_LOOKUP, _LOOKUP_EACH, _EXISTS, _WANT, _LOAD, _SAVE, _ACCEPTED = range(1, 8)
_DELETE, _HINT, _RENEW, _RELEASE, _FLUSH = range(8, 13)
_BEGIN = 14


class Done(NamedTuple):
    """A call that is over. `tag` is what its submission returned; `code` is 0, else that of the SkepError which the
    call of Space would have raised, and `text` says more. `results` are those of each key: of put outcomes, with
    `reasons`, of restore codes, of lookup_each 1 or 0, of exists tiers, of want what it says. `blocks` is how many were
    stored, landed, found, known or deleted; of a lookup they have `tokens` and `bytes`."""

    tag: int
    code: int
    text: str
    blocks: int
    results: builtins.bytes
    reasons: builtins.bytes
    lease: Lease
    tokens: int = 0
    bytes: int = 0


def _not_forked() -> None:
    """In a forked process another thread may have had the lock for ever."""
    if library().forked():
        raise errors.Forked(errors.UNSUPPORTED, "this process is forked from the one that loaded the library")


class _Call:
    """What a call has until it is drained."""

    def __init__(self, space: Space | None, n: int, held: Held | None) -> None:
        self.space, self.held = space, held
        self.namespace = 0  # its number
        self.results, self.reasons = array(c.c_uint8, n)(), array(c.c_uint8, n)()


class Queue:
    """At most `depth` calls that are under way or not yet drained. `fileno` can be read, as a selector says, while
    there is something to drain. Any thread may use it; it is a context manager.

    Calls are Space's, Lease's and Store's, and return a tag at once, or None where the queue is full. They run side by
    side: one that needs another's result is submitted when that was drained. Buffers are held until then. A lazy
    namespace is opened by the first call, which waits for that. Blocks in pieces, and parts, take a library of version
    10, layers one of version 11; with another they are SkepError 19."""

    def __init__(self, store: Store, depth: int = 64) -> None:
        number, fd = c.c_uint64(), c.c_int()
        library().call("queue_open", store._number, depth, c.byref(number), c.byref(fd))
        self._store, self._number, self._fd = store, number.value, fd.value
        self._tags = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        # Of _calls and _number: close finds every call, and none that a drain has taken and not answered.
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._fd

    def lookup(self, space: Space, keys: Any, lease: float | None = None, timeout: float | None = None) -> int | None:
        return self._submit(_LOOKUP, space, keys, timeout, lease=lease)

    def lookup_each(
        self, space: Space, keys: Any, lease: float | None = None, timeout: float | None = None
    ) -> int | None:
        return self._submit(_LOOKUP_EACH, space, keys, timeout, lease=lease)

    def exists(self, space: Space, keys: Any, timeout: float | None = None) -> int | None:
        return self._submit(_EXISTS, space, keys, timeout)

    def want(self, space: Space, keys: Any, timeout: float | None = None) -> int | None:
        return self._submit(_WANT, space, keys, timeout)

    def delete(self, space: Space, keys: Any, timeout: float | None = None) -> int | None:
        return self._submit(_DELETE, space, keys, timeout)

    def hint(self, space: Space, keys: Any, *, timeout: float | None = None, **future: Any) -> int | None:
        return self._submit(_HINT, space, keys, timeout, future=_hints(**future))

    def renew(self, lease: Lease, seconds: float = 0) -> int | None:
        return self._submit(_RENEW, None, b"", None, lease=seconds or None, number=lease.number)

    def release(self, lease: Lease) -> int | None:
        tag = self._submit(_RELEASE, None, b"", None, number=lease.number)
        if tag is not None:
            lease.number = 0
        return tag

    def flush(self, timeout: float | None = None) -> int | None:
        return self._submit(_FLUSH, None, b"", timeout)

    def put(
        self,
        space: Space,
        keys: Any,
        data: Sequence[Any],
        parent: bytes | None = None,
        depth: int = 0,
        timeout: float | None = None,
        accepted: bool = False,
    ) -> int | None:
        if parent is not None and len(parent) != KEY:
            raise ValueError(f"parent has {len(parent)} bytes, must be {KEY}")
        names = space._pair(keys, data)
        what, held = _ACCEPTED if accepted else _SAVE, held_of(data, False)
        return self._submit(what, space, names, timeout, held=held, parent=parent, depth=depth)

    def restore(
        self,
        space: Space,
        keys: Any,
        into: Sequence[Any],
        lease: Lease | None = None,
        timeout: float | None = None,
        part: str = "kv",
        layers: tuple[int, int] | None = None,
    ) -> int | None:
        names, number, some = space._pair(keys, into), lease.number if lease is not None else 0, layers_of(layers)
        held = held_of(into, True)
        return self._submit(_LOAD, space, names, timeout, held=held, number=number, part=part, layers=some)

    def _begin(
        self, space: Space, key: bytes, parts: Any, parent: bytes | None, depth: int, life: float | None, timeout: Any
    ) -> int | None:
        """Space.begin, of an array of parts; the lease of what is done has the writer's number."""
        return self._submit(_BEGIN, space, key, timeout, lease=life, parent=parent, depth=depth, parts=parts)

    def _submit(
        self,
        what: int,
        space: Space | None,
        keys: Any,
        timeout: float | None,
        lease: float | None = None,
        held: Held | None = None,
        parent: bytes | None = None,
        depth: int = 0,
        number: int = 0,
        future: Hints | None = None,
        part: str = "kv",
        parts: Any = None,
        layers: tuple[int, int] = (0, 0),
    ) -> int | None:
        names = joined(keys)
        call, taken = _Call(space, len(names) // KEY, held), c.c_uint32()
        tag = next(self._tags)
        if library().forked() and held is not None:
            held.release()
        _not_forked()
        with self._lock:  # close has it, or it is refused
            queue = self._number
            self._calls[tag] = call  # before another thread may drain it
        try:
            size = c.sizeof(OpStruct) if library().version >= PIECES else OpStruct.pieces.offset
            op = OpStruct(size=size, what=what, tag=tag, n=len(names) // KEY, depth=depth, lease=number)
            op.keys, op.parent, op.timeout_ms = names, parent, _ms(timeout)
            if space is not None:
                if not space._number[0]:
                    space.open(timeout)
                call.namespace, op.scope = space._number[0], c.pointer(space._scope())
            op.lease_ms = _ms(lease) if lease is not None else 0 if what == _RENEW else -1
            if future is not None:
                op.future = c.pointer(future)
            if parts is not None:
                op.n, op.parts = len(parts), c.cast(parts, c.c_void_p)
            if layers != (0, 0):
                takes("layers", LAYERS)
                op.from_, op.to = layers
            if part != "kv":
                takes(f"part {part!r}", PIECES)
                op.part = named(part)
            if held is not None:
                op.blocks, op.lengths = c.cast(held.addresses, c.c_void_p), c.cast(held.lengths, c.c_void_p)
                if held.pieces is not None:
                    takes("blocks in pieces", PIECES)
                    op.pieces = c.cast(held.pieces, c.c_void_p)
            op.results, op.reasons = c.addressof(call.results), c.addressof(call.reasons)
            library().call("submit", queue, c.byref(op), 1, c.byref(taken))
        finally:
            if not taken.value:
                with self._lock:
                    ours = self._calls.pop(tag, None) is not None
                if ours and held is not None:
                    held.release()  # where close has not
        return tag if taken.value else None

    def drain(self, most: int = 64) -> list[Done]:
        """Takes what is over, each once. It does not wait."""
        room, got = array(DoneStruct, most)(), c.c_uint32()
        _not_forked()
        with self._lock:
            library().call("drain", self._number, room, most, c.byref(got))
            return [self._done(room[i]) for i in range(got.value)]

    def _done(self, d: DoneStruct) -> Done:
        call = self._calls.pop(d.tag)
        if call.held is not None:
            if d.code == errors.NOT_RELEASED:
                self._store._kept.append(call.held)
            else:
                call.held.release()
        text, lease = d.message.decode(errors="replace"), Lease(self._store, d.lease)
        if d.code == errors.NOT_FOUND and call.space is not None and call.space._number[0] == call.namespace:
            call.space._number[0] = 0  # another store is there: the next call opens the namespace anew
        results, reasons = bytes(call.results), bytes(call.reasons)
        return Done(d.tag, d.code, text, d.blocks, results, reasons, lease, d.tokens, d.bytes)

    def close(self, timeout: float | None = None) -> None:
        """Ends what is under way, and the queue. NotReleased: buffers are in use yet, and are held until the store is
        closed."""
        if library().forked():
            self._number = 0
            return
        with self._lock:
            if not self._number:
                return  # what is being refused is its thread's to give back
            number, self._number = self._number, 0
            calls, self._calls = self._calls, {}
        held = [call.held for call in calls.values() if call.held is not None]
        if self._store._number:
            try:
                library().call("queue_close", number, _ms(timeout))
            except errors.SkepError:
                if self._store._number:
                    self._store._kept.extend(held)
                    raise
        if not self._store._number and self._store._in_use() is not None:  # closing the store has ended it
            _store._kept.extend(held)
            return
        for h in held:
            h.release()

    def __enter__(self) -> "Queue":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def waited(store: Store, submit: Callable[[Queue], "int | None"]) -> Done:
    """Does one call of a queue's, waits until it is over, and raises what it says."""
    with Queue(store, 1) as queue:
        fd = -1
        try:
            fd = os.dup(queue.fileno())  # the library closes its own with the store
            submit(queue)  # an error where that was closed before
            over = select.poll()
            over.register(fd, select.POLLIN)
            over.poll()
            (done,) = queue.drain()
        except (OSError, errors.SkepError) as e:
            if not store._number:
                raise errors.SkepError(errors.CLOSED, "the store") from e
            if isinstance(e, OSError):
                raise errors.SkepError(errors.OTHER, f"a descriptor for the call: {e}") from e
            raise
        finally:
            if fd >= 0:
                os.close(fd)
    if done.code:
        errors.raise_for(done.code, done.text, library().forked())
    return done
