"""The tier under vLLM's own classes: chunks there and back, what tells caches apart, configurations, lookups."""

import hashlib
import json
import os
import re
import signal
import threading
import unittest

import skepkv
from serving import Cluster, Server, differing, eventually
from vllm_engine import Engine, OnServer, chain, missing, straight, value

try:
    import numpy as np
    from vllm.utils.hashing import sha256, sha256_cbor
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.kv_offload.base import LookupResult, Medium, ReqContext, make_offload_key
    from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec
except (ImportError, OSError):
    pass  # vllm_engine.missing says so


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

    def test_a_node_of_a_cluster_is_lost(self):
        cluster = Cluster()
        self.addCleanup(cluster.stop)
        e, keys = self.engine(url=cluster.url, chunks=48), chain(48)
        e.store(keys)
        cluster.kill("b")
        self.assertEqual(e.load(keys), [True] * 48)

    def test_copies_are_on_other_drives(self):
        server, keys = Server(capacity="1GiB", devices=2), chain(16)
        self.addCleanup(server.stop)
        two = self.engine(url=server.url, copies=2)
        two.store(keys)
        self.assertEqual(two.load(keys), [True] * 16)
        self.assertEqual(self.engine(url=server.url).load(keys), [False] * 16, "another number is another cache")
        server.stop_and_keep()
        os.remove(os.path.join(server.dir, "store", "device-1"))
        server.start()
        self.assertEqual(self.engine(url=server.url, copies=2).load(keys), [True] * 16)

    def test_a_namespace_that_is_another(self):
        e, keys = self.engine(), chain(2)
        where = e.tier._space(0)
        with skepkv.connect(self.server.url) as store:
            space = store.namespace(where.name, model=where.model, bytes=4096, chained=True, each=True)
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
            ({"copies": 0}, "copies is 0, must be 1 to 4"),
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

        from skepkv._lookups import Lookups

        slow, patient = Lookups(ask, 0.05), Lookups(ask, 600)
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


if __name__ == "__main__":
    unittest.main()
