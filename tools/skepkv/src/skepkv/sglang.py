"""SGLang's HiCache storage: its pages in a skep server.

    --enable-hierarchical-cache --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{"backend_name": "skep", "module_path": "skepkv.sglang",
        "class_name": "Storage", "interface_v1": 1, "hicache_storage_pass_prefix_keys": true,
        "url": "unix:/run/skep/skep.sock"}'

Nothing that goes wrong is raised into the engine: a page that does not come whole and in time is a miss, and the memory
it was meant for is as it was. Calls return when their time is over: up to four seconds later where they connect to a
server that stands still, and up to ten where a drive does not let go of memory. The server may start later, and be
killed and started again.

With prefix keys pages make chains, of which skep evicts the tails first; without them each page stands alone.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import threading
import time
from typing import Any, Callable, Iterable, Sequence

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolTransferResult

from . import SkepError, errors, key
from ._pages import Client, Page, Trouble, Where, check_options, secured, size_of, weights

__all__ = ["Storage"]

log = logging.getLogger("skepkv.sglang")

_FORMAT = 1  # of what is stored: another one is another namespace
_KV, _MAMBA = "kv", "mamba"
_SGLANG = {"backend_name", "module_path", "class_name", "interface_v1", "tp_lcm_size", "enable_storage_metrics"}
_COUNTS = (
    *("asked", "found", "read", "read_missed", "read_bytes"),
    *("written", "written_there", "written_missed", "written_bytes", "failed"),
)
_MOST_SAMPLES = 1000  # of get_stats, of each kind


def _answers(nothing: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Has a method of Storage answer nothing(its arguments) where it fails."""

    def around(do: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(do)
        def call(self: "Storage", *args: Any, **kwargs: Any) -> Any:
            try:
                return do(self, *args, **kwargs)
            except SkepError as e:
                self._failed(errors.name_of(e.code), str(e))
            except Exception as e:
                self._failed(type(e).__name__, f"{type(e).__name__}: {e}")
            return nothing(*args, **kwargs)

        return call

    return around


def _misses(keys: Sequence[str], *_: Any, **__: Any) -> list[bool]:
    return [False] * len(keys)


def _no_pools(transfers: Iterable[Any], *_: Any, **__: Any) -> dict[Any, list[bool]]:
    return {t.name: [False] * len(t.keys or ()) for t in transfers}


def _name(page: str) -> bytes:
    """A page's key: SGLang's own SHA-256 where the name is one."""
    if len(page) == 64:
        try:
            digest = bytes.fromhex(page)
        except ValueError:
            digest = b""
        if digest.hex() == page:
            return digest
    return key(b"sglang page", page.encode())


def _names(pages: Iterable[str]) -> list[bytes]:
    return [_name(p) for p in pages]


def _run(found: Sequence[bool]) -> int:
    """How many are true before the first that is not."""
    return next((i for i, there in enumerate(found) if not there), len(found))


class _Options:
    """What --hicache-storage-backend-extra-config says, each with its default. Times are seconds."""

    def __init__(self, given: dict[str, Any]) -> None:
        known = {
            "url": "",
            "token": "",
            "token_file": "",
            "tls_ca": "",
            "tls_cert": "",
            "tls_key": "",
            "tenant": "",
            "model": "",
            "revision": "",
            "shared_bytes": None,
            "copies": 1,
            "lease": 10.0,
            "exists_timeout": 0.5,
            "get_timeout": 0.8,
            "get_timeout_per_ki_token": 0.2,
            "set_timeout": 10.0,
            "accepted": False,
        }
        for name in sorted(set(given) - set(known) - _SGLANG):
            log.warning("skep: extra config has %r, which means nothing here", name)
        o = {name: given.get(name, default) for name, default in known.items()}
        times = ("lease", "exists_timeout", "get_timeout", "get_timeout_per_ki_token", "set_timeout")
        check_options(o, {name: 0.0 if name.endswith("token") else 0.001 for name in times})
        self.url, self.token, self.token_file, self.tenant = o["url"], o["token"], o["token_file"], o["tenant"]
        self.tls = secured(o["tls_ca"], o["tls_cert"], o["tls_key"])
        self.model, self.revision, self.copies = o["model"], o["revision"], o["copies"]
        self.shared_bytes, self.lease = o["shared_bytes"], float(o["lease"])
        self.exists_within, self.set_within = float(o["exists_timeout"]), float(o["set_timeout"])
        if not isinstance(o["accepted"], bool):
            raise ValueError(f"accepted is {o['accepted']!r}, must be true or false")
        self.accepted = o["accepted"]
        self.get_within, self.get_per_ki = float(o["get_timeout"]), float(o["get_timeout_per_ki_token"])


class Storage(HiCacheStorage):
    """What SGLang makes for the backend "dynamic". Its configuration is checked here, and what is wrong with it is a
    ValueError; the server is first spoken to by the first call."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        extra = dict(storage_config.extra_config or {})
        o = self._o = _Options(extra)
        self._config = storage_config
        self._v1 = bool(extra.get("interface_v1", 0))
        if not self._v1:
            log.warning("skep: extra config has no interface_v1: SGLang copies each page twice")
        self._model = o.model or storage_config.model_name or ""
        if not self._model:
            raise ValueError("model is empty and SGLang does not name one, must say whose pages these are")
        self._revision = o.revision
        if not self._revision and os.path.isdir(self._model):
            self._revision = weights(self._model)
        if not self._revision:
            log.warning("skep: extra config has no revision: weights of one name have one cache, whatever is in them")
        self._client = Client(o.url, o.token, o.token_file, o.tenant, o.shared_bytes, o.tls)
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards what follows
        self._chained: bool | None = None  # whether SGLang passes prefix keys, once that is known
        self._where: dict[tuple[str, bool], Where] = {}
        self._trouble = Trouble(log, "pages are computed meanwhile")
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._samples: dict[str, list[Any]] = {"get": [], "set": []}
        self.mem_pool_host: Any = None
        self.registered_pools: dict[Any, Any] = {}

    # What SGLang calls.

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        self.registered_pools[host_pool_name] = host_pool

    @_answers(lambda *_, **__: 0)
    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many leading pages are there, behind the prefix. They stay for as long as a lease."""
        self._mine()
        until, names, n = time.monotonic() + self._o.exists_within, _names(keys), 0
        if not names:
            return 0
        prefix = self._prefix(extra_info) if self._v1 else None
        if prefix:
            self._passed(True)
        flat, chain = self._spaces()
        if chain is not None:
            before = _names(prefix or ())
            n = max(0, self._client.found(chain, [*before, *names], self._o.lease, until) - len(before))
            if n == 0 and before:
                # SGLang leaves pages of the last host node out of the prefix: then the chain seems to end there.
                n = _run(self._client.there(chain, names, until))
        if flat is not None and n < len(names):
            n = max(n, self._client.found(flat, names, self._o.lease, until))
        self._count(asked=len(names), found=n)
        return n

    @_answers(_misses)
    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Fills pages of the host pool, and says which are there, whole."""
        self._mine()
        prefix = self._prefix(extra_info)
        if prefix is not None:
            self._passed(True)
        pages = self._pages(self.mem_pool_host, host_indices, len(keys))
        return self._get(keys, pages, [w for w in reversed(self._spaces()) if w is not None], _names(prefix or ()))

    @_answers(_misses)
    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Stores pages of the host pool, behind the prefix where there is one, and says which are stored."""
        self._mine()
        if not self._config.is_storage_writer:
            return [True] * len(keys)  # another rank has the same pages and stores them
        prefix = self._prefix(extra_info)
        self._passed(prefix is not None)
        pages = self._pages(self.mem_pool_host, host_indices, len(keys))
        return self._set(keys, pages, self._space(_KV, prefix is not None), _names(prefix or ()))

    @_answers(lambda *_, **__: PoolTransferResult.empty())
    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """The same with pools besides: a prefix counts where each pool has the pages that its policy asks for."""
        kv = self.batch_exists(keys, extra_info)
        until = time.monotonic() + self._o.exists_within
        hits: dict[Any, int] = {_KV: kv} if kv else {}
        restorable = list(range(1, kv + 1))
        for t in pool_transfers or ():
            if not restorable:
                break
            if t.hit_policy not in (PoolHitPolicy.ALL_PAGES, PoolHitPolicy.TRAILING_PAGES):
                continue  # a pool of which nothing is said, and that holds nothing back
            there = self._client.there(self._space(str(t.name), False), _names(keys[:kv]), until)
            if t.hit_policy == PoolHitPolicy.ALL_PAGES:
                possible = set(range(1, _run(there) + 1))
            else:
                tail = max(1, len(t.keys or ()))
                possible = {n for n in range(1, kv + 1) if all(there[max(0, n - tail) : n])}
            if possible:
                hits[t.name] = max(possible)
            restorable = [n for n in restorable if n in possible]
        return PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)

    @_answers(_no_pools)
    def batch_get_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        self._mine()
        return {t.name: self._pool(t, extra_info, self._get_pool) for t in transfers}

    @_answers(_no_pools)
    def batch_set_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        self._mine()
        return {t.name: self._pool(t, extra_info, self._set_pool) for t in transfers}

    @_answers(lambda *_, **__: None)
    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location], target_sizes)[0]

    @_answers(lambda keys, *_, **__: [None] * len(keys))
    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """Fills tensors, and gives those that are there, whole."""
        self._mine()
        pages = [_tensor(t) for t in target_locations or ()]
        if len(pages) != len(keys):
            raise ValueError(f"target_locations are {len(pages)}, must be one for each of {len(keys)} keys")
        landed = self._get(keys, pages, [self._space("flat", False)])
        return [t if there else None for t, there in zip(target_locations, landed)]

    @_answers(lambda *_, **__: False)
    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], None if value is None else [value], [target_location], target_sizes)

    @_answers(lambda *_, **__: False)
    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Stores tensors, and says whether all are stored."""
        self._mine()
        tensors = [t.contiguous() for t in (values if values is not None else target_locations) or ()]
        if len(tensors) != len(keys):
            raise ValueError(f"values are {len(tensors)}, must be one for each of {len(keys)} keys")
        return all(self._set(keys, [_tensor(t) for t in tensors], self._space("flat", False), ()))

    @_answers(lambda *_, **__: False)
    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def clear(self) -> None:
        """Does nothing: other instances use the pages. `skep` deletes namespaces."""
        log.info("skep: clear: the store's pages are shared and stay")

    @_answers(lambda *_, **__: None)
    def get_stats(self) -> Any:
        """Pages and GB/s of each transfer since the last call, as SGLang's metrics have them."""
        from sglang.srt.observability.metrics_collector import StorageMetrics

        with self._lock:
            gets, sets = self._samples["get"], self._samples["set"]
            self._samples = {"get": [], "set": []}
        m = StorageMetrics()
        m.prefetch_pgs, m.prefetch_bandwidth = [n for n, _ in gets], [rate for _, rate in gets]
        m.backup_pgs, m.backup_bandwidth = [n for n, _ in sets], [rate for _, rate in sets]
        return m

    def counters(self) -> dict[str, int]:
        """Pages asked for and found, read and not read, written, not written for they were there or for another reason;
        bytes; calls that failed."""
        with self._lock:
            return dict(self._counts)

    def close(self) -> None:
        self._client.close()

    # Pages.

    def _mine(self) -> None:
        if os.getpid() != self._pid:
            raise SkepError(errors.UNSUPPORTED, "this process is forked from the one that made the storage")

    def _pages(self, pool: Any, indices: Any, n: int) -> list[Page]:
        """Where n pages of a host pool lie."""
        tokens = int(pool.page_size)
        if indices is None or len(indices) != n * tokens:
            raise ValueError(
                f"host_indices are {0 if indices is None else len(indices)}, must be {tokens} for each of {n} pages"
            )
        if n == 0:
            return []
        meta = pool.get_page_buffer_meta(indices)
        addresses, sizes = meta[0], meta[1]
        if not len(addresses) or len(addresses) % n or len(sizes) != len(addresses):
            raise ValueError(f"the pool gives {len(addresses)} pieces of {len(sizes)} lengths for {n} pages")
        each = len(addresses) // n
        pages = [list(zip(addresses[i : i + each], sizes[i : i + each])) for i in range(0, len(addresses), each)]
        for i, page in enumerate(pages):
            if any(a <= 0 or b <= 0 for a, b in page) or size_of(page) != size_of(pages[0]):
                raise ValueError(f"page {i} has {size_of(page)} bytes, must be {size_of(pages[0])} as the first")
        return pages

    def _get(
        self, keys: Sequence[str], pages: Sequence[Page], spaces: Sequence[Where], prefix: Sequence[bytes] = ()
    ) -> list[bool]:
        """Loads pages, behind those of prefix, from the first of spaces that has them."""
        began = time.monotonic()
        until = began + self._o.get_within + self._o.get_per_ki * len(keys) * self._tokens() / 1024
        names, landed = _names(keys), [False] * len(keys)
        for where in spaces:
            at = _run(landed)
            if at < len(names):
                landed[at:] = self._client.load(where, names[at:], pages[at:], until, prefix=[*prefix, *names[:at]])
        there = sum(landed)
        moved = sum(size_of(p) for p, ok in zip(pages, landed) if ok)
        self._count(read=there, read_missed=len(keys) - there, read_bytes=moved)
        self._sample("get", there, moved, began)
        self._trouble.well()
        return landed

    def _set(self, keys: Sequence[str], pages: Sequence[Page], where: Where, prefix: Sequence[bytes]) -> list[bool]:
        began = time.monotonic()
        until = began + self._o.set_within
        stored, before, why = self._client.save(
            where, _names(keys), pages, until, prefix, accepted=self._o.accepted and where.chained
        )
        n = sum(stored)
        moved = (n - before) * (size_of(pages[0]) if pages else 0)
        self._count(written=n - before, written_there=before, written_missed=len(keys) - n, written_bytes=moved)
        self._sample("set", n - before, moved, began)
        if why:
            self._trouble.complain(why, f"{len(keys) - n} pages are not stored: {why}")
        else:
            self._trouble.well()
        return stored

    def _pool(self, t: Any, extra_info: Any, do: Callable[..., list[bool]]) -> list[bool]:
        """A transfer of one pool, which fails alone."""
        keys = list(t.keys or ())
        try:
            pool = self.registered_pools.get(t.name)
            if pool is None and t.name == _KV:
                pool = self.mem_pool_host
            if pool is None:
                raise ValueError(f"pool {t.name} is not registered")
            return do(t, keys, pool, extra_info)
        except SkepError as e:
            self._failed(errors.name_of(e.code), str(e))
        except Exception as e:
            self._failed(type(e).__name__, f"pool {t.name}: {type(e).__name__}: {e}")
        return [False] * len(keys)

    def _get_pool(self, t: Any, keys: list[str], pool: Any, extra_info: Any) -> list[bool]:
        if t.name == _KV:
            return self.batch_get_v1(keys, t.host_indices, extra_info)
        return self._get(keys, self._pages(pool, t.host_indices, len(keys)), [self._space(str(t.name), False)])

    def _set_pool(self, t: Any, keys: list[str], pool: Any, extra_info: Any) -> list[bool]:
        if t.name == _KV:
            return self.batch_set_v1(keys, t.host_indices, extra_info)
        return self._set(keys, self._pages(pool, t.host_indices, len(keys)), self._space(str(t.name), False), ())

    # Namespaces.

    def _prefix(self, extra_info: Any) -> list[str] | None:
        return None if extra_info is None else extra_info.prefix_keys

    def _passed(self, prefix: bool) -> None:
        with self._lock:
            self._chained = prefix

    def _spaces(self) -> tuple[Where | None, Where | None]:
        """Where pages of the KV pool are, alone and in chains. SGLang leaves an empty prefix out of some calls, so it
        may be both until it is known whether there are prefixes."""
        if not self._v1:
            return self._space("flat", False), None
        with self._lock:
            chained = self._chained
        flat = None if chained else self._space(_KV, False)
        return flat, None if chained is False else self._space(_KV, True)

    def _space(self, pool: str, chained: bool) -> Where:
        with self._lock:
            where = self._where.get((pool, chained))
        if where is None:
            about = self._fingerprint(pool)
            text = json.dumps(about, sort_keys=True)
            print_ = hashlib.sha256(text.encode()).hexdigest()
            name = f"sglang/{self._model.encode()[-200:].decode(errors='ignore')}/{pool}"
            name += f"/{'chained' if chained else 'each'}/{print_[:32]}"
            size = int(about["page_bytes"])
            where = Where(name, print_, chained, self._tokens() if chained else 1, size, text, self._o.copies)
            with self._lock:
                self._where[pool, chained] = where
        return where

    def _tokens(self) -> int:
        return int(getattr(self.mem_pool_host, "page_size", 0) or 1)

    def _fingerprint(self, name: str) -> dict[str, Any]:
        """All that tells bytes of this pool from others under the same keys."""
        config = self._config
        pool = self.mem_pool_host
        if name not in (_KV, "flat"):
            pool = next((p for n, p in self.registered_pools.items() if str(n) == name), None)
        if pool is None:
            raise ValueError(f"pool {name} is not registered")
        about: dict[str, Any] = {"engine": "sglang", "format": _FORMAT, "model": self._model, "pool": name}
        if self._o.copies > 1:
            about["copies"] = self._o.copies
        about.update(revision=self._revision, kind=type(pool).__name__, page_bytes=0)
        for field in (
            *("dtype", "layout", "page_size", "size_per_token", "layer_num", "start_layer", "end_layer"),
            *("head_num", "head_dim", "v_head_dim", "kv_lora_rank", "qk_rope_head_dim", "storage_format_tag"),
        ):
            about[field] = str(getattr(pool, field, None))
        # Ranks of an MLA model have the same KV, which one writes. Mamba's state and a draft's heads are each rank's.
        own = name == _MAMBA or name != _KV and any("MHA" in k.__name__ for k in type(pool).__mro__)
        if not config.is_mla_model or own:
            about.update(tp_rank=config.tp_rank, tp_size=config.tp_size)
        about.update(pp_rank=config.pp_rank, pp_size=config.pp_size)
        for field in ("attn_cp_rank", "attn_cp_size", "dcp_rank", "dcp_size", "logical_page_size"):
            about[field] = getattr(config, field, None)
        if name == _KV:
            import torch

            about["page_bytes"] = size_of(self._pages(pool, torch.arange(pool.page_size), 1)[0])
        return about

    # What there is to say.

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, n in more.items():
                self._counts[name] += n

    def _sample(self, what: str, pages: int, moved: int, began: float) -> None:
        if pages and self._config.enable_storage_metrics:
            with self._lock:
                samples = self._samples[what]
                if len(samples) < _MOST_SAMPLES:
                    samples.append((pages, moved / max(time.monotonic() - began, 1e-9) / 1e9))

    def _failed(self, kind: str, error: str) -> None:
        if os.getpid() != self._pid:
            return  # another thread may have held the lock when this process was forked
        self._count(failed=1)
        self._trouble.complain(kind, error)


def _tensor(t: Any) -> Page:
    """Where a tensor lies."""
    if t is None or t.device.type != "cpu" or not t.is_contiguous():
        raise ValueError("a page is no tensor, or none that is contiguous and in host memory")
    return [(t.data_ptr(), t.numel() * t.element_size())]
