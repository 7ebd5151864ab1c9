"""Connectors under the engines' own classes that are given several nodes of a cluster, whose first is away at first."""

import logging
import unittest

import test_lmcache_real as lmcache
import test_sglang_real as sglang
import vllm_engine as vllm
from serving import Cluster, eventually

N = 24


class TestAddresses(unittest.TestCase):
    def setUp(self):
        for name in ("vllm", "sglang"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self.cluster = Cluster()
        self.addCleanup(self.cluster.stop)
        self.cluster.kill("a")
        self.url = ", ".join(f"unix:{self.cluster.dir}/{name}" for name in "ab")

    def another_is_lost(self, before=lambda: None):
        """The first node comes, has its copies, and then the one that was there first is gone."""
        self.cluster.start("a")
        eventually(lambda: self.cluster.repair() == 0)
        before()
        self.cluster.kill("b")

    @unittest.skipIf(vllm.missing, vllm.missing)
    def test_vllm(self):
        vllm.kv_cache_utils.init_none_hash(vllm.sha256)
        engines = [vllm.Engine(self.url, chunks=N) for _ in range(2)]
        for e in engines:
            self.addCleanup(e.close)
        first, other = engines
        keys = vllm.chain(N)
        first.store(keys)
        self.assertEqual(other.load(keys), [True] * N)
        self.assertFalse(first.tier._region.shared, "the node behind the first socket is away")

        def shared():
            """Memory is, with that node, once a call has found it there."""
            eventually(lambda: first.load(keys) == [True] * N and first.tier._region.shared)

        self.another_is_lost(before=shared)
        eventually(lambda: first.load(keys) == [True] * N)

    @unittest.skipIf(sglang.missing, sglang.missing)
    def test_sglang(self):
        for layout in ("page_first", "layer_first"):
            e = sglang.Engine(self.url, sglang.host_pool(pages=N, layout=layout))
            self.addCleanup(e.storage.close)
            names = sglang.chain(N, layout)
            self.assertEqual(e.set(names), [True] * N)
            self.assertEqual((e.exists(names), e.get(names)), (N, [True] * N))
        self.another_is_lost()
        eventually(lambda: e.get(names) == [True] * N)

    @unittest.skipIf(lmcache.missing, lmcache.missing)
    def test_lmcache(self):
        engines = [lmcache.Engine(lmcache.adapter(form, url=self.url)) for form in ("plugin", "native_plugin")]
        for e in engines:
            self.addCleanup(e.adapter.close)
        numbers = range(N)
        self.assertTrue(engines[0].store(numbers).is_successful())
        for e in engines:
            self.assertEqual((e.lookup(numbers), e.load(numbers)), ([True] * N, [True] * N))
        self.another_is_lost()
        for e in engines:
            eventually(lambda e=e: e.load(numbers) == [True] * N)


if __name__ == "__main__":
    unittest.main()
