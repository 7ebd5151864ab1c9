"""vLLM without a model for the tests: its spec, its factory, its tiering manager, its primary tier and memory region,
with skepkv's tier in them. `missing` says why there is none."""

import hashlib
import itertools
import logging
import unittest
import uuid

import skepkv
from serving import Server, eventually

try:
    import numpy as np
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
    from vllm.v1.kv_offload.config import (
        OffloadingCacheConfig,
        OffloadingConfig,
        OffloadingGroupConfig,
        OffloadingModelConfig,
        OffloadingParallelConfig,
    )
    from vllm.v1.kv_offload.tiering.base import TransferJob
    from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

    missing = ""
except (ImportError, OSError) as e:
    missing = f"vLLM is not installed here: {e}"

PATIENT = {"lookup_timeout": 120, "exists_timeout": 120, "load_timeout": 240, "store_timeout": 240, "drain_timeout": 60}
PARALLEL = {"rank": 0, "tp_size": 1, "pp_size": 1, "pcp_size": 1, "dcp_size": 1, "is_parallelism_agnostic": False}


def chain(n, seed="a", group=0):
    """n keys of vLLM: a hash over the one before, and the group."""
    out, before = [], b""
    for i in range(n):
        before = hashlib.sha256(before + f"{seed}{i}".encode()).digest()
        out.append(make_offload_key(before, group))
    return out


def value(key, n):
    """What a chunk of that key holds: bytes that no other has."""
    each = hashlib.shake_128(bytes(key)).digest(4096)
    return np.frombuffer(each * (n // 4096 + 1), dtype=np.uint8)[:n]


class Engine:
    """vLLM's scheduler as far as its offloading manager sees it, and its GPU worker as far as memory does."""

    def __init__(
        self,
        url,
        chunks=16,
        size=64 << 10,
        groups=1,
        model="org/model-7b",
        layout="NHD",
        tier=None,
        events=True,
        **extra,
    ):
        parallel = {k: extra.pop(k) for k in PARALLEL if k in extra}
        world = parallel.get("tp_size", 1)
        if tier is None:
            tier = {"type": "SkepTier", "module_path": "skepkv.vllm", "url": url, "revision": "1", **PATIENT, **extra}
            tier.setdefault("enable_kv_events", True)
        self.size, self.requests = size, itertools.count()
        self.torn = False  # a load that failed may have written a part of its rows, as the server was killed
        config = OffloadingConfig(
            groups=tuple(OffloadingGroupConfig(16, (f"layers.{i}",), i) for i in range(groups)),
            worker_kv_bytes_per_block=size // world,
            enable_kv_cache_events=events,
            extra_config={"cpu_bytes_to_use": chunks * size, "secondary_tiers": [tier]},
            engine_id=f"skepkv-{uuid.uuid4().hex}",
            model=OffloadingModelConfig(model, "bfloat16"),
            cache=OffloadingCacheConfig(16, 1),
            parallel=OffloadingParallelConfig(
                **{**PARALLEL, **parallel},
                world_size=world,
                data_parallel_index=0,
                data_parallel_size=1,
                data_parallel_rank_local=None,
            ),
            kv_cache_layout=layout,
        )
        self.manager = TieringOffloadingSpec(config).get_manager()
        (self.tier,) = self.manager.secondary_tiers
        self.memory = np.asarray(self.manager.primary_tier.get_kv_memoryview())
        self.memory = self.memory.view(np.uint8)
        self.blank()

    value = staticmethod(value)

    def close(self):
        self.memory = None
        self.manager.shutdown()

    def blank(self):
        self.memory[:] = 0xEE

    def step(self):
        with self.manager.lock:
            self.manager.on_schedule_end(ScheduleEndContext((), ()))

    def request(self):
        ctx = ReqContext(f"r{next(self.requests)}")
        with self.manager.lock:
            self.manager.on_new_request(ctx)
        return ctx

    def finish(self, ctx):
        with self.manager.lock:
            self.manager.on_request_finished(ctx)

    def idle(self):
        """Steps until no job of the tier is under way."""

        def done():
            self.step()
            with self.manager.lock:
                return not self.manager.has_pending_work()

        eventually(done, 300)

    def store(self, keys):
        """What the GPU computed goes to the primary tier, and from there to skep."""
        ctx = self.request()
        with self.manager.lock:
            out = self.manager.prepare_store(keys, ctx)
            for key, row in zip(out.keys_to_store, out.store_spec.chunk_ids):
                self.memory[row] = value(key, self.size)
            self.manager.complete_store(out.keys_to_store, ctx)
        self.finish(ctx)
        self.idle()

    def forget(self):
        """The primary tier loses all it has, as after a restart."""
        with self.manager.lock:
            self.manager.reset_cache()
            self.manager.on_reset_flushed()
        self.blank()

    def look(self, keys, ctx):
        """Looks up until nothing is pending, as the scheduler does in its steps."""

        def known():
            with self.manager.lock:
                got = [self.manager.lookup(k, ctx) for k in keys]
            self.step()
            return got if not {LookupResult.RETRY, LookupResult.HIT_PENDING} & set(got) else None

        return [r is LookupResult.HIT for r in eventually(known, 300)]

    def load(self, keys):
        """Loads chunks into blank memory. Of each, whether it is there; what is said to be there is, every byte, and
        no other byte is written."""
        self.forget()
        ctx = self.request()
        landed = self.look(keys, ctx)
        self.check([k for k, there in zip(keys, landed) if there], ctx)
        self.finish(ctx)
        return landed

    def check(self, keys, ctx):
        blank = np.ones(len(self.memory), dtype=bool)
        if keys:
            with self.manager.lock:
                rows = self.manager.prepare_load(keys, ctx).chunk_ids
                for key, row in zip(keys, rows):
                    assert np.array_equal(self.memory[row], value(key, self.size)), "a byte is another one"
                    blank[row] = False
                self.manager.complete_load(keys, ctx)
        assert self.torn or (self.memory[blank] == 0xEE).all(), "memory of a miss was written"

    def job(self, keys, rows, load=True):
        """A job that the manager does not know of."""
        return TransferJob(10**9 + next(self.requests), keys, np.array(rows, dtype=np.int32), load, ReqContext("j"))


@unittest.skipIf(missing, missing)
class OnServer(unittest.TestCase):
    token = False

    def setUp(self):
        logging.getLogger("vllm").setLevel(logging.ERROR)
        kv_cache_utils.init_none_hash(sha256)
        self.server = Server(token=self.token, capacity="1GiB")
        self.addCleanup(self.server.stop)

    def engine(self, *args, **o):
        e = Engine(o.pop("url", self.server.url), *args, **o)
        self.addCleanup(e.close)
        return e

    def space(self, store, e, group=0):
        where = e.tier._space(group)
        return store.namespace(where.name, model=where.model, bytes=where.bytes, chained=True, each=True)

    def delete(self, e, key):
        with skepkv.connect(self.server.url) as store:
            self.assertEqual(self.space(store, e).delete([key[:32]]), 1)


def straight(e):
    """Whether the server has vLLM's own memory."""
    return e.tier._region is not None and e.tier._region.shared
