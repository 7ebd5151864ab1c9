"""LMCache's adapters: its chunks in a skep server. What a lookup finds stays until LMCache unlocks it with the first:

    --l2-adapter '{"type": "plugin", "module_path": "skepkv.lmcache", "class_name": "Adapter",
                   "adapter_params": {"url": "unix:/run/skep/skep.sock"}}'
    --l2-adapter '{"type": "native_plugin", "module_path": "skepkv.lmcache", "class_name": "Connector",
                   "adapter_params": {"url": "unix:/run/skep/skep.sock"}}'

Both find what the other has stored. LMCache submits batches from its own threads and never waits here. Threads carry
them out and tell of them through eventfds. Each batch completes once, before its deadline and some seconds, whatever
the server does; nothing that goes wrong is raised into the engine. A get answers for each key whether all of its bytes
are there.

A key of LMCache is model@rank@group@hash or model@rank@group@hash@salt. Model, rank and group make a namespace, the
salt is skep's salt (a digest of it where it has more than 256 bytes), and the block's key is a digest of all of it but
the salt. Each chunk is a chain of its own: the first one that is stored under a key stays.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import logging
import os
import queue
import sys
import threading
import time
import weakref
from typing import Any, Callable, Iterator, NamedTuple

from . import SkepError, Space, Store, connect, errors, key
from ._keys import tell
from ._pages import check_copies, secured

__all__ = ["Connector"]  # and Adapter, which needs LMCache

log = logging.getLogger("skepkv.lmcache")

_FORMAT = 2  # of what is stored: another one is another namespace
_MOST_WAITING = 4096  # batches; more are answered as misses at once
_MOST_SPACES = 1024
_MOST_SALT = 256  # bytes, skep's limit


def __getattr__(name: str) -> Any:
    if name == "Adapter":  # it needs LMCache
        from ._lmcache import Adapter

        return Adapter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# A thread may hold a lock when another forks, and is not there in the child to let go of it. The eventfds are the
# parent's, which would not be woken where a child read them: a child has its own under the same numbers.
_all: "weakref.WeakSet[Calls]" = weakref.WeakSet()


def _in_child() -> None:
    for calls in list(_all):
        calls._renew_locks()
        for i, fd in enumerate(calls._fds):
            try:
                own = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                os.dup2(own, fd, inheritable=False)
                os.close(own)
            except OSError:
                calls._fds[i] = -1


os.register_at_fork(after_in_child=_in_child)


def _hashes() -> dict[str, str]:
    """What LMCache's hashes are by, as far as this process was told: its own options, and Python's seed. blake3 has
    none."""
    out = {}
    for option, usual in (("chunk-size", "256"), ("hash-algorithm", "blake3")):
        out[option] = usual
        for word, after in zip(sys.argv, [*sys.argv[1:], usual]):
            name, given, value = word.partition("=")
            if name == "--" + option:
                out[option] = value if given else after
    if out["hash-algorithm"] != "blake3":
        out["PYTHONHASHSEED"] = os.environ.get("PYTHONHASHSEED", "random")
    return out


def _salt(text: str) -> bytes:
    """skep's salt for one of LMCache's, whose 128 characters may be more bytes than skep takes. Of such a one it is a
    digest behind a byte that no text has, so it is no other one's salt."""
    salt = text.encode()
    return salt if len(salt) <= _MOST_SALT else b"\xff" + hashlib.sha256(salt).digest()


class Job(NamedTuple):
    number: int
    until: float
    keys: list[str]
    views: list[Any]
    do: Callable[["Job"], tuple[bool, str, list[bool]]]
    of: Any  # whoever submitted it


class Calls:
    """Batches that threads carry out, for one of LMCache's interfaces. Times are seconds from the submission of a
    batch.

    url, token or token_file, tenant: which server, as whom. tls_ca (a file, or "system"), tls_cert, tls_key: TLS over
    TCP. shared_bytes: memory shared with a server behind a Unix
    socket (None: 256 MiB). copies: drives of a node that have each chunk, 1 to 4; another number is another cache.
    readers, writers: threads for gets and exists, for sets and deletes. fingerprint: what
    besides the model's name tells two caches apart whose bytes must not be mixed: weights' revision, dtype, layout."""

    _eventfds = 1

    def __init__(
        self,
        url: str,
        token: str = "",
        token_file: str = "",
        tls_ca: str = "",
        tls_cert: str = "",
        tls_key: str = "",
        tenant: str = "",
        fingerprint: str = "",
        shared_bytes: int | None = None,
        copies: int = 1,
        readers: int = 2,
        writers: int = 2,
        get_timeout: float = 5.0,
        set_timeout: float = 20.0,
        exists_timeout: float = 2.0,
        delete_timeout: float = 10.0,
    ) -> None:
        if not url:
            raise ValueError("url is empty, must be unix:/path or host:port")
        check_copies(copies)
        for name, n in (("readers", readers), ("writers", writers)):
            if not 1 <= n <= 64:
                raise ValueError(f"{name} is {n}, must be 1 to 64")
        for name, s in (
            ("get_timeout", get_timeout),
            ("set_timeout", set_timeout),
            ("exists_timeout", exists_timeout),
            ("delete_timeout", delete_timeout),
        ):
            if not 0 < s <= 600:
                raise ValueError(f"{name} is {s} s, must be more than 0 and at most 600")
        self._url, self._token, self._token_file = url, token, token_file
        self._tls = secured(tls_ca, tls_cert, tls_key)
        self._tenant, self._fingerprint, self._shared, self._copies = tenant, fingerprint, shared_bytes, copies
        self._get_within, self._set_within = get_timeout, set_timeout
        self._exists_within, self._delete_within = exists_timeout, delete_timeout
        self._fds = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(self._eventfds)]
        self._pid = os.getpid()
        self._at = threading.local()  # store: the one that a thread's call is of
        self._ending = threading.Lock()  # held while a store is closed; before the next one
        self._lock = threading.Lock()  # guards what follows
        self._last = 0
        self._closed = False
        self._store: Store | None = None
        self._spaces: dict[tuple[str, str, str], Space] = {}
        self._told: set[str] = set()
        self._complaint = ""
        self._reads: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._writes: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, args=(jobs,), daemon=True, name=f"skepkv-{what}-{i}")
            for what, jobs, n in (("read", self._reads, readers), ("write", self._writes, writers))
            for i in range(n)
        ]
        _all.add(self)
        for t in self._threads:
            t.start()

    def close(self) -> None:
        """Stops. Batches that wait complete as misses. In a forked process it leaves the store to the parent."""
        ours = os.getpid() == self._pid
        with self._ending if ours else contextlib.nullcontext():
            with self._lock:
                if self._closed:
                    return
                self._closed = True
                store, self._store = self._store, None
            if ours:
                self._drop(store)  # what is under way ends with an error
        if ours:
            for t in self._threads:
                (self._reads if "read" in t.name else self._writes).put(None)
            for t in self._threads:
                t.join(15)
            if any(t.is_alive() for t in self._threads):
                return  # it writes to the descriptor yet
        with self._lock:
            fds, self._fds = self._fds, [-1] * len(self._fds)
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    # Batches.

    def _submit(
        self,
        jobs: "queue.SimpleQueue[Job | None]",
        within: float,
        keys: list[str],
        views: list[Any],
        do: Callable[[Job], tuple[bool, str, list[bool]]],
        of: Any,
    ) -> int:
        with self._lock:
            self._last += 1
            job = Job(self._last, time.monotonic() + within, list(keys), list(views), do, of)
            why = ""
            if self._closed or os.getpid() != self._pid:
                why = "closed, or forked from the process that opened it"
            elif jobs.qsize() >= _MOST_WAITING:
                why = f"{_MOST_WAITING} batches are waiting"
            else:
                jobs.put(job)  # before what close has the threads end by
        if why:
            self._over(job, False, why, None)
        return job.number

    def _renew_locks(self) -> None:
        """Makes locks anew in a process that is forked."""
        self._lock = threading.Lock()

    def _over(self, job: Job, ok: bool, error: str, landed: list[bool] | None) -> None:
        self._complete(job, ok, error, [False] * len(job.keys) if landed is None else landed)

    def _complete(self, job: Job, ok: bool, error: str, landed: list[bool]) -> None:
        """Tells LMCache of a batch that is over: why it failed, and of each key whether it is there."""
        raise NotImplementedError

    def _wake(self, i: int) -> None:
        """Makes the eventfd readable. REQUIRES: the lock."""
        if self._fds[i] >= 0:
            try:
                os.eventfd_write(self._fds[i], 1)
            except OSError:  # it is full, and so readable
                pass

    def _work(self, jobs: "queue.SimpleQueue[Job | None]") -> None:
        while (job := jobs.get()) is not None:
            ok, error, kind, landed = False, "", "", None
            self._at.store = None
            try:
                if self._closed:
                    error = "closed"
                elif time.monotonic() >= job.until:
                    error = "its time was over before its turn came"
                else:
                    ok, error, landed = job.do(job)
                    if not error:
                        self._well()
            except errors.NotReleased as e:
                error, kind = str(e), errors.name_of(e.code)
                self._restart(self._at.store)
            except SkepError as e:
                error, kind = str(e), errors.name_of(e.code)
                if e.code == errors.CLOSED and not self._closed:
                    self._restart(self._at.store)
            except BaseException as e:  # the engine must never see it
                error = f"{type(e).__name__}: {e}"
            if error:
                self._complain(kind or error, error)
            try:
                self._over(job, ok, error, landed)
            except BaseException as e:  # the thread goes on: others wait for their batches
                self._complain("result", f"{type(e).__name__}: {e}")
            del job

    def _parts(self, job: Job) -> list[tuple[Space, list[int], list[bytes]]]:
        """Which of a batch's keys belong to which namespace and salt. Keys of another form belong to none."""
        groups: dict[tuple[str, str, str, str], tuple[list[int], list[bytes]]] = {}
        for i, name in enumerate(job.keys):
            fields = name.split("@")
            if len(fields) not in (4, 5) or not all(fields[:4]):
                self._complain("key", f"key {name!r}, must be model@rank@group@hash or with @salt behind it")
                continue
            salt = fields[4] if len(fields) == 5 else ""
            at, names = groups.setdefault((*fields[:3], salt), ([], []))
            at.append(i)
            names.append(key(*(f.encode() for f in (self._fingerprint, *fields[:4]))))
        return [(self._space(*who), at, names) for who, (at, names) in groups.items()]

    def _each(self, job: Job, do: Callable[[Space, list[int], list[bytes]], None]) -> str:
        """Does every namespace's part of a batch, and says what went wrong with some. It is raised where none worked,
        and where a buffer may be written to yet."""
        worked, wrong, of = False, None, None
        for part in self._parts(job):
            self._at.store = part[0]._store
            try:
                do(*part)
                worked = True
            except errors.NotReleased:
                raise
            except SkepError as e:
                if wrong is None:
                    wrong, of = e, self._at.store
        if wrong is not None and not worked:
            self._at.store = of
            raise wrong
        return str(wrong or "")

    def _get(self, job: Job) -> tuple[bool, str, list[bool]]:
        landed = [False] * len(job.keys)

        def get(space: Space, at: list[int], names: list[bytes]) -> None:
            with self._straight(space, job):
                restored = space.restore(names, [job.views[i] for i in at], timeout=self._left(job))
            for i, there in zip(at, restored.landed):
                landed[i] = there

        why = self._each(job, get)
        return True, why, landed

    def _set(self, job: Job) -> tuple[bool, str, list[bool]]:
        stored, why = [False] * len(job.keys), ""

        def put(space: Space, at: list[int], names: list[bytes]) -> None:
            nonlocal why
            became = space.put(names, [job.views[i] for i in at], timeout=self._left(job))
            for i, outcome, reason in zip(at, *became):
                stored[i] = outcome != 0
                why = why or ("" if outcome else f"declined: {errors.name_of(reason)}")

        why = self._each(job, put) or why
        return all(stored), "" if all(stored) else why or "a key of another form", stored

    def _exists(self, job: Job) -> tuple[bool, str, list[bool]]:
        there = [False] * len(job.keys)

        def look(space: Space, at: list[int], names: list[bytes]) -> None:
            for i, tier in zip(at, space.exists(names, timeout=self._left(job))):
                there[i] = tier != 0

        why = self._each(job, look)
        return True, why, there

    def _delete(self, job: Job) -> tuple[bool, str, list[bool]]:
        gone = [False] * len(job.keys)

        def delete(space: Space, at: list[int], names: list[bytes]) -> None:
            space.delete(names, timeout=self._left(job))
            for i in at:
                gone[i] = True  # it is not there any more, whether it was or not

        why = self._each(job, delete)
        return True, why, gone

    @contextlib.contextmanager
    def _straight(self, space: Space, job: Job) -> Iterator[None]:
        """Has the server use the engine's memory for what is done meanwhile, where it maps it."""
        yield

    def _left(self, job: Job) -> float:
        return max(job.until - time.monotonic(), 0.001)

    # The store.

    def _space(self, model: str, rank: str, group: str, salt: str) -> Space:
        with self._lock:
            if self._closed:
                raise SkepError(errors.CLOSED, "connector")
            if self._store is None:
                token = self._token
                if self._token_file:
                    with open(self._token_file, encoding="utf-8") as f:
                        token = f.read().strip()
                self._store = connect(self._url, token=token, tls=self._tls, shared_bytes=self._shared, lazy=True)
            space = self._spaces.get((model, rank, group))
            if space is None:
                if len(self._spaces) >= _MOST_SPACES:
                    self._spaces.clear()
                kind = f"lmcache/{_FORMAT}/" + (f"{self._copies} copies/" if self._copies > 1 else "")
                name = f"{kind}{model}@{rank}@{group}"
                if self._fingerprint or len(name.encode()) > 512:
                    name = kind + hashlib.sha256("\0".join((self._fingerprint, name)).encode()).hexdigest()
                spec = self._fingerprint or model
                space = self._store.namespace(
                    name,
                    model=hashlib.sha256(spec.encode()).hexdigest(),
                    tenant=self._tenant,
                    chained=True,
                    each=True,
                    copies=self._copies,
                    lazy=True,
                )
                self._spaces[model, rank, group] = space
                if name not in self._told:
                    self._told.add(name)
                    about = {"engine": "lmcache", "model": model, "rank": rank, "group": group}
                    if self._copies > 1:
                        about["copies"] = str(self._copies)
                    tell(self._store, self._tenant, name, {**about, "fingerprint": self._fingerprint, **_hashes()})
        return space.salted(_salt(salt)) if salt else space

    def _restart(self, store: Store | None) -> None:
        """Closes a store that a call failed of: nothing of it writes to any buffer afterwards. One that was opened
        since stays. The next batch opens it again."""
        with self._ending:  # who comes second waits until it is closed
            with self._lock:
                if self._store is not store:
                    return
                self._store = None
                self._spaces = {}
                self._told.clear()
            self._drop(store)

    def _drop(self, store: Store | None) -> None:
        try:
            if store is not None:
                store.close()
        except SkepError as e:
            self._complain("close", str(e))

    def _complain(self, kind: str, error: str) -> None:
        """Logs the first of a kind of errors in a row."""
        with self._lock:
            same, self._complaint = kind == self._complaint, kind
        if not same:
            log.warning("skep: %s; chunks are computed meanwhile", error)

    def _well(self) -> None:
        with self._lock:
            was, self._complaint = self._complaint, ""
        if was:
            log.info("skep answers again")


class Connector(Calls):
    """What LMCache makes of adapter_params with native_plugin: see Calls."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._done: collections.deque[tuple[int, bool, str, list[bool] | None]] = collections.deque()
        super().__init__(*args, **options)

    def event_fd(self) -> int:
        """Becomes readable when a batch has completed."""
        return self._fds[0]

    def submit_batch_get(self, keys: list[str], memoryviews: list[Any]) -> int:
        return self._submit(self._reads, self._get_within, keys, memoryviews, self._get, True)

    def submit_batch_set(self, keys: list[str], memoryviews: list[Any]) -> int:
        return self._submit(self._writes, self._set_within, keys, memoryviews, self._set, False)

    def submit_batch_exists(self, keys: list[str]) -> int:
        return self._submit(self._reads, self._exists_within, keys, [], self._exists, True)

    def submit_batch_delete(self, keys: list[str]) -> int:
        return self._submit(self._writes, self._delete_within, keys, [], self._delete, True)

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool] | None]]:
        """The batches that have completed: number, whether it worked, why not, and for each key whether it is there."""
        out = []
        with self._lock:
            if self._fds[0] >= 0:
                try:
                    os.eventfd_read(self._fds[0])
                except OSError:
                    pass
            while self._done:
                out.append(self._done.popleft())
        return out

    def _complete(self, job: Job, ok: bool, error: str, landed: list[bool]) -> None:
        with self._lock:
            self._done.append((job.number, ok, error, landed if job.of else None))  # LMCache takes none of a set
            self._wake(0)
