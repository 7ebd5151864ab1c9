"""skepkv for asyncio: the same names, awaited.

    from skepkv import aio
    async with await aio.connect("unix:/run/skep/skep.sock") as store:
        space = await store.namespace("blocks")
        await space.put(keys, [b"first", b"second"])
        into = [bytearray(5), bytearray(6)]
        assert await space.restore(keys, into)

The calls of Space and Lease, and flush, go to a skepkv.Queue of each event loop, which the loop waits for: `depth` of
them are under way at a time, without a thread for each, and others wait for room, in order. In a thread of the
store's, of which it has `workers`, go connecting and closing, the opening of a namespace, blocks of parts that are
written, restore_paged, purge, alloc, register, direct and stats, and, with a library before version 10, put and restore
of blocks in pieces.

A timeout counts from the await. A task that is cancelled goes on when its call has ended, since that may use its
buffers until then; the call's timeout bounds this. Calls under way when the store is closed are errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import concurrent.futures
import functools
import os
import threading
import time
from typing import Any, Callable, Iterable, Mapping, Sequence, TypeVar

import skepkv

from . import Done, Memory, Paged, Queue, Registered, Restored, SkepError, Stored, errors
from ._library import PIECES, _ms, in_pieces, library

__all__ = ["Found", "Lease", "Space", "Store", "Writer", "connect", "embed"]

_T = TypeVar("_T")
_Submit = Callable[[Queue, "float | None"], "int | None"]  # a call of a queue's, with what is left of its timeout


def _not_forked() -> None:
    if library().forked():
        raise errors.Forked(errors.UNSUPPORTED, "this process is forked from the one that loaded the library")


class _Clock:
    """What is left of a timeout."""

    def __init__(self, timeout: float | None) -> None:
        _ms(timeout)  # it is one
        self._end = None if timeout is None else time.monotonic() + timeout

    def left(self) -> float | None:
        if self._end is None:
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise SkepError(errors.DEADLINE, "other calls were before it")
        return left


class _Threads:
    """Threads that carry out what no queue does."""

    def __init__(self, workers: int) -> None:
        if type(workers) is not int or not 1 <= workers <= 256:
            raise ValueError(f"workers are {workers!r}, must be 1 to 256 threads")
        self._pool = concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="skepkv-aio")

    async def run(self, do: Callable[..., _T], *args: Any, start: float | None = None) -> _T:
        """Has a thread do it, and is not over before that is. It is not done where none is free within start
        seconds."""
        _not_forked()
        loop = asyncio.get_running_loop()
        try:
            job = self._pool.submit(do, *args)
        except RuntimeError as e:  # its threads have ended
            raise _closed() from e
        call = asyncio.wrap_future(job)
        late: asyncio.TimerHandle | None = None
        if start is not None:
            late = loop.call_later(start, job.cancel)  # one that has begun goes on
        cancelled: asyncio.CancelledError | None = None
        while not call.done():
            try:
                await asyncio.wait([call])
            except asyncio.CancelledError as e:
                cancelled = e
        if late is not None:
            late.cancel()
        if not call.cancelled() and cancelled is not None:
            call.exception()  # nobody else asks for it
        if cancelled is not None:
            raise cancelled
        if call.cancelled():
            raise SkepError(errors.DEADLINE, "all threads were busy")
        return call.result()

    async def within(self, timeout: float | None, do: Callable[[float | None], _T]) -> _T:
        """run of what takes a timeout, from which the wait for a thread is taken."""
        clock = _Clock(timeout)
        return await self.run(lambda: do(clock.left()), start=timeout)

    def end(self) -> None:
        self._pool.shutdown(wait=False)


def _closed() -> SkepError:
    return SkepError(errors.CLOSED, "the store")


class _Under(asyncio.Future):  # type: ignore[type-arg]
    """A call under way. Its task is cancelled when it has ended, and not before: that is what a task does whose future
    refuses."""

    def cancel(self, msg: Any = None) -> bool:
        return False


def _fail(futures: Iterable["asyncio.Future[Any]"], why: SkepError) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(type(why)(why.code, why.text))


class _Lane:
    """A queue that an event loop waits for. All but closing is called by the loop.

    Invariants: _free and the places of calls that are begun or about to be are the queue's depth together. Nobody waits
    while a place is free."""

    def __init__(self, store: skepkv.Store, depth: int, loop: asyncio.AbstractEventLoop) -> None:
        self.queue, self._loop = store.queue(depth), loop
        self._free, self._closed = depth, False
        self._fd = os.dup(self.queue.fileno())  # the library may close its own while the loop reads
        self._waiting: dict[asyncio.Future[None], None] = {}  # for a place, in order
        self._under: dict[int, _Under] = {}  # by tag
        loop.add_reader(self._fd, self._drain)

    async def enter(self, timeout: float | None) -> None:
        """Takes a place, which begin or leave ends."""
        if self._closed:
            raise _closed()
        if self._free:
            self._free -= 1
            return
        place: asyncio.Future[None] = self._loop.create_future()
        self._waiting[place] = None
        late = None
        if timeout is not None:
            why = SkepError(errors.DEADLINE, "the queue was full")
            late = self._loop.call_later(timeout, lambda: place.done() or place.set_exception(why))
        try:
            await place
        except BaseException:
            self._waiting.pop(place, None)
            if place.done() and not place.cancelled() and place.exception() is None:
                self.leave()  # it was given, and is not used
            raise
        finally:
            if late is not None:
                late.cancel()

    def leave(self) -> None:
        """Gives a place to who waits longest."""
        while self._waiting:
            place = next(iter(self._waiting))
            del self._waiting[place]
            if not place.done():
                place.set_result(None)
                return
        self._free += 1

    def begin(self, submit: Callable[[Queue], int | None]) -> _Under:
        """Begins a call in a place that was taken, which is free when the call is over."""
        if self._closed:
            raise _closed()
        tag = submit(self.queue)
        assert tag is not None, "a place was taken"
        call = self._under[tag] = _Under(loop=self._loop)
        return call

    def _drain(self) -> None:
        try:
            self._tell(self.queue.drain())
        except SkepError as e:  # it has ended, and with its store ended tells
            if self.queue._store._number:
                self.quiet()
                self.end(e)

    def _tell(self, over: list[Done]) -> None:
        for done in over:
            call = self._under.pop(done.tag)
            if not call.done():
                call.set_result(done)
            self.leave()

    def quiet(self) -> None:
        """Takes what is over, and no more calls: the queue is about to end."""
        if self._closed:
            return
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        try:
            self._tell(self.queue.drain(4096))
        except SkepError:  # it has ended
            pass
        self._closed = True
        waiting, self._waiting = self._waiting, {}
        _fail(waiting, _closed())

    def end(self, why: SkepError) -> None:
        """Has what was under way raise it."""
        under, self._under = self._under, {}
        _fail(under.values(), why)

    def ended(self, why: SkepError) -> None:
        """Is quiet and end: the store was closed by others."""
        self.quiet()
        self.queue.close()
        self.end(why)

    def retired(self) -> bool:
        """Ends a queue whose loop is closed, where nothing is under way any more."""
        self.queue.drain(4096)  # nobody is told: its tasks are gone
        if self.queue._calls:
            return False
        self.queue.close()
        os.close(self._fd)
        return True


class _Calls:
    """How a store's calls are carried out: those of a queue's by one of the event loop's, others by threads."""

    def __init__(self, workers: int, depth: int) -> None:
        if type(depth) is not int or not 1 <= depth <= 4096:
            raise ValueError(f"depth is {depth!r}, must be 1 to 4096 calls")
        self.threads, self._depth = _Threads(workers), depth
        self._lanes: dict[asyncio.AbstractEventLoop, _Lane] = {}
        self._lock = threading.Lock()  # of _lanes and _closed
        self._closed = False

    def _lane(self, store: skepkv.Store) -> _Lane:
        loop = asyncio.get_running_loop()
        lane = self._lanes.get(loop)
        if lane is not None and len(self._lanes) == 1:
            return lane
        with self._lock:
            if self._closed:
                raise _closed()
            for of in [of for of in self._lanes if of.is_closed()]:
                if self._lanes[of].retired():
                    del self._lanes[of]
            if lane is None:
                if not store._ended:
                    store._ended.append(self._ended)
                lane = self._lanes[loop] = _Lane(store, self._depth, loop)
            return lane

    def _ended(self, why: SkepError | None) -> None:
        """The store was closed, not by close: what is under way or waits ends."""
        with self._lock:
            lanes, self._lanes, self._closed = self._lanes, {}, True
        for loop, lane in lanes.items():
            _there(loop, functools.partial(lane.ended, why or _closed()))

    async def queued(
        self, store: skepkv.Store, space: skepkv.Space | None, timeout: float | None, submit: _Submit
    ) -> Done:
        """Does a call, and opens its namespace before, and anew where a server does not know it: its store is another
        one."""
        _not_forked()
        clock, lane = _Clock(timeout), self._lane(store)
        known = space is not None and space._number[0] != 0
        done = await self._once(lane, space, clock, submit)
        if done.code == errors.NOT_FOUND and known:
            done = await self._once(lane, space, clock, submit)
        if done.code:
            errors.raise_for(done.code, done.text, False)
        return done

    async def _once(self, lane: _Lane, space: skepkv.Space | None, clock: _Clock, submit: _Submit) -> Done:
        await lane.enter(clock.left())
        try:
            while space is not None and not space._number[0]:
                await self.threads.within(clock.left(), space.open)
            call = lane.begin(lambda queue: submit(queue, clock.left()))
        except BaseException:
            lane.leave()
            raise
        return await call

    async def close(self, close: Callable[[], None]) -> None:
        """Closes the store, by close, and ends what is under way or waits."""
        _not_forked()
        with self._lock:
            self._closed = True
            lanes, self._lanes = self._lanes, {}
        for loop, lane in lanes.items():
            _there(loop, lane.quiet)
        why = _closed()
        try:
            await _apart(close)
        except SkepError as e:
            why = e
            raise
        finally:
            self.threads.end()
            for loop, lane in lanes.items():
                lane.queue.close()
                _there(loop, functools.partial(lane.end, why))


def _there(loop: asyncio.AbstractEventLoop, do: Callable[[], None]) -> None:
    """Has an event loop do it, if it is not closed; at once, unless that runs in another thread."""
    if loop.is_closed():
        return
    if loop.is_running() and loop is not asyncio._get_running_loop():
        loop.call_soon_threadsafe(do)
    else:
        do()


class Lease:
    """skepkv.Lease."""

    def __init__(self, calls: _Calls, lease: skepkv.Lease) -> None:
        self._calls, self._lease = calls, lease

    def __bool__(self) -> bool:
        return bool(self._lease)

    async def __aenter__(self) -> "Lease":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    async def renew(self, seconds: float = 0) -> None:
        await self._calls.queued(self._lease._store, None, None, lambda q, _: q.renew(self._lease, seconds))

    async def release(self) -> None:
        if self._lease:
            await self._calls.queued(self._lease._store, None, None, lambda q, _: q.release(self._lease))


class Found:
    """skepkv.Found."""

    def __init__(self, calls: _Calls, done: Done) -> None:
        self.blocks, self.tokens, self.bytes = done.blocks, done.tokens, done.bytes
        self.lease = Lease(calls, done.lease)


class Writer:
    """skepkv.Writer."""

    def __init__(self, threads: _Threads, writer: skepkv.Writer) -> None:
        self._threads, self._writer = threads, writer

    async def write(self, part: str, offset: int, data: Any, timeout: float | None = None) -> None:
        await self._threads.within(timeout, lambda t: self._writer.write(part, offset, data, t))

    async def commit(self, accepted: bool = False, timeout: float | None = None) -> Stored:
        return await self._threads.within(timeout, lambda t: self._writer.commit(accepted, t))

    async def abort(self) -> None:
        await self._threads.run(self._writer.abort)

    async def __aenter__(self) -> "Writer":
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._writer._number:
            with contextlib.suppress(SkepError):  # it is dropped when its life is over
                await self._threads.run(self._writer.abort)


class Space:
    """skepkv.Space."""

    def __init__(self, calls: _Calls, space: skepkv.Space) -> None:
        self._calls, self._space = calls, space

    def salted(self, salt: bytes) -> "Space":
        return Space(self._calls, self._space.salted(salt))

    async def open(self, timeout: float | None = None) -> "Space":
        await self._calls.threads.within(timeout, self._space.open)
        return self

    async def _queued(self, timeout: float | None, submit: _Submit) -> Done:
        return await self._calls.queued(self._space._store, self._space, timeout, submit)

    async def lookup(self, keys: Any, lease: float | None = None, timeout: float | None = None) -> Found:
        done = await self._queued(timeout, lambda q, t: q.lookup(self._space, keys, lease, t))
        return Found(self._calls, done)

    async def lookup_each(
        self, keys: Any, lease: float | None = None, timeout: float | None = None
    ) -> tuple[list[bool], Lease]:
        done = await self._queued(timeout, lambda q, t: q.lookup_each(self._space, keys, lease, t))
        return [there != 0 for there in done.results], Lease(self._calls, done.lease)

    async def exists(self, keys: Any, timeout: float | None = None) -> bytes:
        return (await self._queued(timeout, lambda q, t: q.exists(self._space, keys, t))).results

    async def want(self, keys: Any, timeout: float | None = None) -> bytes:
        return (await self._queued(timeout, lambda q, t: q.want(self._space, keys, t))).results

    async def put(
        self,
        keys: Any,
        data: Sequence[Any],
        parent: bytes | None = None,
        depth: int = 0,
        timeout: float | None = None,
        accepted: bool = False,
    ) -> Stored:
        if library().version < PIECES and in_pieces(data):
            return await self._calls.threads.within(
                timeout, lambda t: self._space.put(keys, data, parent, depth, t, accepted)
            )
        done = await self._queued(timeout, lambda q, t: q.put(self._space, keys, data, parent, depth, t, accepted))
        return Stored(done.results, done.reasons)

    async def restore(
        self,
        keys: Any,
        into: Sequence[Any],
        lease: Lease | None = None,
        timeout: float | None = None,
        part: str = "kv",
        layers: tuple[int, int] | None = None,
    ) -> Restored:
        held = lease._lease if lease is not None else None
        if library().version < PIECES and layers is None and (part != "kv" or in_pieces(into)):
            return await self._calls.threads.within(timeout, lambda t: self._space.restore(keys, into, held, t, part))
        done = await self._queued(timeout, lambda q, t: q.restore(self._space, keys, into, held, t, part, layers))
        return Restored(done.results)

    async def begin(
        self, key: bytes, parts: Mapping[str, int], *args: Any, timeout: float | None = None, **how: Any
    ) -> "Writer":
        threads, made = self._calls.threads, []
        try:
            await threads.within(
                timeout, lambda t: made.append(self._space.begin(key, parts, *args, timeout=t, **how))
            )
        except asyncio.CancelledError:
            for writer in made:
                await Writer(threads, writer).__aexit__()
            raise
        return Writer(threads, made[0])

    async def restore_paged(
        self, keys: Any, cache: Paged, slots: Sequence[int], *args: Any, timeout: float | None = None, **how: Any
    ) -> int:
        return await self._calls.threads.within(
            timeout, lambda t: self._space.restore_paged(keys, cache, slots, *args, timeout=t, **how)
        )

    async def delete(self, keys: Any, timeout: float | None = None) -> int:
        return (await self._queued(timeout, lambda q, t: q.delete(self._space, keys, t))).blocks

    async def hint(self, keys: Any, *, timeout: float | None = None, **future: Any) -> int:
        return (await self._queued(timeout, lambda q, t: q.hint(self._space, keys, timeout=t, **future))).blocks

    async def purge(self, timeout: float | None = None) -> None:
        await self._calls.threads.within(timeout, self._space.purge)


class Store:
    """skepkv.Store, which is `blocking`: what does not wait is called there."""

    def __init__(self, calls: _Calls, blocking: skepkv.Store) -> None:
        self._calls, self.blocking = calls, blocking

    async def namespace(self, name: str, **how: Any) -> Space:
        return Space(self._calls, await self._calls.threads.run(lambda: self.blocking.namespace(name, **how)))

    async def alloc(self, n: int) -> Memory:
        return await self._calls.threads.run(self.blocking.alloc, n)

    async def register(
        self, buffer: Any, *, fd: int = -1, offset: int = 0, timeout: float | None = None
    ) -> Registered:
        return await self._calls.threads.within(
            timeout, lambda t: self.blocking.register(buffer, fd=fd, offset=offset, timeout=t)
        )

    async def direct(self, timeout: float = 5.0) -> str | None:
        return await self._calls.threads.within(timeout, lambda t: self.blocking.direct(t or timeout))

    async def flush(self, timeout: float | None = None) -> None:
        await self._calls.queued(self.blocking, None, timeout, lambda q, t: q.flush(t))

    async def stats(self, timeout: float | None = None) -> dict[str, Any]:
        return await self._calls.threads.within(timeout, self.blocking.stats)

    async def close(self) -> None:
        """Ends what is under way, and closes the store. Calls that are under way or wait are errors then."""
        await self._calls.close(self.blocking.close)

    async def __aenter__(self) -> "Store":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _apart(do: Callable[[], _T]) -> _T:
    """Has a thread of its own do it: the others may all be waiting."""
    threads = _Threads(1)
    try:
        return await threads.run(do)
    finally:
        threads.end()


async def _open(do: Callable[[], skepkv.Store], workers: int, depth: int) -> Store:
    calls = _Calls(workers, depth)
    try:
        return Store(calls, await calls.threads.run(do))
    except BaseException:
        calls.threads.end()
        raise


async def connect(url: str, *, workers: int = 8, depth: int = 64, **how: Any) -> Store:
    """skepkv.connect."""
    return await _open(lambda: skepkv.connect(url, **how), workers, depth)


async def embed(dir: str, *, workers: int = 8, depth: int = 64, **how: Any) -> Store:
    """skepkv.embed."""
    return await _open(lambda: skepkv.embed(dir, **how), workers, depth)
