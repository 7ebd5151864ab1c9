"""vLLM's secondary offloading tier: its chunks in a skep server.

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 8589934592, "secondary_tiers": [
            {"type": "SkepTier", "module_path": "skepkv.vllm", "url": "unix:/run/skep/skep.sock"}]}}'

vLLM calls it in its scheduler, where nothing waits: a thread asks the server for all keys of a step at once, and a few
threads carry out loads and stores. Nothing that goes wrong is raised into the engine: a chunk that does not come whole
and in time is a miss. The server may start later, and be killed and started again.

A server on this machine, of the same user, maps the primary tier's memory: its drives read into that and are written
out of it (`direct`). Elsewhere, and where it cannot, bytes are copied once, and the log says why. When vLLM takes its
memory back (`drain_jobs`) nothing of the tier reads or writes it afterwards. Copying is given up for that. For what a
server was given it waits, as vLLM wants it: until the server answers, or has been dead for 30 seconds.

vLLM has one tier for all ranks of an engine: a chunk is a row of the primary tier's memory, which has each rank's part.
"""

from __future__ import annotations

import collections
import ctypes as c
import functools
import hashlib
import json
import logging
import os
import threading
import time
from typing import Any, Callable, Iterable, Sequence

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingEvent,
    RequestOffloadingContext,
    get_offload_block_hash,
    get_offload_group_idx,
)
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from . import SkepError, errors, key
from ._library import socket_of
from ._lookups import Lookups
from ._pages import STAGE, Client, Gate, Trouble, Where, check_options, secured, weights
from ._region import Region

__all__ = ["SkepTier"]

log = logging.getLogger("skepkv.vllm")

_FORMAT = 2  # of what is stored: another one is another namespace
_MOST_KEYS = 4096  # of one call that asks for them
_MOST_JOBS = 4096  # that wait; more fail at once
_OUTCOMES = (
    *("asked", "found", "late", "read", "read_missed"),
    *("written", "written_there", "written_missed"),
)
_CHUNKS, _FAILURES = "vllm:kv_offload_skep_chunks", "vllm:kv_offload_skep_failures"


def _answers(nothing: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Has a method of SkepTier answer nothing(tier, its arguments) where it fails, and in a forked process."""

    def around(do: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(do)
        def call(self: "SkepTier", *args: Any, **kwargs: Any) -> Any:
            # Another thread may have held a lock when this process was forked.
            if os.getpid() == self._pid:
                try:
                    return do(self, *args, **kwargs)
                except Exception as e:
                    self._failed(e)
            return nothing(self, *args, **kwargs)

        return call

    return around


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _fails(tier: "SkepTier", job: TransferJob) -> None:
    tier._done.append(_Finished(JobResult(job_id=job.job_id, success=False), list(job.keys), [], job.is_promotion))


class _Job:
    """A transfer: which of its chunks are there, and the gate that its copies go through."""

    def __init__(self, job: TransferJob, load: bool, until: float) -> None:
        self.number, self.load, self.until = job.job_id, load, until
        self.keys, self.rows = [bytes(k) for k in job.keys], [int(i) for i in job.chunk_ids]
        self.began = time.monotonic()
        self.gate = Gate()
        self.landed = [False] * len(self.keys)


class _Finished:
    """What vLLM is told of a job, and what the tier remembers of it then."""

    __slots__ = ("result", "missed", "there", "load")

    def __init__(self, result: JobResult, missed: list[bytes], there: list[bytes], load: bool) -> None:
        self.result, self.missed, self.there, self.load = result, missed, there, load


class SkepTier(SecondaryTierManager):
    """What vLLM makes of {"type": "SkepTier", "module_path": "skepkv.vllm", …}. What is wrong with its options is a
    ValueError; the server is first spoken to by the first lookup or job. Times are seconds.

    url, token or token_file, tenant: which server, as whom. tls_ca (a file, or "system"), tls_cert, tls_key: TLS over
    TCP. model, revision: whose chunks (vLLM's model; of a local one its files). shared_bytes: memory shared with a
    server behind a Unix socket (None: 256 MiB). copies: drives of a node that have each chunk, 1 to 4; others are other
    caches. direct: such a server maps vLLM's own memory, too. lookup_timeout: a key not answered for by then is a miss.
    exists_timeout: of the call that asks. lease: what was found stays for so long. load_timeout, store_timeout,
    timeout_per_gib: from a job's submission. drain_timeout: what jobs under way have when vLLM takes its memory back.
    readers, writers: threads for loads, for stores."""

    medium = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        url: str = "",
        token: str = "",
        token_file: str = "",
        tls_ca: str = "",
        tls_cert: str = "",
        tls_key: str = "",
        tenant: str = "",
        model: str = "",
        revision: str = "",
        shared_bytes: int | None = None,
        copies: int = 1,
        direct: bool = True,
        lookup_timeout: float = 0.05,
        exists_timeout: float = 1.0,
        lease: float = 10.0,
        load_timeout: float = 5.0,
        store_timeout: float = 20.0,
        timeout_per_gib: float = 2.0,
        drain_timeout: float = 5.0,
        readers: int = 2,
        writers: int = 2,
        enable_kv_events: bool = False,
        locality: str | None = None,
        backpressure_detector: Any = None,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        times = dict.fromkeys(("lookup_timeout", "exists_timeout", "lease", "load_timeout", "store_timeout"), 0.001)
        times.update(timeout_per_gib=0.0, drain_timeout=0.0)
        check_options(locals(), times)
        for name, n in (("readers", readers), ("writers", writers)):
            if type(n) is not int or not 1 <= n <= 64:
                raise ValueError(f"{name} is {n!r}, must be 1 to 64 threads")
        if not isinstance(direct, bool):
            raise ValueError(f"direct is {direct!r}, must be true or false")
        view = primary_kv_view
        if view.ndim != 2 or view.itemsize != 1 or not view.c_contiguous or view.readonly or not view.nbytes:
            raise ValueError(f"primary_kv_view has shape {view.shape}, must be rows of bytes that can be written")
        self._rows, self._row = view.shape[0], view.strides[0]
        self._address = c.addressof(c.c_char.from_buffer(view))  # nothing is kept that would keep the view alive
        self._model, self._copies = model or offloading_spec.config.model.name, copies
        self._revision = revision or (weights(self._model) if os.path.isdir(self._model) else "")
        if not self._revision:
            log.warning("skep: no revision is given: weights of one name have one cache, whatever is in them")
        self.locality = Locality(locality) if locality is not None else None
        self._events: collections.deque[OffloadingEvent] | None = None
        if enable_kv_events:
            if offloading_spec.kv_events_config.enable_kv_cache_events:
                self._events = collections.deque()
            else:
                log.warning("skep: enable_kv_events is set, but vLLM's KV cache events are off: there are none")
        self._lease, self._exists_within = lease, exists_timeout
        self._load_within, self._store_within, self._per_gib = load_timeout, store_timeout, timeout_per_gib
        self._drain_within = drain_timeout
        tls = secured(tls_ca, tls_cert, tls_key)
        self._client = Client(url, token, token_file, tenant, shared_bytes, tls)
        self._trouble = Trouble(log, "chunks are computed meanwhile")
        self._region = self._region_of(view) if direct and socket_of(url) and shared_bytes != 0 else None
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards what follows
        self._where: dict[int, Where] = {}
        self._counts = dict.fromkeys((*_OUTCOMES, "failed"), 0)
        self._told = dict(self._counts)
        self._cond = threading.Condition()  # guards what follows
        self._queues: dict[bool, collections.deque[_Job]] = {True: collections.deque(), False: collections.deque()}
        self._running: set[_Job] = set()
        self._done: collections.deque[_Finished] = collections.deque()
        self._closed = False
        self._lookups = Lookups(self._ask, lookup_timeout)
        self._threads = [
            threading.Thread(target=self._work, args=(load,), daemon=True, name=f"skepkv-{what}-{i}")
            for load, what, n in ((True, "load", readers), (False, "store", writers))
            for i in range(n)
        ]
        for t in self._threads:
            t.start()

    # What vLLM calls.

    @_answers(lambda *_: LookupResult.MISS)
    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        there = self._lookups.get(bytes(key), req_context.req_id)
        if there is None:
            return LookupResult.RETRY
        return LookupResult.HIT if there else LookupResult.MISS

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    @_answers(_nothing)
    def on_request_finished(self, req_context: Any) -> None:
        self._lookups.forget(req_context.req_id)

    @_answers(_nothing)
    def on_schedule_end(self, context: Any) -> None:
        self._lookups.flush()

    @_answers(_fails)
    def submit_store(self, job_metadata: TransferJob) -> None:
        self._submit(job_metadata, False, self._store_within)

    @_answers(_fails)
    def submit_load(self, job_metadata: TransferJob) -> None:
        self._submit(job_metadata, True, self._load_within)

    def get_finished_jobs(self) -> list[JobResult]:
        """The jobs that are finished. Of a load that is not whole, which keys are there; the others are misses."""
        out = []
        while self._done:
            f = self._done.popleft()
            out.append(f.result)
            if os.getpid() != self._pid:
                continue
            if f.load:
                self._lookups.mark(f.missed, False)
            elif f.there:
                self._lookups.mark(f.there, True)
                if self._events is not None:
                    self._events.append(
                        OffloadingEvent(keys=f.there, medium=self.medium, removed=False, locality=self.locality)
                    )
        return out

    def take_events(self) -> Iterable[OffloadingEvent]:
        """What this tier stored. What the server evicts is not told."""
        while self._events:
            yield self._events.popleft()

    @_answers(_nothing)
    def drain_jobs(self) -> None:
        """Waits for jobs, drain_timeout and a copy at most, and for what a server was given as long as that may use it.
        What is not finished then has failed, and nothing of it touches vLLM's memory any more."""
        self._drain(self._drain_within, True)

    @_answers(_nothing)
    def shutdown(self) -> None:
        """Jobs that run have drain_timeout, those that wait none. Threads of calls that the server does not answer may
        outlive it. Memory that such a call has stays mapped."""
        with self._cond:
            self._closed = True
            for queue in self._queues.values():
                while queue:
                    self._finish(queue.popleft())
            self._cond.notify_all()
        self._lookups.close()
        self._drain(self._drain_within, False)
        if self._region is not None:
            self._client.give_back(self._region, 1.0)
        self._client.close()
        until = time.monotonic() + 1
        self._lookups.join(until)
        for t in self._threads:
            t.join(max(0.0, until - time.monotonic()))

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        return {
            _CHUNKS: OffloadingCounterMetadata(
                documentation="Chunks that were asked of skep and found, not answered for in time, read, not read, "
                "written, there already, not written.",
                labelnames=("outcome",),
            ),
            _FAILURES: OffloadingCounterMetadata(documentation="Calls of skep that failed."),
        }

    @_answers(_nothing)
    def get_stats(self) -> OffloadingConnectorStats | None:
        """The counters' growth since the last call."""
        stats = OffloadingConnectorStats()
        with self._lock:
            for name, n in self._counts.items():
                more = n - self._told[name]
                if more and name == "failed":
                    stats.increase_counter(_FAILURES, more)
                elif more:
                    stats.increase_counter(_CHUNKS, more, (name,))
            self._told = dict(self._counts)
        return None if stats.is_empty() else stats

    def counters(self) -> dict[str, int]:
        """Chunks asked for and found, not answered for in time, read and not read, written, there already, not
        written; calls that failed."""
        with self._lock:
            return dict(self._counts)

    # Jobs.

    def _submit(self, given: TransferJob, load: bool, within: float) -> None:
        within += self._per_gib * len(given.keys) * self._row / (1 << 30)
        job = _Job(given, load, time.monotonic() + within)
        if len(job.rows) != len(job.keys):
            raise ValueError(f"chunk_ids are {len(job.rows)}, must be one for each of {len(job.keys)} keys")
        for row in job.rows:
            if not 0 <= row < self._rows:
                raise ValueError(f"a chunk id is {row}, must be 0 to {self._rows - 1}")
        with self._cond:
            queue = self._queues[load]
            if self._closed:
                raise SkepError(errors.CLOSED, "the tier")
            if len(queue) >= _MOST_JOBS:
                raise ValueError(f"{_MOST_JOBS} jobs are waiting")
            queue.append(job)
            self._cond.notify_all()

    def _work(self, load: bool) -> None:
        queue = self._queues[load]
        while True:
            with self._cond:
                self._cond.wait_for(lambda: queue or self._closed)
                if not queue:
                    return
                job = queue.popleft()
                self._running.add(job)
            try:
                self._carry_out(job)
            except Exception as e:
                if not job.gate.closed:
                    self._failed(e)
            with self._cond:
                if job in self._running:  # else it was drained
                    self._running.remove(job)
                    self._finish(job)
                self._cond.notify_all()
            del job

    def _carry_out(self, job: _Job) -> None:
        """Moves chunks, at most STAGE bytes or a chunk at a time, and goes on behind what is missing."""
        groups: dict[int, list[int]] = {}
        for i, k in enumerate(job.keys):
            groups.setdefault(get_offload_group_idx(k), []).append(i)
        each, why = max(1, STAGE // self._row), ""
        for group, at in groups.items():
            where = self._space(group)
            for part in (at[i : i + each] for i in range(0, len(at), each)):
                names = [self._name(job.keys[i]) for i in part]
                pages = [[(self._address + job.rows[i] * self._row, self._row)] for i in part]
                region = self._region
                if job.load:
                    there = self._client.load(where, names, pages, job.until, job.gate, region=region)
                else:
                    done = self._client.save(where, names, pages, job.until, (), job.gate, region=region)
                    there, before, declined = done
                    why = why or declined
                    self._count(written=sum(there) - before, written_there=before)
                for i, ok in zip(part, there):
                    job.landed[i] = ok
        if why:
            self._trouble.complain(why, f"{job.landed.count(False)} chunks are not stored: {why}")
        else:
            self._trouble.well()

    def _finish(self, job: _Job) -> None:
        there = [k for k, ok in zip(job.keys, job.landed) if ok]
        missed = [k for k, ok in zip(job.keys, job.landed) if not ok]
        if job.load:
            self._count(read=len(there), read_missed=len(missed))
        else:
            self._count(written_missed=len(missed))
        result = JobResult(
            job_id=job.number,
            success=not missed,
            successful_keys=tuple(there) if job.load and missed and there else None,
            transfer_time=time.monotonic() - job.began,
            transfer_bytes=len(there) * self._row,
        )
        self._done.append(_Finished(result, missed, there, job.load))

    def _drain(self, within: float, wait: bool) -> None:
        with self._cond:
            if self._cond.wait_for(lambda: not self._running and not any(self._queues.values()), timeout=within):
                return
            left = [*self._running, *self._queues[True], *self._queues[False]]
            for queue in self._queues.values():
                queue.clear()
            for job in left:
                job.gate.close()
                if not job.gate.lent:
                    self._running.discard(job)
                    self._finish(job)
            lent = len(self._running)
            log.warning("skep: %d jobs were not finished within %g s, and have failed", len(left) - lent, within)
            if lent and wait:
                log.warning("skep: the server has the memory of %d more, which is waited for", lent)
                self._cond.wait_for(lambda: not self._running)

    def _region_of(self, view: memoryview) -> Region | None:
        """The primary tier's memory, to be shared with the server. It is held by what the view is of, as vLLM releases
        the view itself."""
        try:
            region = Region(view.obj, log)
            if region.address == self._address and len(region) == view.nbytes:
                return region
            why = "the view is a part of its memory"
        except (TypeError, ValueError, BufferError) as e:
            why = str(e)
        log.warning("skep: what is moved is copied once, as vLLM's memory cannot be shared: %s", why)
        return None

    # Keys.

    def _ask(self, keys: Sequence[bytes]) -> dict[bytes, bool]:
        """Asks the server which keys are there, and leases those."""
        out: dict[bytes, bool] = {}
        began = time.monotonic()
        try:
            groups: dict[int, list[bytes]] = {}
            for k in keys:
                groups.setdefault(get_offload_group_idx(k), []).append(k)
            for group, of in groups.items():
                where = self._space(group)
                for part in (of[i : i + _MOST_KEYS] for i in range(0, len(of), _MOST_KEYS)):
                    names, until = [self._name(k) for k in part], began + self._exists_within
                    out.update(zip(part, self._client.leased(where, names, self._lease, until)))
            self._trouble.well()
        except Exception as e:
            self._failed(e)
        late = len(keys) if time.monotonic() - began > self._lookups.within else 0
        self._count(asked=len(keys), found=sum(out.values()), late=late)
        return out

    def _name(self, offload_key: bytes) -> bytes:
        """A chunk's key: vLLM's own SHA-256 where its hash is one."""
        digest = get_offload_block_hash(offload_key)
        return digest if len(digest) == 32 else key(b"vllm chunk", _none_hash(), digest)

    def _space(self, group: int) -> Where:
        with self._lock:
            where = self._where.get(group)
        if where is None:
            about = self._fingerprint(group)
            text = json.dumps(about, sort_keys=True)
            print_ = hashlib.sha256(text.encode()).hexdigest()
            name = f"vllm/{self._model.encode()[-200:].decode(errors='ignore')}/{group}/{print_[:32]}"
            where = Where(name, print_, False, 1, self._row, text, self._copies)
            with self._lock:
                self._where[group] = where
        return where

    def _fingerprint(self, group: int) -> dict[str, Any]:
        """All that tells bytes of this group's chunks from others under the same keys."""
        config = self._offloading_spec.config
        if group not in (known := [g.group_id for g in config.groups]):
            raise ValueError(f"a key's group is {group}, must be one of {known}")
        # vLLM's file tier names a directory by these. They leave sizes of ranks out where bytes are the same for all.
        files = FileMapper.from_offloading_spec("", self._offloading_spec, config.cache.blocks_per_chunk, True)
        about: dict[str, Any] = {"engine": "vllm", "version": vllm.__version__, "format": _FORMAT, "group": group}
        about.update(files.fields, model_name=self._model, revision=self._revision, rank=files.rank)
        about.update(chunk_bytes=self._row, layout=config.kv_cache_layout, canonical=config.canonical_layout)
        about.update({"copies": self._copies} if self._copies > 1 else {})
        about["runner"] = os.environ.get("VLLM_USE_V2_MODEL_RUNNER", "")
        random = _random_seed()
        if random:
            log.warning("skep: vLLM's hashes begin at random: no other process finds these chunks")
        about["none_hash"] = "random" if random else _none_hash().hex()
        return about

    # What there is to say.

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, n in more.items():
                self._counts[name] += n

    def _failed(self, e: Exception) -> None:
        self._count(failed=1)
        if isinstance(e, SkepError):
            self._trouble.complain(errors.name_of(e.code), str(e))
        else:
            self._trouble.complain(type(e).__name__, f"{type(e).__name__}: {e}")


def _none_hash() -> bytes:
    """What vLLM's hashes begin with: it is another one for another algorithm and another seed."""
    return bytes(getattr(kv_cache_utils, "NONE_HASH", b""))


def _random_seed() -> bool:
    seed = kv_cache_utils.get_none_hash_seed()
    return seed not in (os.environ.get("PYTHONHASHSEED"), kv_cache_utils.DEFAULT_NONE_HASH_SEED)
