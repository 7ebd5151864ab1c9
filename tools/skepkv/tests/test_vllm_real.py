"""The tier under vLLM's own classes: its spec, its factory, its tiering manager, its primary tier and memory region."""

import hashlib
import itertools
import json
import logging
import os
import re
import signal
import threading
import unittest
import unittest.mock
import uuid

import skepkv
import skepkv._region
from serving import TOKEN, Server, differing, eventually

try:
    import numpy as np
    from vllm.utils.hashing import sha256, sha256_cbor
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.kv_offload.base import LookupResult, Medium, ReqContext, ScheduleEndContext, make_offload_key
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

    def __init__(self, url, chunks=16, size=64 << 10, groups=1, model="org/model-7b", layout="NHD", tier=None, **extra):
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
            enable_kv_cache_events=True,
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
        return store.namespace(where.name, model=where.model, bytes=where.bytes)

    def delete(self, e, key):
        with skepkv.connect(self.server.url) as store:
            self.assertEqual(self.space(store, e).delete([key[:32]]), 1)


def straight(e):
    """Whether the server has vLLM's own memory."""
    return e.tier._region is not None and e.tier._region.shared


class TestChunks(OnServer):
    def test_drives_read_into_vllms_own_memory(self):
        e, keys = self.engine(), chain(10)
        e.tier._client._stage = None  # what is copied goes through that
        with self.assertLogs("skepkv.vllm", "INFO") as logs:
            e.store(keys[:8])
            self.assertEqual(e.load(keys), [True] * 8 + [False] * 2)
        self.assertEqual([line for line in logs.output if "nothing is copied" in line], logs.output, "said once")
        self.assertTrue(straight(e))
        self.server.kill()
        self.server.start()
        eventually(lambda: e.load(keys[:8]) == [True] * 8, 120)
        e.store(keys)
        self.assertEqual((e.load(keys), e.tier.counters()["failed"]), ([True] * 10, 0))
        region = e.manager.primary_tier._mmap_region
        e.close()
        self._cleanups = [c for c in self._cleanups if c[0] != e.close]
        self.assertIsNone(region.mmap_obj, "vLLM has unmapped it")

    def test_memory_that_cannot_be_shared_is_copied(self):
        small = Server(shared="8MiB")
        self.addCleanup(small.stop)
        keys = chain(4)
        for url, chunks, o, why in (
            (small.url, 160, {"shared_bytes": 1 << 20}, "10485760"),
            (self.server.url, 16, {"direct": False}, ""),
            (f"127.0.0.1:{self.server.port}", 16, {}, ""),
        ):
            with self.subTest(url=url):
                e = self.engine(url=url, chunks=chunks, **o)
                said = self.assertLogs if why else self.assertNoLogs
                with said("skepkv.vllm", "WARNING") as logs:
                    e.store(keys)
                    self.assertEqual(e.load(keys), [True] * 4)
                self.assertFalse(straight(e))
                self.assertEqual([why in line for line in logs.output] if why else [True], [True], "said once")

    def test_chunks_there_and_back(self):
        e, keys = self.engine(), chain(10)
        self.assertEqual(e.load(keys), [False] * 10)
        e.store(keys[:8])
        other = self.engine()  # another instance finds what this one stored
        self.assertEqual(other.load(keys), [True] * 8 + [False] * 2)
        self.assertEqual(e.load(keys), [True] * 8 + [False] * 2, "a request later asks anew")
        other.store(keys)
        c = other.tier.counters()
        self.assertEqual((c["read"], c["written"] + c["written_there"], c["failed"]), (8, 2, 0))
        c = e.tier.counters()
        self.assertEqual((c["written"], c["asked"], c["found"], c["read"]), (8, 20, 8, 8))

    def test_events_and_metrics(self):
        e, keys = self.engine(), chain(3)
        e.store(keys)
        events = [v for v in e.manager.take_events() if v.medium is Medium.STORAGE]
        self.assertEqual([(v.keys, v.removed) for v in events], [(keys, False)])
        self.assertEqual([v for v in e.manager.take_events() if v.medium is Medium.STORAGE], [])
        self.assertEqual(e.load(keys), [True] * 3)
        told = e.manager.get_stats().reduce()
        self.assertEqual(told["vllm:kv_offload_skep_chunks:('written',)"], 3)
        self.assertEqual(told["vllm:kv_offload_skep_chunks:('read',)"], 3)
        self.assertIsNone(e.tier.get_stats(), "each is told once")
        defined = TieringOffloadingSpec.build_metric_definitions(
            {"secondary_tiers": [{"type": "SkepTier", "module_path": "skepkv.vllm"}]}
        )
        self.assertLessEqual({"vllm:kv_offload_skep_chunks", "vllm:kv_offload_skep_failures"}, set(defined))

    def test_groups_are_apart(self):
        e = self.engine(groups=2)
        both = chain(3) + chain(3, group=1)
        e.store(both)
        self.assertEqual(e.load(both), [True] * 6)
        self.assertNotEqual(e.tier._space(0), e.tier._space(1))
        with self.assertLogs("skepkv.vllm", "WARNING"):
            self.assertEqual(e.load(chain(2, group=7)), [False] * 2, "a group that there is not")

    def test_a_middle_chunk_is_missing(self):
        e, keys = self.engine(), chain(6)
        e.store(keys[:2] + keys[3:])
        self.assertEqual(e.load(keys), [True, True, False, True, True, True], "half a batch")

    def test_a_miss_between_lookup_and_load(self):
        e, keys = self.engine(), chain(4)
        e.store(keys)
        e.forget()
        ctx = e.request()

        def found():
            with e.manager.lock:
                return e.tier.lookup(keys[2], ctx) is LookupResult.HIT or e.tier.on_schedule_end(None)

        eventually(found)
        self.delete(e, keys[2])
        self.assertEqual(e.look(keys, ctx), [True, True, False, True])
        e.check(keys[:2] + keys[3:], ctx)
        e.finish(ctx)
        self.assertEqual(e.tier.counters()["read_missed"], 1)

    def test_lengths_that_are_wrong(self):
        e, keys = self.engine(), chain(4)
        e.store(keys)
        e.blank()
        for load in (True, False):
            for rows in ([0, 1, 2], [0, 1, 2, 16], [-1, 0, 1, 2]):
                job = e.job(keys, rows, load)
                (e.tier.submit_load if load else e.tier.submit_store)(job)
                (r,) = e.tier.get_finished_jobs()
                self.assertEqual((r.job_id, r.success, r.successful_keys), (job.job_id, False, None))
        self.assertTrue((e.memory == 0xEE).all())
        self.assertEqual(self.engine(size=68 << 10).load(keys), [False] * 4, "chunks of another size")

    def test_a_namespace_that_is_another(self):
        e, keys = self.engine(), chain(2)
        where = e.tier._space(0)
        with skepkv.connect(self.server.url) as store:
            space = store.namespace(where.name, model=where.model, bytes=4096)
            space.put([k[:32] for k in keys], [bytes(4096)] * 2)
        with self.assertLogs("skepkv.vllm", "WARNING"):
            e.store(keys)
            self.assertEqual(e.load(keys), [False] * 2)

    def test_what_tells_caches_apart(self):
        keys = chain(2)
        self.engine().store(keys)
        for o in (
            {"model": "org/model-8b"},
            {"revision": "2"},
            {"tp_size": 2},
            {"tp_size": 2, "rank": 1},
            {"pp_size": 2},
            {"pcp_size": 2},
            {"dcp_size": 2},
            {"layout": "HND"},
            {"groups": 2},
        ):
            with self.subTest(o):
                e = self.engine(**o)
                self.assertEqual(e.load(keys), [False] * 2)
                e.store(keys)
                self.assertEqual(e.load(keys), [True] * 2)
        kv_cache_utils.init_none_hash(sha256_cbor)
        self.assertEqual(self.engine().load(keys), [False] * 2, "another hash algorithm")
        kv_cache_utils.init_none_hash(sha256)
        self.assertEqual(self.engine().load(keys), [True] * 2)
        a = self.engine(is_parallelism_agnostic=True)
        a.store(keys)
        other = self.engine(is_parallelism_agnostic=True, tp_size=2)
        self.assertEqual(other.load(keys), [True] * 2, "vLLM says that the bytes are the same")
        differ = set().union(*differing(self.server, "vllm", 11))
        self.assertLessEqual({"revision", "tp_size", "pp_size", "layout", "none_hash"}, differ)

    def test_hashes_that_are_short(self):
        e = self.engine()
        keys = [make_offload_key(hashlib.md5(bytes([i])).digest(), 0) for i in range(3)]
        e.store(keys)
        self.assertEqual(e.load(keys), [True] * 3)

    def test_sizes(self):
        large = Server(capacity="2GiB", block="32MiB")
        self.addCleanup(large.stop)
        for url, size, n in ((self.server.url, 2 << 20, 40), (large.url, 32 << 20, 4)):
            with self.subTest(size=size):
                e, keys = self.engine(url=url, chunks=n + 1, size=size), chain(n, str(size))
                e.store(keys)
                self.assertEqual(e.load(keys), [True] * n)

    def test_eight_threads(self):
        e, other = self.engine(chunks=160, readers=4, writers=4), self.engine(chunks=160, readers=4, writers=4)
        wrong = []

        def one(seed):
            keys = [k for i in range(4) for k in chain(4, f"{seed}/{i}")]
            for i in range(0, 16, 4):
                e.store(keys[i : i + 4])
            ctx = other.request()
            landed = other.look(keys, ctx)
            with other.manager.lock:
                rows = other.manager.prepare_load(keys, ctx).chunk_ids
                same = [np.array_equal(other.memory[r], value(k, e.size)) for k, r in zip(keys, rows)]
                other.manager.complete_load(keys, ctx)
            other.finish(ctx)
            wrong.append(landed.count(False) + same.count(False))

        threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(300)
        self.assertFalse(any(t.is_alive() for t in threads))
        self.assertEqual(wrong, [0] * 8)
        self.assertEqual(other.tier.counters()["read"], 128)

    def test_a_fork(self):
        e, keys = self.engine(), chain(2)
        e.store(keys)
        t = e.tier
        with t._lock, t._cond, t._lookups._cond, t._client._lock:  # as other threads of this process may
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    signal.alarm(60)  # it would wait for ever
                    ctx = ReqContext("child")
                    missed = t.lookup(keys[0], ctx) is LookupResult.MISS
                    t.on_schedule_end(None)
                    t.on_request_finished(ctx)
                    t.submit_load(e.job(keys, [0, 1]))
                    t.submit_store(e.job(keys, [0, 1], False))
                    t.drain_jobs()
                    failed = [r.success for r in t.get_finished_jobs()] == [False] * 2
                    t.shutdown()
                    code = 0 if missed and failed and t.get_stats() is None else 2
                finally:
                    os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(e.load(keys), [True] * 2)

    def test_configurations_that_are_wrong(self):
        for o, says in (
            ({"url": ""}, "url"),
            ({"load_timeout": 0}, "load_timeout"),
            ({"lease": "long"}, "lease"),
            ({"shared_bytes": -1}, "shared_bytes"),
            ({"readers": 0}, "readers"),
        ):
            with self.subTest(o), self.assertRaisesRegex(ValueError, says):
                Engine(o.pop("url", self.server.url), **o)
        with self.assertRaisesRegex(TypeError, "ulr"):
            Engine(self.server.url, ulr="unix:/x")

    def test_the_configuration_of_the_tutorial(self):
        with open(os.path.join(os.path.dirname(__file__), "../../../docs/tutorials/vllm.md"), encoding="utf-8") as f:
            given = json.loads(re.search(r"--kv-transfer-config '(\{.*?\})'", f.read(), re.DOTALL)[1])
        extra = given["kv_connector_extra_config"]
        self.assertEqual((given["kv_connector"], extra["spec_name"]), ("OffloadingConnector", "TieringOffloadingSpec"))
        (tier,) = extra["secondary_tiers"]
        self.assertEqual((tier.pop("type"), tier.pop("module_path")), ("SkepTier", "skepkv.vllm"))
        del tier["url"], tier["token_file"]
        e, keys = self.engine(**tier), chain(2)
        e.store(keys)
        self.assertEqual(e.load(keys), [True] * 2)


@unittest.skipIf(missing, missing)
class TestLookups(unittest.TestCase):
    def test_what_is_not_answered_in_time_is_a_miss_until_it_is(self):
        answer, asked = threading.Event(), []

        def ask(names):
            asked.append(names)
            answer.wait(300)
            return dict.fromkeys(names, True)

        from skepkv.vllm import _Lookups

        slow, patient = _Lookups(ask, 0.05), _Lookups(ask, 600)
        for lookups in (slow, patient):
            self.addCleanup(lookups.close)
            for name in (b"a", b"b", b"a"):
                self.assertIn(lookups.get(name, "r"), (None, False), "it is not known yet")
            lookups.flush()
        eventually(lambda: asked == [[b"a", b"b"]] * 2)
        eventually(lambda: slow.get(b"a", "r") is False)
        self.assertIsNone(patient.get(b"a", "r"))
        answer.set()
        eventually(lambda: slow.get(b"a", "r") and patient.get(b"b", "r"))
        slow.mark([b"a", b"other"], False)
        self.assertIs(slow.get(b"a", "r2"), False)
        slow.forget("r")
        self.assertIs(slow.get(b"a", "r2"), False, "another request asked, too")
        slow.forget("r2")
        self.assertEqual((slow._verdicts, slow._of), ({}, {}))


class TestTrouble(OnServer):
    def stand_still(self):
        self.server.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.server.process.pid, os.WUNTRACED)  # until it stands
        self.addCleanup(self.server.process.send_signal, signal.SIGCONT)

    def test_the_server_is_killed_and_started_again(self):
        for direct in (False, True):
            with self.subTest(direct=direct):
                self.killed(direct)

    def killed(self, direct):
        e, keys = self.engine(chunks=80, size=2 << 20, direct=direct), chain(40, str(direct))
        e.store(keys)
        e.torn = direct
        began, done = threading.Event(), []

        def read():
            while not done or all(done[-1]):
                done.append(e.load(keys))  # compares what landed
                began.set()

        reader = threading.Thread(target=read)
        reader.start()
        self.assertTrue(began.wait(300))
        self.server.kill()
        reader.join(300)
        self.assertFalse(reader.is_alive())
        self.assertEqual(e.load(keys), [False] * 40)
        e.forget()
        e.store(chain(2, "lost"))
        self.assertGreaterEqual(e.tier.counters()["written_missed"], 2)
        self.server.start()

        def stored():
            e.forget()
            e.store(chain(2, "new"))
            return e.load(chain(2, "new")) == [True] * 2

        eventually(stored, 120)
        e.torn = False
        eventually(lambda: [e.load(keys), straight(e) == direct][1], 120)

    def test_a_server_that_is_not_there_yet(self):
        self.server.kill()
        e, keys = self.engine(), chain(2)
        e.store(keys)
        self.assertEqual(e.load(keys), [False] * 2)
        self.server.start()

        def stored():
            e.forget()
            e.store(keys)
            return e.load(keys) == [True] * 2

        eventually(stored, 120)

    def test_a_lookup_that_nobody_answers_is_a_miss(self):
        e, keys = self.engine(lookup_timeout=0.05), chain(2)
        e.store(keys)
        self.stand_still()
        self.assertEqual(e.load(keys), [False] * 2)
        self.server.process.send_signal(signal.SIGCONT)
        eventually(lambda: e.load(keys) == [True] * 2)

    def test_a_load_past_its_deadline(self):
        e, keys = self.engine(load_timeout=0.2, store_timeout=0.2, direct=False), chain(2)
        eventually(lambda: [e.forget(), e.store(keys), e.load(keys)][2] == [True] * 2)
        e.forget()
        self.stand_still()
        jobs = [e.job(keys, [0, 1]), e.job(chain(2, "b"), [2, 3], False)]
        e.tier.submit_load(jobs[0])
        e.tier.submit_store(jobs[1])
        done = []
        eventually(lambda: done.extend(e.tier.get_finished_jobs()) or len(done) == 2)
        self.assertEqual({r.job_id: r.success for r in done}, {j.job_id: False for j in jobs})
        self.server.process.send_signal(signal.SIGCONT)
        self.assertTrue((e.memory == 0xEE).all())
        eventually(lambda: e.load(keys) == [True] * 2)

    def test_memory_that_was_taken_back_is_not_written(self):
        for end in ("drain_jobs", "shutdown"):
            with self.subTest(end):
                e, keys = self.engine(drain_timeout=0.1, direct=False), chain(8)
                e.store(keys)
                e.forget()
                self.stand_still()
                jobs = [e.job(keys, range(8)) for _ in range(4)] + [e.job(chain(8, end), range(8), False)]
                for job in jobs:
                    (e.tier.submit_load if job.is_promotion else e.tier.submit_store)(job)
                eventually(lambda: len(e.tier._running) == 3)
                getattr(e.tier, end)()
                done = e.tier.get_finished_jobs()
                self.assertEqual({r.job_id: r.success for r in done}, {j.job_id: False for j in jobs})
                self.server.process.send_signal(signal.SIGCONT)
                if end == "shutdown":
                    for t in e.tier._threads:
                        t.join(60)
                    self.assertFalse(any(t.is_alive() for t in e.tier._threads))
                    e.tier.submit_load(jobs[0])
                    self.assertEqual([r.success for r in e.tier.get_finished_jobs()], [False])
                    self.assertEqual(e.tier.lookup(keys[0], ReqContext("late")), LookupResult.RETRY)
                    e.tier.on_schedule_end(None)
                    self.assertEqual(e.tier.lookup(keys[0], ReqContext("late")), LookupResult.MISS)
                else:
                    eventually(lambda: e.load(keys) == [True] * 8)
                    e.blank()
                self.assertTrue((e.memory == 0xEE).all())

    def under_way(self, e, keys):
        """A server that stands still has vLLM's memory for loads of keys and a store. The jobs."""
        e.store(keys)
        self.assertEqual(e.load(keys), [True] * len(keys))
        self.assertTrue(straight(e))
        e.forget()
        self.stand_still()
        jobs = [e.job(keys, range(8)) for _ in range(4)] + [e.job(chain(8, "more"), range(8), False)]
        for job in jobs:
            (e.tier.submit_load if job.is_promotion else e.tier.submit_store)(job)
        eventually(lambda: [j.gate.lent for j in list(e.tier._running) if j.load] == [1, 1])
        return jobs

    def test_memory_that_the_server_has_is_waited_for(self):
        e, keys = self.engine(drain_timeout=0.1), chain(8)
        jobs = self.under_way(e, keys)
        drain = threading.Thread(target=e.tier.drain_jobs)
        drain.start()
        eventually(lambda: len(e.tier._done) == 3)  # two that had not begun, and the store, which asked what is there
        self.assertTrue(drain.is_alive())
        self.server.process.send_signal(signal.SIGCONT)
        drain.join(300)
        self.assertFalse(drain.is_alive())
        done = {r.job_id: r.success for r in e.tier.get_finished_jobs()}
        self.assertEqual(sorted(done), sorted(j.job_id for j in jobs), "each is told of once")
        self.assertEqual(e.tier._running, set())
        e.blank()
        eventually(lambda: e.load(keys) == [True] * 8)

    def test_memory_that_the_server_has_at_the_end_stays_mapped(self):
        e, keys = self.engine(drain_timeout=0.1), chain(8)
        self.under_way(e, keys)
        e.tier.shutdown()
        self.assertIs(skepkv._region._kept[-1], e.tier._region._flat)
        e.close()  # vLLM keeps it mapped, and says so
        self._cleanups = [c for c in self._cleanups if c[0] != e.close]
        self.server.process.send_signal(signal.SIGCONT)
        for t in e.tier._threads:
            t.join(300)
        self.assertFalse(any(t.is_alive() for t in e.tier._threads))

    def test_a_load_past_its_deadline_that_the_server_has(self):
        e, keys = self.engine(load_timeout=0.2), chain(2)
        eventually(lambda: [e.forget(), e.store(keys), e.load(keys)][2] == [True] * 2)
        e.forget()
        self.stand_still()
        job = e.job(keys, [0, 1])
        e.tier.submit_load(job)
        eventually(lambda: e.tier._region._busy, 120)  # it is late, and the server may yet write
        self.assertEqual(e.tier.get_finished_jobs(), [])
        self.server.process.send_signal(signal.SIGCONT)
        done = []
        eventually(lambda: done.extend(e.tier.get_finished_jobs()) or done)
        self.assertEqual([(r.job_id, r.success) for r in done], [(job.job_id, False)])
        e.blank()
        eventually(lambda: e.load(keys) == [True] * 2)

    def test_over_tcp(self):
        e, keys = self.engine(url=f"127.0.0.1:{self.server.port}"), chain(5)
        e.store(keys)
        self.assertEqual(e.load(keys), [True] * 5)


class TestToken(OnServer):
    token = True

    def test_a_wrong_token_is_a_miss_and_a_right_one_is_not(self):
        keys = chain(2)
        with self.assertLogs("skepkv.vllm", "WARNING") as logs:
            e = self.engine(token="another token of the tests")
            e.store(keys)
            self.assertEqual(e.load(keys), [False] * 2)
        self.assertEqual(sum("denied" in line for line in logs.output), 1, "said once")
        path = os.path.join(self.server.dir, "token")
        with open(path, "w", encoding="utf-8") as f:
            f.write(TOKEN + "\n")
        e = self.engine(token_file=path)
        e.store(keys)
        self.assertEqual(e.load(keys), [True] * 2)


if __name__ == "__main__":
    unittest.main()
