"""Blocks in pieces, of every kind of store, and pages of an engine that lie in pieces."""

import ctypes
import os
import shutil
import tempfile
import time
import unittest
from unittest import mock

import skepkv
import test_store
from skepkv import _pages
from skepkv._library import library
from serving import Cluster, Server, cut, laid
from test_store import block, key


class Calls:
    """What every store does: self.store is one."""

    def test_blocks_in_pieces(self):
        space, lengths = self.store.namespace("pieces"), (1, 40000, 25535 - 1, 1)
        whole, n = [block(i) for i in range(3)], 64 << 10
        memory = [bytearray(laid(b, *lengths)) for b in whole]
        keys = [key(i) for i in range(3)]
        put = space.put(keys, [cut(memory[0], *lengths), tuple(cut(memory[1], *lengths)), whole[2]])
        self.assertEqual(put.outcomes, b"\1" * 3)
        into = [bytearray(n) for _ in keys]
        self.assertTrue(space.restore(keys, into))
        self.assertEqual(into, whole)
        space.delete(keys[1:2])
        memory = [bytearray(n + 3) for _ in keys]
        restored = space.restore(keys, [cut(m, *lengths) for m in memory])
        self.assertEqual(restored.landed, [True, False, True])
        self.assertEqual([bytes(m) for m in memory], [laid(whole[0], *lengths), bytes(n + 3), laid(whole[2], *lengths)])
        self.assertEqual(space.restore(keys[:1], [cut(memory[0], 5, 6)]).codes, b"\x11", "another length")
        memory[0].extend(b"x")  # nobody holds it
        with self.assertRaisesRegex(ValueError, "block 1 has no pieces"):
            space.put(keys[:2], [whole[0], []])
        with self.assertRaisesRegex(BufferError, "block 1: .*writable"):
            space.restore(keys[:2], [cut(memory[0], 5, 6), [bytearray(3), b"x"]])

    def test_pieces_are_copied_by_the_library(self):
        """By a library before version 10 they are not."""
        space, whole, memory = self.store.namespace("pieces"), block(0, 9), bytearray(10)
        for version, copied in ((library().version, 0), (9, 2)):
            with (
                mock.patch.object(library(), "version", version),
                mock.patch("skepkv._store.Copies", wraps=skepkv._store.Copies) as copies,
            ):
                self.assertTrue(space.put([key(version)], [cut(bytearray(laid(whole, 4, 5)), 4, 5)]))
                self.assertTrue(space.restore([key(version)], [cut(memory, 4, 5)]))
                self.assertEqual((memory, copies.call_count), (laid(whole, 4, 5), copied))

    def test_a_chain_in_pieces_goes_on(self):
        space, whole = self.store.namespace("chain in pieces", chained=True), [block(i, 9000) for i in range(3)]
        keys, memory = [key(i) for i in range(3)], [bytearray(laid(b, 4000, 5000)) for b in whole]
        self.assertTrue(space.put(keys[:2], [cut(m, 4000, 5000) for m in memory[:2]]))
        self.assertTrue(space.put(keys[2:], [cut(memory[2], 4000, 5000)], keys[1], 2, accepted=True))
        into = bytearray(9001)
        self.assertTrue(space.restore(keys, [None, None, cut(into, 4000, 5000)], timeout=60))
        self.assertEqual(into, memory[2])


class OnUnixSocket(Calls, test_store.OnServer):
    def setUp(self):
        super().setUp()
        self.store = self.connect()


class OnTCP(Calls, test_store.OnServer):
    def setUp(self):
        super().setUp()
        self.store = skepkv.connect(f"127.0.0.1:{self.server.port}")
        self.addCleanup(self.store.close)


class OverTLS(Calls, unittest.TestCase):
    def setUp(self):
        server = Server(tls=True)
        self.addCleanup(server.stop)
        self.store = skepkv.connect(f"127.0.0.1:{server.port}", tls=server.cert)
        self.addCleanup(self.store.close)


class OnACluster(Calls, unittest.TestCase):
    def setUp(self):
        cluster = Cluster()
        self.addCleanup(cluster.stop)
        self.store = skepkv.connect(cluster.url, shared_bytes=16 << 20)
        self.addCleanup(self.store.close)


class Embedded(Calls, unittest.TestCase):
    def setUp(self):
        directory = tempfile.mkdtemp(prefix="skepkv")
        self.addCleanup(shutil.rmtree, directory, True)
        self.store = skepkv.embed(directory, devices=1, capacity_bytes=256 << 20)
        self.addCleanup(self.store.close)

    def test_who_waits_is_told_that_the_store_is_closed(self):
        space, under = self.store.namespace("pieces"), skepkv._queue.waited

        def closed_meanwhile(store, submit):
            return under(store, lambda queue: submit(queue) and self.store.close())

        with mock.patch("skepkv._queue.waited", closed_meanwhile), self.assertRaises(skepkv.SkepError) as e:
            space.restore([key(0)], [cut(bytearray(10), 4, 5)])
        self.assertEqual(e.exception.code, skepkv.errors.CLOSED)


class Pages(unittest.TestCase):
    """An engine's pages, at addresses."""

    def setUp(self):
        server = Server()
        self.addCleanup(server.stop)
        self.url = server.url

    def client(self, shared=16 << 20):
        client = _pages.Client(self.url, "", "", "", shared)
        self.addCleanup(client.close)
        return client

    def pages(self, memory, *pieces):
        """Pages in a buffer, each with its pieces between bytes that are not its own."""
        at = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + 1
        out = []
        for _ in range(4):
            page = []
            for n in pieces:
                page.append((at, n))
                at += n + 1
            out.append(page)
        return out

    def there_and_back(self, client, chained, *pieces, gate=None):
        """Three of four pages are stored, behind two others where they are a chain. What does not come is as it was."""
        how = {"gate": gate} if gate else {}
        where = _pages.Where(f"pages/{os.urandom(8).hex()}", "m", chained, 1, sum(pieces))
        names, until = [key(i) for i in range(6)], time.monotonic() + 60
        n = 4 * (sum(pieces) + len(pieces)) + 1
        source, into, blank = bytearray(block(7, n)), bytearray(b"\xee" * n), bytearray(b"\xee" * n)
        pages = self.pages(source, *pieces)
        before = names[:2] if chained else []
        if before:
            client.save(where, before, pages[:2], until, **how)
        saved = client.save(where, names[2:5], pages[:3], until, before, **how)
        self.assertEqual(saved, ([True] * 3, 0, ""))
        self.assertEqual(client.save(where, names[2:5], pages[:3], until, before, **how), ([True] * 3, 3, ""))
        landed = client.load(where, names[2:], self.pages(into, *pieces), until, prefix=before, **how)
        self.assertEqual(landed, [True] * 3 + [False])
        base = ctypes.addressof(ctypes.c_char.from_buffer(source))
        for at, length in (piece for page in pages[:3] for piece in page):
            blank[at - base : at - base + length] = source[at - base : at - base + length]
        self.assertEqual(into, blank)

    def test_the_library_has_pages_as_they_lie(self):
        for shared in (16 << 20, 0):
            for chained in (False, True):
                client = self.client(shared)
                with mock.patch.object(client, "_stage", side_effect=AssertionError("they are copied before")):
                    self.there_and_back(client, chained, 4096, 1000, 3096)
                    if chained:
                        with mock.patch.object(_pages, "MOST", 4):  # the two before them do not count
                            self.there_and_back(client, chained, 4096, 1000, 3095)

    def test_pages_that_are_copied_before(self):
        """Of one piece, which the library would write to at once; of an engine that takes its memory back; and of a
        library before version 10."""
        for shared in (16 << 20, 0):
            client = self.client(shared)
            for chained in (False, True):
                with mock.patch.object(client, "_stage", wraps=client._stage) as stage:
                    self.there_and_back(client, chained, 8192)
                    self.there_and_back(client, chained, 4096, 4095, gate=_pages.Gate())
                    with mock.patch.object(library(), "version", 9):
                        self.there_and_back(client, chained, 4096, 4094)
                    self.assertGreaterEqual(stage.call_count, 6)
                    before = stage.call_count  # one of version 10 counts the two before them, too
                    with mock.patch.object(library(), "version", 10), mock.patch.object(_pages, "MOST", 4):
                        self.there_and_back(client, chained, 4096, 4093)
                    self.assertEqual(stage.call_count > before, chained)

    def test_pages_of_another_length(self):
        client, until = self.client(), time.monotonic() + 60
        memory = bytearray(b"\xee" * 1000)
        pages = self.pages(memory, 30, 70)
        where = _pages.Where("any", "m", False, 1, 0)
        self.assertEqual(client.save(where, [key(0)], pages[:1], until)[0], [True])
        memory[:] = b"\xee" * 1000
        longer = [[(at, n + 1) for at, n in pages[0]]]
        self.assertEqual(client.load(where, [key(0)], longer, until), [False])
        self.assertEqual(memory, b"\xee" * 1000)


if __name__ == "__main__":
    unittest.main()
