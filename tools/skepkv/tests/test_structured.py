"""Blocks that have parts, and those of a shape, into an engine's paged cache."""

import shutil
import tempfile
import unittest
from unittest import mock

import skepkv
import test_store
from serving import Cluster, cut, laid
from skepkv import aio
from skepkv._library import library
from test_store import MISSING, block, key


def pages(data, shape, tokens, n, order):
    """What a cache of n pages holds where block i's tokens are in its slots i * shape.tokens and so on: of each plane,
    in the order of a block's, all bytes."""
    e = shape.dim * 2
    planes, heads = shape.layers * (1 if shape.latent else 2), 1 if shape.latent else shape.heads
    out = [bytearray(b"\xee" * (n * tokens * heads * e)) for _ in range(planes)]
    for b, whole in enumerate(data):
        for p in range(planes):
            for h in range(heads):
                for t in range(shape.tokens):
                    row = t * heads + h if shape.order == "nhd" else h * shape.tokens + t
                    at = (p * heads * shape.tokens + row) * e
                    page, within = divmod(b * shape.tokens + t, tokens)
                    row = within * heads + h if order == "nhd" else h * tokens + within
                    to = (page * tokens * heads + row) * e
                    out[p][to : to + e] = whole[at : at + e]
    return out


class Layers:
    """What every store does, one of a cluster's too: self.store is one."""

    def space(self, **o):
        return self.store.namespace("structured", chained=True, shape=skepkv.Shape(2, 3, 8, 4, **o))

    def memory(self, n):
        return memoryview(bytearray(n))

    def test_some_layers(self):
        """Of each block they come to where they are in it; what lies around them stays. Layers of whole pages are read
        to their place."""
        for shape in (skepkv.Shape(4, 3, 8, 4), skepkv.Shape(4, 4, 32, 16)):
            space, n, each = self.store.namespace(str(shape), chained=True, shape=shape), shape.bytes, shape.bytes // 4
            keys, data = [key(i) for i in range(3)], [block(i, n) for i in range(2)]
            self.assertTrue(space.put(keys[:2], data))
            for first, last in ((0, 1), (1, 3), (3, 4), (0, 4)):
                some, blank = slice(first * each, last * each), b"\xee" * n
                want = [blank[: some.start] + b[some] + blank[some.stop :] for b in data]
                memory = self.memory(3 * n)
                memory[:] = 3 * blank
                into = [memory[i * n : (i + 1) * n] for i in range(3)]
                restored = space.restore(keys, into, layers=(first, last), timeout=60)
                self.assertEqual(restored.landed, [True, True, False])
                self.assertEqual(into[:2], want)
                pieces = bytearray(blank + b"\xee")
                cuts = cut(pieces, 700, n - 700)
                self.assertTrue(space.restore(keys[1:2], [cuts], layers=(first, last)))
                self.assertEqual(b"".join(cuts), want[1])

    def test_layers_that_are_none(self):
        space, into = self.space(), [bytearray(768)]
        space.put([key(0)], [block(0, 768)])
        for layers in ((0, 0), (1, 1), (2, 1), (-1, 2), (0, 1 << 32)):
            with self.assertRaisesRegex(ValueError, f"layers are {layers[0]} to {layers[1]}, must be one or more"):
                space.restore([key(0)], into, layers=layers)
        for layers in ((1, 3), (2, 3)):
            with self.assertRaisesRegex(skepkv.Invalid, f"layers is {layers[0]} to {layers[1]}, must be in 0 to 2"):
                space.restore([key(0)], into, layers=layers)
        with self.assertRaisesRegex(skepkv.Invalid, "layers is 0 to 1, must be all, where"):
            self.store.namespace("opaque").restore([key(0)], into, layers=(0, 1))
        with self.assertRaisesRegex(skepkv.Invalid, "layers is 0 to 1, must be all, where"):
            space.restore([key(0)], into, part="state", layers=(0, 1))
        self.assertEqual(space.restore([key(0)], [bytearray(384)], layers=(0, 1)).codes, b"\x11", "not a whole block")
        for version in (9, 10):
            with mock.patch.object(library(), "version", version), self.assertRaises(skepkv.SkepError) as e:
                space.restore([key(0)], into, layers=(0, 1))
            self.assertEqual(e.exception.code, skepkv.errors.UNSUPPORTED)
        self.assertEqual(into, [bytes(768)])


class Calls(Layers):
    def test_blocks_into_a_paged_cache(self):
        kinds = ("hnd", "nhd", False), ("nhd", "nhd", False), ("hnd", "hnd", False), ("hnd", "hnd", True)
        for i, (order, of, latent) in enumerate(kinds):
            shape = skepkv.Shape(2, 0 if latent else 3, 8, 4, order=order, latent=latent)
            self.assertEqual(shape.bytes, 2 * 4 * 8 * 2 * (1 if latent else 6))
            space = self.store.namespace(f"shape {i}", chained=True, shape=shape)
            keys, data = [key(k) for k in range(3)], [block(k, shape.bytes) for k in range(3)]
            self.assertTrue(space.put(keys, data))
            planes = pages([], shape, 8, 2, of)
            k, v = (planes, None) if latent else (planes[::2], planes[1::2])
            cache = skepkv.Paged(k, v, page_tokens=8, order=of)
            self.assertEqual(space.restore_paged(keys, cache, range(12), timeout=60), 3)
            self.assertEqual(planes, pages(data, shape, 8, 2, of))
            planes[:] = pages([], shape, 8, 2, of)
            k, v = (planes, None) if latent else (planes[::2], planes[1::2])
            cache = skepkv.Paged(k, v, page_tokens=8, order=of)
            slots = [*range(4), *[-1] * 4]
            self.assertEqual(space.restore_paged(keys, cache, slots, first=1), 2, "the last one goes nowhere")
            self.assertEqual(planes, pages(data[1:2], shape, 8, 2, of))
            planes[0].extend(b"x")  # nobody holds it

    def test_some_layers_of_a_paged_cache(self):
        shape = skepkv.Shape(3, 2, 4, 4)
        space = self.store.namespace("some layers", chained=True, shape=shape)
        keys, data = [key(k) for k in range(2)], [block(k, shape.bytes) for k in range(2)]
        self.assertTrue(space.put(keys, data))
        for first, last in ((0, 1), (1, 3), (0, 3)):
            planes, want = pages([], shape, 8, 1, "hnd"), pages([], shape, 8, 1, "hnd")
            want[2 * first : 2 * last] = pages(data, shape, 8, 1, "hnd")[2 * first : 2 * last]
            cache = skepkv.Paged(planes[::2], planes[1::2], page_tokens=8)
            self.assertEqual(space.restore_paged(keys, cache, range(8), layers=(first, last)), 2)
            self.assertEqual(planes, want)
        with self.assertRaisesRegex(ValueError, "layers are 2 to 2, must be one or more"):
            space.restore_paged(keys, cache, range(8), layers=(2, 2))
        with self.assertRaisesRegex(skepkv.Invalid, "layers is 2 to 4, must be in 0 to 3"):
            space.restore_paged(keys, cache, range(8), layers=(2, 4))
        with mock.patch.object(library(), "version", 11), self.assertRaises(skepkv.SkepError) as e:
            space.restore_paged(keys, cache, range(8), layers=(0, 1))
        self.assertEqual(e.exception.code, skepkv.errors.UNSUPPORTED)

    def test_a_cache_that_does_not_fit(self):
        space, keys = self.space(), [key(0), key(1)]
        space.put(keys, [block(i, 768) for i in range(2)])
        planes = [bytearray(2 * 384) for _ in range(4)]
        fits = skepkv.Paged(planes[:2], planes[2:], page_tokens=8)
        self.assertEqual(space.restore_paged([*keys, key(9)], fits, [-1] * 12), 2)
        for cache, why in (
            (skepkv.Paged(planes[:1], planes[2:3], page_tokens=8), "planes of layers"),
            (skepkv.Paged(planes[:2], None, page_tokens=8), "planes of layers"),
            (skepkv.Paged(planes[:2], planes[2:], page_tokens=0), "page"),
        ):
            with self.assertRaisesRegex(skepkv.Invalid, why):
                space.restore_paged(keys, cache, range(8))
        with self.assertRaisesRegex(skepkv.Invalid, "slot"):
            space.restore_paged(keys, fits, [*range(7), 16])
        for do, why in (
            (lambda: space.restore_paged(keys, fits, range(9)), "slots are 9, must be 8"),
            (lambda: space.restore_paged(keys, fits, [], first=2), "blocks are 2 to 2, must be in 0 to 2"),
            (lambda: skepkv.Paged(planes[:2], planes[2:3], page_tokens=8), "planes of V are 1"),
            (lambda: skepkv.Paged([], None, page_tokens=8), "planes of V are 0"),
            (lambda: skepkv.Paged(planes, None, page_tokens=8, order="x"), "order is 'x', must be one of hnd, nhd"),
            (lambda: skepkv.Shape(2, 3, 8, 4, element="f8").bytes, "element is 'f8'"),
            (lambda: self.store.namespace("other", shape=skepkv.Shape(2, 3, 8, 4), bytes=9), "bytes are 1 and 9"),
            (lambda: self.store.namespace("opaque").restore_paged(keys, fits, range(8)), "no shape"),
        ):
            with self.assertRaisesRegex(ValueError, why):
                do()
        uneven = skepkv.Paged([planes[0], bytearray(5)], planes[2:], page_tokens=8)
        with self.assertRaisesRegex(ValueError, r"planes have \[5, 768\] bytes, must have one length"):
            space.restore_paged(keys, uneven, range(8))
        with self.assertRaisesRegex(skepkv.Invalid, "layers"):
            self.store.namespace("none", shape=skepkv.Shape(0, 3, 8, 4))
        for p in planes:
            p.extend(b"x")  # nobody holds it

    def test_blocks_of_parts(self):
        space = self.space()
        kv, state = block(1, 768), block(2, 5000)
        with space.begin(key(0), {"state": 5000, "kv": 768}) as writer:
            writer.write("kv", 100, kv[100:])
            writer.write("state", 0, bytearray(state))
            with self.assertRaises(skepkv.Invalid):
                writer.commit()  # and it goes on
            self.assertEqual(space.lookup([key(0)]).blocks, 0)
            for part, offset in (("kv", 700), ("other", 0), ("state", 4999)):
                with self.assertRaises(skepkv.Invalid):
                    writer.write(part, offset, kv[:100])
            writer.write("kv", 0, kv[:100])
            self.assertEqual(writer.commit().outcomes, b"\1")
        into = [bytearray(768)]
        self.assertTrue(space.restore([key(0)], into))
        self.assertEqual(into, [kv])
        into, pieces = [bytearray(5000)], bytearray(5001)
        self.assertTrue(space.restore([key(0)], into, part="state"))
        self.assertTrue(space.restore([key(0)], [cut(pieces, 900, 4100)], part="state"))
        self.assertEqual((into, pieces), ([state], laid(state, 900, 4100)))
        self.assertEqual(space.restore([key(0)], [bytearray(4999)], part="state").codes, b"\x11", "another length")
        self.assertFalse(space.restore([key(0)], into, part="none"))
        with self.assertRaisesRegex(skepkv.Invalid, "name of the part"):
            space.restore([key(0)], into, part="x" * 65)
        self.assertTrue(space.put([key(1)], [block(3, 768)], key(0), 1), "behind it a chain goes on")

    def test_parts_that_are_not_committed(self):
        space = self.space()
        with space.begin(key(0), {"kv": 768}) as writer:
            writer.write("kv", 0, block(0, 768))
        with self.assertRaises(skepkv.Invalid):
            writer.commit()
        writer.abort()
        self.assertIn(space.restore([key(0)], [bytearray(768)]).codes[0], MISSING)
        for parts in ({}, {"kv": 700}, {"kv": 768, "": 8}, {str(i): 8 for i in range(17)}):
            with self.subTest(parts), self.assertRaises(skepkv.Invalid):
                space.begin(key(0), parts)
        with self.assertRaisesRegex(ValueError, "parent has 3 bytes, must be 32"):
            space.begin(key(0), {"kv": 768}, b"abc", 1)
        with self.assertRaisesRegex(ValueError, "key"):
            space.begin(b"short", {"kv": 768})
        for do in (
            lambda: space.begin(key(0), {"a\0b": 8}),
            lambda: writer.write("kv\0", 0, b"x"),
            lambda: space.restore([key(0)], [bytearray(8)], part="kv\0"),
        ):
            with self.assertRaisesRegex(ValueError, "must have no 0 byte"):
                do()

    def test_parts_by_a_queue(self):
        space, whole = self.space(), [block(i, n) for i, n in ((1, 768), (2, 90))]
        with space.begin(key(0), {"kv": 768, "state": 90}) as writer:
            writer.write("kv", 0, whole[0])
            writer.write("state", 0, whole[1])
            self.assertTrue(writer.commit(accepted=True))
        into = bytearray(90)
        done = skepkv._queue.waited(self.store, lambda q: q.restore(space, [key(0)], [into], part="state"))
        self.assertEqual((done.blocks, into), (1, whole[1]))
        with mock.patch.object(library(), "version", 9), self.store.queue(1) as queue:
            with self.assertRaisesRegex(skepkv.SkepError, "part 'state'") as e:
                queue.restore(space, [key(0)], [into], part="state")
            self.assertEqual(e.exception.code, skepkv.errors.UNSUPPORTED)
            into[:] = bytes(90)
            self.assertTrue(space.restore([key(0)], [[memoryview(into)[:9], memoryview(into)[9:]]], part="state"))
            self.assertEqual(into, whole[1])


class OnUnixSocket(Calls, test_store.OnServer):
    def setUp(self):
        super().setUp()
        self.store = self.connect()

    def memory(self, n):
        return self.store.alloc(n).view  # shared with the server


class OnACluster(Layers, unittest.TestCase):
    def setUp(self):
        cluster = Cluster()
        self.addCleanup(cluster.stop)
        self.store = skepkv.connect(cluster.url, shared_bytes=16 << 20)
        self.addCleanup(self.store.close)


class OnTCP(Calls, test_store.OnServer):
    def setUp(self):
        super().setUp()
        self.store = skepkv.connect(f"127.0.0.1:{self.server.port}")
        self.addCleanup(self.store.close)


class Embedded(Calls, unittest.TestCase):
    def setUp(self):
        directory = tempfile.mkdtemp(prefix="skepkv")
        self.addCleanup(shutil.rmtree, directory, True)
        self.store = skepkv.embed(directory, devices=1, capacity_bytes=256 << 20)
        self.addCleanup(self.store.close)


class Awaited(unittest.IsolatedAsyncioTestCase):
    async def test_parts_and_a_paged_cache(self):
        directory = tempfile.mkdtemp(prefix="skepkv")
        self.addCleanup(shutil.rmtree, directory, True)
        shape, state = skepkv.Shape(1, 1, 8, 4), block(2, 90)
        async with await aio.embed(directory, devices=1, capacity_bytes=256 << 20) as store:
            space = await store.namespace("n", chained=True, shape=shape)
            async with await space.begin(key(0), {"kv": shape.bytes, "state": 90}, timeout=60) as writer:
                await writer.write("kv", 0, block(1, shape.bytes))
                await writer.write("state", 0, state)
                self.assertTrue(await writer.commit(timeout=60))
            for version in (library().version, 9):
                into = bytearray(90)
                with mock.patch.object(library(), "version", version):
                    self.assertTrue(await space.restore([key(0)], [into], part="state"))
                self.assertEqual(into, state)
            into = [bytearray(shape.bytes)]
            self.assertTrue(await space.restore([key(0)], into, layers=(0, 1)))
            self.assertEqual(into, [block(1, shape.bytes)])
            planes = [bytearray(64), bytearray(64)]
            cache = skepkv.Paged(planes[:1], planes[1:], page_tokens=4)
            self.assertEqual(await space.restore_paged([key(0)], cache, range(4), timeout=60), 1)
            self.assertEqual(planes[0] + planes[1], block(1, shape.bytes))
            for version in (library().version, 9):
                with mock.patch.object(library(), "version", version):
                    writer = await space.begin(key(1), {"kv": shape.bytes}, key(0), 1, life=60, timeout=60)
                await writer.abort()


if __name__ == "__main__":
    unittest.main()
