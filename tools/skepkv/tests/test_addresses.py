"""Clients that are given several addresses, or one of a cluster's."""

import unittest

import skepkv
import test_store
from skepkv._library import socket_of
from serving import Cluster, Server, eventually
from test_store import block, key


class SeveralAddresses(unittest.TestCase):
    """A client that is given several nodes of a cluster, and its first is away when it starts."""

    def test_the_first_node_is_away_at_first(self):
        cluster = Cluster()
        self.addCleanup(cluster.stop)
        cluster.kill("a")
        n = 24
        keys, data = [key(i) for i in range(n)], [block(i) for i in range(n)]
        with skepkv.connect(f"{cluster.url}, unix:{cluster.dir}/b", shared_bytes=16 << 20) as store:
            space = store.namespace("chain", chained=True)

            def whole():
                into = [bytearray(64 << 10) for _ in range(n)]
                self.assertEqual(space.lookup(keys, timeout=60).blocks, n)
                self.assertTrue(space.restore(keys, into, timeout=60))
                self.assertEqual(into, data)

            space.put(keys, data)
            whole()
            self.assertIsNotNone(store.direct(), "memory is shared with nobody yet")
            cluster.start("a")
            eventually(lambda: store.direct() is None)
            whole()
            eventually(lambda: cluster.repair() == 0)
            cluster.kill("b")
            whole()
        with skepkv.connect(f"127.0.0.1:1,unix:{cluster.dir}/c") as store:
            self.assertEqual(store.namespace("chain", chained=True).lookup(keys, timeout=60).blocks, n)

    def test_nobody_is_there_at_first(self):
        server = Server()
        self.addCleanup(server.stop)
        server.stop_and_keep()
        with self.assertRaises(skepkv.SkepError) as e:
            skepkv.connect(f"{server.url},127.0.0.1:1")
        self.assertEqual(e.exception.code, skepkv.errors.UNAVAILABLE)
        cluster = Cluster()
        self.addCleanup(cluster.stop)
        cluster.kill("a")
        cluster.kill("b")
        with skepkv.connect(f"unix:{cluster.dir}/a,unix:{cluster.dir}/b", lazy=True) as store:
            space = store.namespace("n", lazy=True)
            with self.assertRaises(skepkv.SkepError) as e:
                space.put([key(0)], [block(0)])
            self.assertEqual(e.exception.code, skepkv.errors.UNAVAILABLE)
            cluster.start("b")

            def stored():
                try:
                    return space.put([key(i) for i in range(8)], [block(i) for i in range(8)])
                except skepkv.SkepError as e:
                    self.assertEqual(e.code, skepkv.errors.UNAVAILABLE)

            eventually(lambda: stored() is not None)

    def test_servers_of_no_cluster_are_several_stores(self):
        servers = [Server(), Server()]
        for s in servers:
            self.addCleanup(s.stop)
        with self.assertRaisesRegex(skepkv.SkepError, "the address of one server alone") as e:
            skepkv.connect(",".join(s.url for s in servers))
        self.assertEqual(e.exception.code, skepkv.errors.UNSUPPORTED)

    def test_lists_that_are_none(self):
        for url in ("a:1,", ",a:1", "a:1,,b:1", "a:1,a:1", "a:1,b", ",".join(f"a:{i + 1}" for i in range(65))):
            with self.assertRaisesRegex(skepkv.Invalid, "addr is "):
                skepkv.connect(url, lazy=True)
        for url, path in (("a:1", ""), ("unix:/s", "/s"), ("a:1, unix:s,unix:t", "s"), ("a:1,b:1", "")):
            self.assertEqual(socket_of(url), path)


class OnACluster(test_store.Calls, unittest.TestCase):
    """One node's address is enough, and memory is shared with that node."""

    def setUp(self):
        self.cluster = Cluster()
        self.addCleanup(self.cluster.stop)
        self.store = skepkv.connect(self.cluster.url, shared_bytes=16 << 20)
        self.addCleanup(self.store.close)

    def test_a_chain_outlives_a_node(self):
        space = self.store.namespace("chain", chained=True)
        n = 24
        keys, data = [key(i) for i in range(n)], [block(i) for i in range(n)]
        self.assertTrue(space.put(keys, data))
        for lost in ("", "b"):
            if lost:
                self.cluster.kill(lost)
            self.assertEqual(space.lookup(keys, timeout=60).blocks, n)
            into = [bytearray(64 << 10) for _ in range(n)]
            self.assertTrue(space.restore(keys, into, timeout=60))
            self.assertEqual(into, data)

    def test_blocks_of_several_lengths_in_a_chain(self):
        space = self.store.namespace("lengths", chained=True)
        n = 30
        keys, data = [key(i) for i in range(n)], [block(i, 32 * (1, 40, 1000, 9000)[i % 4]) for i in range(n)]
        self.assertTrue(space.put(keys, data))
        for at, to in ((0, n), (5, 23), (17, 18)):
            into = [bytearray(len(b)) for b in data[at:to]]
            self.assertTrue(space.restore(keys[at:to], into))
            self.assertEqual(into, data[at:to])

    def test_memory_of_one_node(self):
        self.assertIsNone(self.store.direct())
        space = self.store.namespace("n")
        keys = [key(i) for i in range(12)]
        with self.store.alloc(12 * (64 << 10)) as memory:
            places = memory.blocks(12)
            for i, place in enumerate(places):
                place[:] = block(i)
            self.assertTrue(space.put(keys, places))
            memory.view[:] = bytes(len(memory))
            self.assertTrue(space.restore(keys, places))
            self.assertEqual([bytes(p) for p in places], [block(i) for i in range(12)])


if __name__ == "__main__":
    unittest.main()
