"""Object storage behind the drives of a store in this process, and of a server."""

import os
import shutil
import tempfile
import unittest

import skepkv
from serving import ObjectStorage, Server, eventually
from skepkv.lmcache import Connector
from test_lmcache import Waiting

N = 16
KEYS = [skepkv.key(bytes([i])) for i in range(N)]


def block(i):
    return bytes((i * 31 + k * 7 + (k >> 8)) & 255 for k in range(64 << 10))


BLOCKS = [block(i) for i in range(N)]


class BehindTheDrives(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="skepkv")
        self.addCleanup(shutil.rmtree, self.dir, True)
        self.s3 = ObjectStorage()
        self.addCleanup(self.s3.stop)

    def embed(self, name, **more):
        store = skepkv.embed(
            os.path.join(self.dir, name), devices=1, capacity_bytes=64 << 20, bucket={**self.s3.settings, **more}
        )
        self.addCleanup(store.close)
        return store

    def sent(self):
        return eventually(lambda: self.s3.size() > N * len(BLOCKS[0]))

    def outlive(self, space):
        """Of a store whose drives have nothing: any of the blocks come, and what they continue is not asked for."""
        eventually(lambda: space.lookup(KEYS).blocks == N)
        for first in (N - 2, 0):
            into = [None] * first + [bytearray(64 << 10) for _ in KEYS[first:]]
            self.assertTrue(space.restore(KEYS, into))
            self.assertEqual([bytes(b) for b in into[first:]], BLOCKS[first:])

    def test_blocks_outlive_their_drives(self):
        with self.embed("one") as store:
            self.assertTrue(store.namespace("n", chained=True).put(KEYS, BLOCKS))
            self.sent()
        for name, body in self.s3.objects.items():
            self.assertNotIn(BLOCKS[0][:64], body, f"{name} is not encrypted")
        with self.embed("another") as store:
            self.outlive(store.namespace("n", chained=True))

    def test_of_a_server(self):
        """Into shared memory and by a socket."""
        for shared in (64 << 20, 0):
            for again in (False, True):
                server = Server(bucket=self.s3.settings)
                self.addCleanup(server.stop)
                with skepkv.connect(server.url, shared_bytes=shared) as store:
                    space = store.namespace("n", chained=True)
                    if again:
                        self.outlive(space)
                    else:
                        space.put(KEYS, BLOCKS)
                        self.sent()
                server.stop()

    def test_chunks_of_an_engine_outlive_their_drives(self):
        """Of LMCache's connector, each key of which is a chain of its own."""
        names = [f"model@00000001@0@{i:064x}" for i in range(N)]
        for again in (False, True):
            server = Server(bucket=self.s3.settings)
            self.addCleanup(server.stop)
            c = Connector(server.url, get_timeout=120, set_timeout=120, exists_timeout=120)
            self.addCleanup(c.close)
            wait = Waiting(c)
            if not again:
                self.assertTrue(wait(c.submit_batch_set(names, [memoryview(b) for b in BLOCKS]))[0])
                self.sent()
                c.close()
                server.stop()
                continue
            eventually(lambda: all(wait(c.submit_batch_exists(names))[2]))
            for part in (slice(5, 6), slice(None)):
                into = [bytearray(64 << 10) for _ in names[part]]
                self.assertTrue(all(wait(c.submit_batch_get(names[part], [memoryview(b) for b in into]))[2]))
                self.assertEqual([bytes(b) for b in into], BLOCKS[part])

    def test_wrong_settings_are_named(self):
        for field, wrong in {
            "endpoint": {"endpoint": "nonesuch"},
            "bucket.key_file": {"key_file": "/nonesuch"},
            "bucket.credentials_file": {"credentials_file": "/nonesuch"},
            "bucket.namespaces": {"namespaces": ["x"]},
            "nonesuch": {"nonesuch": 1},
        }.items():
            with self.assertRaises(skepkv.Invalid) as e:
                self.embed("wrong", **wrong)
            self.assertIn(field, str(e.exception))


if __name__ == "__main__":
    unittest.main()
