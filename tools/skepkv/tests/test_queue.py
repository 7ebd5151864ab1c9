"""Queues: calls that are submitted and drained."""

import contextlib
import os
import selectors
import threading
import unittest
from unittest import mock

import skepkv
from serving import Server, cut, eventually, laid, shut
from skepkv import _store
from skepkv._library import Held, library
from skepkv._queue import _Call
from test_store import MISSING, block, key


class Queues(unittest.TestCase):
    def setUp(self):
        self.server = Server()
        self.addCleanup(self.server.stop)
        self.store = skepkv.connect(self.server.url)
        self.addCleanup(shut, self.store)
        self.space = self.store.namespace("n")
        self.queue, self.library = self.store.queue(4), library()
        self.addCleanup(self.queue.close)

    def wait(self, *tags):
        """What became of calls, as an engine's loop waits for them."""
        done = {}
        with selectors.DefaultSelector() as s:
            s.register(self.queue, selectors.EVENT_READ)
            while set(tags) - set(done):
                self.assertTrue(s.select(60), "nothing came")
                done.update((d.tag, d) for d in self.queue.drain())
            self.assertEqual(s.select(0), [], "all is drained")
        return [done[tag] for tag in tags]

    def test_blocks_there_and_back(self):
        keys, data = [key(i) for i in range(4)], [block(i, 1 + i * 9000) for i in range(4)]
        put = [self.queue.put(self.space, [k], [b]) for k, b in zip(keys, data)]
        self.assertIsNone(self.queue.exists(self.space, keys), "it is full until some are drained")
        self.assertEqual([(d.code, d.results, d.blocks) for d in self.wait(*put)], [(0, b"\1", 1)] * 4)
        into = [bytearray(len(b)) for b in [*data, b"x"]]
        restored, there, found = self.wait(
            self.queue.restore(self.space, [*keys, key(9)], into),
            self.queue.exists(self.space, [key(9), *keys]),
            self.queue.lookup_each(self.space, [key(9), *keys], lease=5),
        )
        self.assertEqual((restored.blocks, restored.results[:4]), (4, bytes(4)))
        self.assertIn(restored.results[4], MISSING)
        self.assertEqual(into[:4], data)
        into[0].extend(b"x")  # nobody holds it
        self.assertEqual([t != 0 for t in there.results], [False, True, True, True, True])
        self.assertEqual((found.results, bool(found.lease)), (b"\0\1\1\1\1", True))
        found.lease.release()
        (gone,) = self.wait(self.queue.delete(self.space, [keys[0], key(9)]))
        self.assertEqual(gone.blocks, 1)

    def test_blocks_in_pieces(self):
        keys, lengths, n = [key(i) for i in range(3)], (4096, 1, 9000), 13097
        data = [block(i, n) for i in range(3)]
        memory = [bytearray(laid(b, *lengths)) for b in data]
        (put,) = self.wait(self.queue.put(self.space, keys, [cut(m, *lengths) for m in memory]))
        self.assertEqual((put.code, put.results), (0, b"\1" * 3))
        memory[0].extend(b"x")  # nobody holds it
        self.wait(self.queue.delete(self.space, keys[1:2]))
        memory, whole, other = [bytearray(n + 2) for _ in keys], bytearray(n), (5, 6)
        some, one, wrong = self.wait(
            self.queue.restore(self.space, keys, [cut(m, *lengths) for m in memory]),
            self.queue.restore(self.space, keys[:1], [whole]),
            self.queue.restore(self.space, keys[:1], [cut(bytearray(12), *other)]),
        )
        self.assertEqual((some.blocks, one.blocks, wrong.results), (2, 1, b"\x11"))
        self.assertIn(some.results[1], MISSING)
        self.assertEqual([bytes(m) for m in memory], [laid(data[0], *lengths), bytes(n + 2), laid(data[2], *lengths)])
        self.assertEqual(whole, data[0])
        with self.assertRaisesRegex(ValueError, "block 0 has no pieces"):
            self.queue.restore(self.space, keys[:1], [()])
        whole, nothing = bytearray(n), [bytearray(0)]
        full, none = self.wait(
            self.queue.restore(self.space, keys[:1], [[whole, *nothing]]),
            self.queue.restore(self.space, keys[:1], [[bytearray(1)]]),
        )
        self.assertEqual((full.results, whole, none.results), (b"\0", data[0], b"\x11"))
        with self.assertRaises(skepkv.Invalid):
            self.queue.restore(self.space, keys[:1], [nothing])

    def test_buffers_are_held_until_closing_the_store_has_ended(self):
        queue, held = self.store.queue(), Held([bytearray(4)], True)
        queue._calls[1] = _Call(self.space, 1, held)
        number, self.store._number = self.store._number, 0  # another thread is closing it
        ending = threading.Thread(target=queue.close)
        ending.start()
        self.store._unsure = skepkv.NotReleased(18, "a drive may write yet")
        self.store._over.set()
        ending.join()
        self.assertIn(held, _store._kept)
        _store._kept.remove(held)
        held.release()
        self.store._number, self.store._unsure = number, None
        self.store._over.clear()

    def test_what_a_drain_has_taken_is_not_for_close(self):
        queue, into = self.store.queue(), bytearray(8)
        tag = queue.restore(self.space, [key(0)], [into])
        held = queue._calls[tag].held
        with selectors.DefaultSelector() as s:
            s.register(queue, selectors.EVENT_READ)
            self.assertTrue(s.select(60), "nothing came")
        ending, call = threading.Thread(target=queue.close), self.library.call

        def drain(name, *args):
            call(name, *args)
            if name == "drain":  # another thread closes the queue before the calls are answered
                args[1][0].code = skepkv.errors.NOT_RELEASED
                ending.start()
                ending.join(0.2)  # it waits

        with mock.patch.object(self.library, "call", drain):
            (done,) = queue.drain()
            ending.join()
        self.assertEqual((done.tag, done.code), (tag, skepkv.errors.NOT_RELEASED))
        self.assertIn(held, self.store._kept)
        with self.assertRaises(BufferError):
            into.extend(b"x")  # a drive may write there yet
        self.store._kept.remove(held)
        held.release()

    def test_a_call_that_is_submitted_while_the_queue_is_closed_gives_its_buffers_back(self):
        store = skepkv.connect(self.server.url)
        queue, space, into = store.queue(), store.namespace("n"), bytearray(8)
        ending = threading.Thread(target=queue.close)

        class Calls(dict):
            def __setitem__(self, tag, call):
                ending.start()  # another thread closes the queue
                ending.join(0.2)  # it waits
                super().__setitem__(tag, call)

        queue._calls = Calls()
        with contextlib.suppress(skepkv.SkepError):
            queue.restore(space, [key(0)], [into])
        ending.join()
        if shut(store):
            into.extend(b"x")  # nobody holds it

    def test_a_call_that_is_refused_gives_its_buffers_back_though_the_queue_is_closed_again(self):
        queue, into, call = self.store.queue(), bytearray(8), self.library.call
        queue.close()

        def submit(name, *args):
            if name == "submit":
                queue.close()  # another thread
            call(name, *args)

        with mock.patch.object(self.library, "call", submit), self.assertRaises(skepkv.Invalid):
            queue.restore(self.space, [key(0)], [into])
        into.extend(b"x")  # nobody holds it

    def test_a_chain_in_pieces_goes_on_behind_what_is_not_asked_for(self):
        chain, keys = self.store.namespace("chain", chained=True), [key(i) for i in range(3)]
        self.wait(self.queue.put(chain, keys, [block(i, 9000) for i in range(3)]))
        memory = bytearray(9001)
        (done,) = self.wait(self.queue.restore(chain, keys[:2], [None, cut(memory, 4000, 5000)]))
        self.assertEqual((done.results, memory), (bytes(2), laid(block(1, 9000), 4000, 5000)))

    def test_what_is_not_asked_for_does_not_count(self):
        """A call has at most 65,536 blocks."""
        chain, most = self.store.namespace("chain", chained=True), 1 << 16
        self.wait(self.queue.put(chain, [key(0)], [block(0, 9000)]))
        memory, names = bytearray(9001), skepkv.key(b"another") * most
        (done,) = self.wait(self.queue.restore(chain, names + key(0), [*[None] * most, cut(memory, 4000, 5000)]))
        self.assertEqual((done.results, memory), (bytes(most + 1), laid(block(0, 9000), 4000, 5000)))
        place = [bytearray(1), bytearray(1)]
        with self.assertRaisesRegex(skepkv.Invalid, "blocks is 65537, must be at most 65536"):
            self.queue.restore(chain, names + key(0), [place] * (most + 1))

    def test_a_library_before_version_10(self):
        """Operations are as long as that library has them, and blocks in pieces are refused."""
        sizes, call = [], self.library.call

        def noting(name, *args):
            if name == "submit":
                sizes.append(args[1]._obj.size)
            call(name, *args)

        with mock.patch.object(self.library, "version", 9), mock.patch.object(self.library, "call", noting):
            (put,) = self.wait(self.queue.put(self.space, [key(0)], [block(0)]))
            self.assertEqual((put.results, sizes), (b"\1", [120]))
            with self.assertRaises(skepkv.SkepError) as e:
                self.queue.put(self.space, [key(1)], [cut(bytearray(3), 1, 1)])
        self.assertEqual(e.exception.code, skepkv.errors.UNSUPPORTED)
        self.assertEqual((len(sizes), self.queue._calls), (1, {}))

    def test_a_chain_and_salts(self):
        chain = self.store.namespace("chain", chained=True, lazy=True).salted(b"salt")
        keys = [key(i) for i in range(3)]
        (first,) = self.wait(self.queue.put(chain, keys[:1], [block(0)]))
        self.assertEqual((first.code, first.blocks), (0, 1))
        self.wait(self.queue.put(chain, keys[1:], [block(1), block(2)], parent=keys[0], depth=1, accepted=True))
        (found,) = self.wait(self.queue.lookup(chain, keys))
        self.assertEqual((found.blocks, bool(found.lease)), (3, False))

    def test_leases_and_what_is_known_of_blocks(self):
        keys = [key(i) for i in range(2)]
        self.wait(self.queue.put(self.space, keys[:1], [block(0, 9000)]))
        want, found, known, flushed = self.wait(
            self.queue.want(self.space, keys),
            self.queue.lookup(self.space, keys, lease=5),
            self.queue.hint(self.space, keys, next_use=60),
            self.queue.flush(),
        )
        self.assertEqual((want.results, known.blocks, flushed.code), (b"\xff\xff", 1, 0))
        self.assertEqual((found.blocks, found.tokens, found.bytes), (1, 1, 9000))
        self.assertEqual([d.code for d in self.wait(self.queue.renew(found.lease, 9))], [0])
        self.assertEqual([d.code for d in self.wait(self.queue.renew(found.lease))], [0])
        number = found.lease.number
        self.assertEqual([d.code for d in self.wait(self.queue.release(found.lease))], [0])
        self.assertFalse(found.lease)
        found.lease.number = number
        self.assertEqual([d.code for d in self.wait(self.queue.renew(found.lease))], [skepkv.errors.LEASE_EXPIRED])

    def test_what_is_wrong_is_refused_at_once(self):
        with self.assertRaises(skepkv.Invalid):
            self.store.queue(0)
        with self.assertRaises(skepkv.Invalid):
            self.queue.put(self.space, [key(0)], [b""])
        with self.assertRaisesRegex(ValueError, "2 keys and 1 blocks"):
            self.queue.restore(self.space, [key(0)] * 2, [bytearray(1)])
        with self.assertRaisesRegex(BufferError, "writable"):
            self.queue.restore(self.space, [key(0)], [b"x"])
        self.assertEqual(self.queue._calls, {})

    def test_a_queue_outlives_its_server(self):
        self.server.kill()
        (done,) = self.wait(self.queue.exists(self.space, [key(0)], timeout=20))
        self.assertEqual(done.code, skepkv.errors.UNAVAILABLE)
        self.assertIn("unavailable", done.text)
        self.server.start()

        def stored():
            try:
                return self.wait(self.queue.put(self.space, [key(0)], [block(0)]))[0].blocks == 1
            except skepkv.SkepError:  # the namespace is opened anew
                return False

        eventually(stored)

    def test_a_closed_store_ends_its_queues(self):
        store = skepkv.connect(self.server.url)
        queue, into = store.queue(), bytearray(64 << 10)
        queue.restore(store.namespace("n"), [key(0)], [into])
        free = shut(store)
        queue.close()
        if free:
            into.extend(b"x")  # nobody holds it
        with self.assertRaises(skepkv.Invalid):
            queue.drain()

    def test_a_forked_process_is_refused(self):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                try:
                    self.queue.exists(self.space, [key(0)])
                except skepkv.Forked:
                    self.queue.close()
                    code = 0
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(self.wait(self.queue.exists(self.space, [key(0)]))[0].results, b"\0")


if __name__ == "__main__":
    unittest.main()
