"""LMCache's plugin adapter. It is skepkv.lmcache.Adapter, and this module is for whoever has LMCache.

A lookup leases what it finds, with one call a namespace, and says so. A thread renews leases until LMCache has unlocked
all of their keys, at most for lock_timeout: LMCache forgets the locks of a lookup that it gives up. A lease that is not
renewed, because this process was killed or hangs, ends by itself after `lease` seconds.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import heapq
import os
import threading
import time
from typing import Any, Callable, Iterable, Iterator, NamedTuple

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface

from . import Lease, SkepError, Space, Store, errors
from ._library import socket_of
from ._region import Region
from .lmcache import Calls, Job, log

_MOST_RESULTS = 65536  # that LMCache has not asked for: it gives lookups up
_MOST_LOCKS = 1 << 18  # keys; more are found without a lease
_MOST_SIZES = 1 << 18  # keys whose bytes are counted; the oldest are forgotten
_OVER = (errors.INVALID, errors.CLOSED, errors.LEASE_EXPIRED, errors.UNSUPPORTED)

_STORE, _LOOKUP, _LOAD, _DELETE = range(4)  # the first three are eventfds, too


class _Of(NamedTuple):
    """Of a batch: what it is, LMCache's keys, bytes of each, and who waits for it."""

    kind: int
    keys: list[Any]
    sizes: list[int]
    over: threading.Event | None


class _Lock:
    """A lease, and how many keys of it are not unlocked yet."""

    __slots__ = ("lease", "names", "left", "until", "renew", "lasts")

    def __init__(self, lease: Lease, names: list[str], now: float, lasts: float, until: float) -> None:
        self.lease, self.names, self.left = lease, names, len(names)
        self.until = until  # it is given back then, whoever has not unlocked
        self.renew, self.lasts = now + lasts / 3, now + lasts

    def due(self) -> float:
        """When something is to be done about it."""
        return min(self.renew, self.until, self.lasts)


class _Locks:
    """Leases of keys that LMCache has locked, as often as it has locked them. One thread renews them and gives them
    back, so that nobody waits for a server."""

    def __init__(self, seconds: float, within: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._within, self._clock = seconds, within, clock
        self._thread: threading.Thread | None = None
        self.renew_locks()  # guards what follows
        self._of: dict[str, collections.deque[_Lock]] = {}
        self._count = 0
        self._held: dict[_Lock, None] = {}
        self._times: list[tuple[float, int, _Lock]] = []  # a heap: when to look at each, and at some that are gone
        self._added = 0
        self._back: collections.deque[Lease] = collections.deque()
        self._closed = False

    def renew_locks(self) -> None:
        self._cond = threading.Condition()

    def add(self, lease: Lease, names: list[str]) -> bool:
        """Keeps a lease of keys. False: there are too many, and it is given back."""
        now = self._clock()
        with self._cond:
            if self._closed or self._count + len(names) > _MOST_LOCKS:
                self._give_back(lease)
                return False
            lock = _Lock(lease, names, now, self._seconds, now + self._within)
            self._held[lock] = None
            self._look_at(lock)
            for name in names:
                self._of.setdefault(name, collections.deque()).append(lock)
            self._count += len(names)
            self._start()
            self._cond.notify()
        return True

    def drop(self, leases: Iterable[Lease]) -> None:
        with self._cond:
            for lease in leases:
                self._give_back(lease)

    def unlock(self, names: Iterable[str]) -> None:
        """Takes a lock off each key, the oldest first. One that has none, because its time was over, stays as it is."""
        with self._cond:
            for name in names:
                locks = self._of.get(name)
                if locks is None:
                    continue
                lock = locks.popleft()
                if not locks:
                    del self._of[name]
                self._count -= 1
                lock.left -= 1
                if lock.left == 0 and self._held.pop(lock, True) is None:
                    self._give_back(lock.lease)

    def keys(self) -> int:
        with self._cond:
            return len(self._of)

    def close(self) -> None:
        """Ends the thread. Leases are the store's, which is closed."""
        with self._cond:
            self._closed = True
            self._of.clear()
            self._held.clear()
            self._times.clear()
            self._back.clear()
            self._count = 0
            self._cond.notify_all()

    def _give_back(self, lease: Lease) -> None:
        if lease and not self._closed:
            self._back.append(lease)
            self._start()
            self._cond.notify()

    def _look_at(self, lock: _Lock) -> None:
        """Has the thread look at it when it is due."""
        self._added += 1
        heapq.heappush(self._times, (lock.due(), self._added, lock))

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True, name="skepkv-leases")
            self._thread.start()

    def _forget(self, lock: _Lock) -> None:
        """A lock that is over, whoever has not unlocked."""
        if self._held.pop(lock, True) is not None:
            return
        for name in lock.names:
            locks = self._of.get(name)
            if locks is not None and lock in locks:
                locks.remove(lock)
                self._count -= 1
                if not locks:
                    del self._of[name]

    def _work(self) -> None:
        while True:
            with self._cond:
                if self._closed:
                    return
                now, due = self._clock(), []
                while self._times and self._times[0][0] <= now:
                    lock = heapq.heappop(self._times)[2]
                    if lock not in self._held:
                        continue
                    if lock.until <= now or lock.lasts <= now:
                        self._forget(lock)
                        self._give_back(lock.lease)
                    else:
                        due.append(lock)
                back = list(self._back)
                self._back.clear()
                if not back and not due:
                    self._cond.wait(self._times[0][0] - now if self._times else None)
                    continue
            for lease in back:
                try:
                    lease.release()
                except SkepError:
                    pass  # it ends by itself
            for lock in due:
                self._renew(lock)

    def _renew(self, lock: _Lock) -> None:
        now, over = self._clock(), False
        seconds = max(0.001, min(self._seconds, lock.until - now))
        try:
            lock.lease.renew(seconds)
            lock.lasts, wait = now + seconds, self._seconds / 3
        except SkepError as e:
            over, wait = e.code in _OVER, min(1.0, self._seconds / 10)
        with self._cond:
            lock.renew = now + wait
            if over:
                self._forget(lock)
            else:
                self._look_at(lock)


class _Plugin(Calls):
    """The batches of an adapter."""

    _eventfds = 3

    def __init__(
        self, adapter: "Adapter", memory: Any = None, lease: float = 10.0, lock_timeout: float = 120.0, **options: Any
    ) -> None:
        for name, s, most in (("lease", lease, 600), ("lock_timeout", lock_timeout, 86400)):
            if isinstance(s, bool) or not isinstance(s, (int, float)) or not 0.01 <= s <= most:
                raise ValueError(f"{name} is {s!r} s, must be 0.01 to {most}")
        self.adapter, self.lease = adapter, lease
        self.locks = _Locks(lease, lock_timeout)
        self._bare = False
        self.results: list[collections.OrderedDict[int, Any]] = [collections.OrderedDict() for _ in range(3)]
        self._sizes: collections.OrderedDict[Any, int] = collections.OrderedDict()
        self._region: Region | None = None
        super().__init__(**options)
        if memory is not None and socket_of(self._url) and self._shared != 0:
            self._region = _region(memory)

    def submit(self, kind: int, keys: list[Any], objects: list[Any], over: threading.Event | None = None) -> int:
        writes, within, do = (
            (True, self._set_within, self._store_new),
            (False, self._exists_within, self._look),
            (False, self._get_within, self._get),
            (True, self._delete_within, self._delete),
        )[kind]
        try:
            names = [name(k) for k in keys]
            views, sizes = [o.byte_array for o in objects], [o.get_size() for o in objects]
            if objects and len(objects) != len(keys):
                raise ValueError(f"there are {len(objects)} objects, must be one for each of {len(keys)} keys")
        except Exception as e:  # the engine must never see it
            why = f"{type(e).__name__}: {e}"
            names = [""] * len(keys)
            views, sizes, do = [], [], lambda _: (False, why, [False] * len(keys))
        of = _Of(kind, list(keys), sizes, over)
        return self._submit(self._writes if writes else self._reads, within, names, views, do, of)

    def close(self) -> None:
        with self._lock:
            region, self._region = self._region, None
        if region is not None and os.getpid() == self._pid:
            region.close(self._store, 1.0)
        super().close()
        self.locks.close()

    def _drop(self, store: Store | None) -> None:
        try:
            if store is not None:
                store.close()
        except SkepError as e:  # drives may write to LMCache's memory for good: nobody else is given it
            with self._lock:
                region, self._region = self._region, None
            if region is not None:
                region.close(None, 0)  # who waits until it is let go of waits no longer
            self._complain("close", str(e))
        with self._lock:
            region = self._region
        if region is not None:
            region.forget()

    @contextlib.contextmanager
    def _straight(self, space: Space, job: Job) -> Iterator[None]:
        store, sure = space._store, True
        with self._lock:
            region = self._region
        if region is None or not region.lend(store, min(5.0, self._left(job))):
            yield
            return
        try:
            yield
        except SkepError as e:
            # Invalid: LMCache's file was cut short, and the server takes no more of it.
            sure = not isinstance(e, errors.NotReleased) and e.code != errors.INVALID
            raise
        finally:
            region.back(store, sure)

    def _renew_locks(self) -> None:
        super()._renew_locks()
        self.locks.renew_locks()

    def trouble(self) -> str:
        with self._lock:
            return self._complaint

    def _look(self, job: Job) -> tuple[bool, str, list[bool]]:
        """Finds keys, and leases those that are there."""
        there, taken, bare = [False] * len(job.keys), [], 0

        def look(space: Space, at: list[int], names: list[bytes]) -> None:
            nonlocal bare
            found, lease = space.lookup_each(names, self.lease, timeout=self._left(job))
            hits = [job.keys[i] for i, ok in zip(at, found) if ok]
            if lease:
                taken.append((lease, hits))
            else:
                bare += len(hits)
            for i, ok in zip(at, found):
                there[i] = ok

        try:
            why = self._each(job, look)
        except BaseException:
            self.locks.drop(lease for lease, _ in taken)
            raise
        for lease, hits in taken:
            if not self.locks.add(lease, hits):
                bare += len(hits)
        if bare and not self._bare:
            log.warning("skep: %d chunks are found and not leased: no more may be leased, so they may be evicted", bare)
        self._bare = bare > 0
        return True, why, there

    def _store_new(self, job: Job) -> tuple[bool, str, list[bool]]:
        """Stores chunks that are not there yet."""
        stored, why = [False] * len(job.keys), ""

        def store(space: Space, at: list[int], names: list[bytes]) -> None:
            nonlocal why
            found, _ = space.lookup_each(names, timeout=self._left(job))
            todo = [j for j, ok in enumerate(found) if not ok]
            for j, ok in enumerate(found):
                stored[at[j]] = ok
            if not todo:
                return
            with self._straight(space, job):
                became = space.put([names[j] for j in todo], [job.views[at[j]] for j in todo], timeout=self._left(job))
            for j, outcome, reason in zip(todo, *became):
                stored[at[j]] = outcome != 0
                why = why or ("" if outcome else f"declined: {errors.name_of(reason)}")

        why = self._each(job, store) or why
        return all(stored), "" if all(stored) else why or "a key of another form", stored

    def _complete(self, job: Job, ok: bool, error: str, landed: list[bool]) -> None:
        of: _Of = job.of
        there = [k for k, l in zip(of.keys, landed) if l]
        try:
            if of.kind == _STORE:
                bytes_ = self._count(of, landed)
                self._put(of.kind, job.number, L2StoreResult(ok, bytes_))
                return
            if of.kind == _DELETE or of.kind == _LOOKUP and ok:  # what is not there any more is not counted
                self._uncount([k for k, l in zip(of.keys, landed) if l == (of.kind == _DELETE)])
            if of.kind == _LOAD and there:
                self._tell(self.adapter._notify_keys_accessed, there)
            if of.kind != _DELETE:
                bits = Bitmap(len(landed))
                for i, l in enumerate(landed):
                    if l:
                        bits.set(i)
                self._put(of.kind, job.number, bits)
        finally:
            if of.over is not None:
                of.over.set()

    def _put(self, kind: int, number: int, result: Any) -> None:
        with self._lock:
            results = self.results[kind]
            results[number] = result
            if len(results) > _MOST_RESULTS:
                results.popitem(last=False)
            self._wake(kind)

    def take(self, kind: int, number: int) -> Any:
        with self._lock:
            return self.results[kind].pop(number, None)

    def take_all(self, kind: int) -> dict[int, Any]:
        with self._lock:
            out = dict(self.results[kind])
            self.results[kind].clear()
        return out

    # What LMCache counts, for quotas and events of its own. The server's own evictions are not told, and come out when
    # a lookup misses.

    def _count(self, of: _Of, landed: list[bool]) -> int:
        keys, sizes, gone, lost = [], [], [], []
        with self._lock:
            for k, n, l in zip(of.keys, of.sizes, landed):
                if l:
                    keys.append(k)
                    sizes.append(0 if k in self._sizes else n)
                    self._sizes.setdefault(k, n)
            while len(self._sizes) > _MOST_SIZES:
                k, n = self._sizes.popitem(last=False)
                gone.append(k)
                lost.append(n)
        if keys:
            self._tell(self.adapter._notify_keys_stored, keys, sizes)
        if gone:
            self._tell(self.adapter._notify_keys_deleted, gone, lost)
        return sum(sizes)

    def _uncount(self, keys: list[Any]) -> None:
        with self._lock:
            gone = {k: n for k in keys if (n := self._sizes.pop(k, None)) is not None}
        if gone:
            self._tell(self.adapter._notify_keys_deleted, list(gone), list(gone.values()))

    def _tell(self, notify: Any, *args: Any) -> None:
        try:
            notify(*args)
        except Exception as e:
            log.warning("skep: LMCache's listener: %s: %s", type(e).__name__, e)


def _region(desc: Any) -> Region | None:
    """LMCache's own memory, as far as it stays where it is, to be shared with the server."""
    try:
        n = desc.stable_registration_size or desc.size
        return Region((ctypes.c_ubyte * n).from_address(desc.ptr), log)
    except (AttributeError, TypeError, ValueError) as e:
        log.warning("skep: what is moved is copied once, as LMCache's memory cannot be shared: %s", e)
        return None


def name(key: Any) -> str:
    """A key as native_plugin writes it: both share a cache."""
    text = f"{key.model_name}@{key.kv_rank:08x}@{key.object_group_id:x}@{key.chunk_hash.hex()}"
    return f"{text}@{key.cache_salt}" if key.cache_salt else text


class Adapter(L2AdapterInterface):
    """What LMCache makes of adapter_params with plugin. They are those of skepkv.lmcache.Calls, and

    lease: seconds that what a lookup found stays without news of this process. lock_timeout: seconds after which it is
    given back though LMCache has not unlocked it."""

    def __init__(self, params: dict[str, Any], l1_memory_desc: Any = None) -> None:
        super().__init__()
        self._skep = _Plugin(self, l1_memory_desc, **params)

    def get_store_event_fd(self) -> int:
        return self._skep._fds[_STORE]

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._skep._fds[_LOOKUP]

    def get_load_event_fd(self) -> int:
        return self._skep._fds[_LOAD]

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        return self._skep.submit(_STORE, keys, objects)

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        return self._skep.take_all(_STORE)

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: dict[int, Any]) -> int:
        return self._skep.submit(_LOOKUP, keys, [])

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        return self._skep.take(_LOOKUP, task_id)

    def submit_unlock(self, keys: list[Any]) -> None:
        self._skep.locks.unlock([name(k) for k in keys])

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        return self._skep.submit(_LOAD, keys, objects)

    def query_load_result(self, task_id: int) -> Bitmap | None:
        return self._skep.take(_LOAD, task_id)

    def delete(self, keys: list[Any]) -> None:
        """Removes chunks, and waits for it: LMCache's listeners are told before it returns."""
        if keys:
            over = threading.Event()
            self._skep.submit(_DELETE, keys, [], over)
            over.wait(self._skep._delete_within + 15)

    def report_status(self) -> dict[str, Any]:
        trouble = self._skep.trouble()
        return {"is_healthy": not trouble, "type": "skepkv", "trouble": trouble, "locked_keys": self._skep.locks.keys()}

    def close(self) -> None:
        self._skep.close()
