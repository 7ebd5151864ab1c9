"""skepkv for asyncio: the same names, awaited.

    from skepkv import aio
    async with await aio.connect("unix:/run/skep/skep.sock") as store:
        space = await store.namespace("blocks")
        await space.put(keys, [b"first", b"second"])
        into = [bytearray(5), bytearray(6)]
        assert await space.restore(keys, into)

The library's calls block, so each runs in a thread of the store's: `workers` are under way at a time, and others wait for
one. A timeout counts from the await. A task that is cancelled goes on when its call has ended, since that may use its
buffers until then; the call's timeout bounds this. Tasks of one event loop use a store.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from typing import Any, Callable, Sequence, TypeVar

import skepkv

from . import Memory, Registered, Restored, SkepError, Stored, errors
from ._library import library

__all__ = ["Found", "Lease", "Space", "Store", "connect", "embed"]

_T = TypeVar("_T")


class _Calls:
    """Threads that carry out a store's calls."""

    def __init__(self, workers: int) -> None:
        if type(workers) is not int or not 1 <= workers <= 256:
            raise ValueError(f"workers are {workers!r}, must be 1 to 256 threads")
        self._pool = concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="skepkv-aio")

    async def run(self, do: Callable[..., _T], *args: Any) -> _T:
        """Has a thread do it, and is not over before that is."""
        if library().forked():
            raise errors.Forked(errors.UNSUPPORTED, "this process is forked from the one that opened the store")
        try:
            call = asyncio.get_running_loop().run_in_executor(self._pool, do, *args)
        except RuntimeError as e:  # its threads have ended
            raise SkepError(errors.CLOSED, "the store") from e
        cancelled: asyncio.CancelledError | None = None
        while not call.done():
            try:
                await asyncio.wait([call])
            except asyncio.CancelledError as e:
                cancelled = e
        if cancelled is not None:
            call.exception()  # nobody else asks for it
            raise cancelled
        return call.result()

    async def within(self, timeout: float | None, do: Callable[[float | None], _T]) -> _T:
        """run of what takes a timeout, from which the wait for a thread is taken."""
        began = time.monotonic()

        def work() -> _T:
            if timeout is None:
                return do(None)
            left = timeout - (time.monotonic() - began)
            if left <= 0 < timeout:
                raise SkepError(errors.DEADLINE, "all workers had other calls")
            return do(left)

        return await self.run(work)

    def end(self) -> None:
        self._pool.shutdown(wait=False)


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
        await self._calls.run(self._lease.renew, seconds)

    async def release(self) -> None:
        await self._calls.run(self._lease.release)


class Found:
    """skepkv.Found."""

    def __init__(self, calls: _Calls, found: skepkv.Found) -> None:
        self.blocks, self.tokens, self.bytes = found.blocks, found.tokens, found.bytes
        self.lease = Lease(calls, found.lease)


class Space:
    """skepkv.Space."""

    def __init__(self, calls: _Calls, space: skepkv.Space) -> None:
        self._calls, self._space = calls, space

    def salted(self, salt: bytes) -> "Space":
        return Space(self._calls, self._space.salted(salt))

    async def open(self, timeout: float | None = None) -> "Space":
        await self._calls.within(timeout, self._space.open)
        return self

    async def lookup(self, keys: Any, lease: float | None = None, timeout: float | None = None) -> Found:
        found = await self._calls.within(timeout, lambda t: self._space.lookup(keys, lease, timeout=t))
        return Found(self._calls, found)

    async def lookup_each(
        self, keys: Any, lease: float | None = None, timeout: float | None = None
    ) -> tuple[list[bool], Lease]:
        there, held = await self._calls.within(timeout, lambda t: self._space.lookup_each(keys, lease, timeout=t))
        return there, Lease(self._calls, held)

    async def exists(self, keys: Any, timeout: float | None = None) -> bytes:
        return await self._calls.within(timeout, lambda t: self._space.exists(keys, t))

    async def want(self, keys: Any, timeout: float | None = None) -> bytes:
        return await self._calls.within(timeout, lambda t: self._space.want(keys, t))

    async def put(
        self,
        keys: Any,
        data: Sequence[Any],
        parent: bytes | None = None,
        depth: int = 0,
        timeout: float | None = None,
        accepted: bool = False,
    ) -> Stored:
        return await self._calls.within(timeout, lambda t: self._space.put(keys, data, parent, depth, t, accepted))

    async def restore(
        self, keys: Any, into: Sequence[Any], lease: Lease | None = None, timeout: float | None = None
    ) -> Restored:
        held = lease._lease if lease is not None else None
        return await self._calls.within(timeout, lambda t: self._space.restore(keys, into, held, t))

    async def delete(self, keys: Any, timeout: float | None = None) -> int:
        return await self._calls.within(timeout, lambda t: self._space.delete(keys, t))

    async def hint(self, keys: Any, *, timeout: float | None = None, **future: Any) -> int:
        return await self._calls.within(timeout, lambda t: self._space.hint(keys, timeout=t, **future))

    async def purge(self, timeout: float | None = None) -> None:
        await self._calls.within(timeout, self._space.purge)


class Store:
    """skepkv.Store, which is `blocking`: what does not wait is called there."""

    def __init__(self, calls: _Calls, blocking: skepkv.Store) -> None:
        self._calls, self.blocking = calls, blocking

    async def namespace(self, name: str, **how: Any) -> Space:
        return Space(self._calls, await self._calls.run(lambda: self.blocking.namespace(name, **how)))

    async def alloc(self, n: int) -> Memory:
        return await self._calls.run(self.blocking.alloc, n)

    async def register(
        self, buffer: Any, *, fd: int = -1, offset: int = 0, timeout: float | None = None
    ) -> Registered:
        return await self._calls.within(
            timeout, lambda t: self.blocking.register(buffer, fd=fd, offset=offset, timeout=t)
        )

    async def direct(self, timeout: float = 5.0) -> str | None:
        return await self._calls.within(timeout, lambda t: self.blocking.direct(t or timeout))

    async def flush(self, timeout: float | None = None) -> None:
        await self._calls.within(timeout, self.blocking.flush)

    async def stats(self, timeout: float | None = None) -> dict[str, Any]:
        return await self._calls.within(timeout, self.blocking.stats)

    async def close(self) -> None:
        """Ends what is under way, and closes the store. Calls that wait for a worker are errors then."""
        try:
            await _apart(self.blocking.close)
        finally:
            self._calls.end()

    async def __aenter__(self) -> "Store":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _apart(do: Callable[[], _T]) -> _T:
    """Has a thread of its own do it: the others may all be waiting."""
    calls = _Calls(1)
    try:
        return await calls.run(do)
    finally:
        calls.end()


async def _open(do: Callable[[], skepkv.Store], workers: int) -> Store:
    calls = _Calls(workers)
    try:
        return Store(calls, await calls.run(do))
    except BaseException:
        calls.end()
        raise


async def connect(url: str, *, workers: int = 8, **how: Any) -> Store:
    """skepkv.connect."""
    return await _open(lambda: skepkv.connect(url, **how), workers)


async def embed(dir: str, *, workers: int = 8, **how: Any) -> Store:
    """skepkv.embed."""
    return await _open(lambda: skepkv.embed(dir, **how), workers)
