"""The package against a real server and in this process."""

import mmap
import os
import signal
import subprocess
import sys
import threading
import unittest
from unittest import mock

import skepkv
from serving import TOKEN, Server, certificate, eventually, shut

MISSING = (2, 21)


def block(i, n=64 << 10):
    return bytes((i * 31 + k * 7 + (k >> 8)) & 255 for k in range(n))


def key(i):
    return skepkv.key(b"test", bytes([i]))


class Timeouts(unittest.TestCase):
    def test_a_timeout_is_of_the_whole_call(self):
        """The opening of its namespace, and both of its tries, are in it."""
        now, given = [0.0], []

        class Slow:
            """A library whose calls take 0.2 s each, of a server that does not know the namespace any more."""

            def call(self, name, *args):
                now[0] += 0.2
                given.append((name, args[2] if name == "namespace_within" else args[4]))
                if len(given) == 1 and name == "exists":
                    raise skepkv.SkepError(2, "no such namespace")

        with (
            mock.patch("skepkv._store.library", Slow),
            mock.patch("skepkv._store.time.monotonic", lambda: now[0]),
        ):
            store = mock.Mock(_number=1)
            space = skepkv.Space(store, {})
            space._number[0] = 7
            space.exists([key(0)], timeout=0.5)
            self.assertEqual(given, [("exists", 500), ("namespace_within", 300), ("exists", 100)])
            given[:] = []
            skepkv.Space(store, {}).exists([key(0)], timeout=0.1)
            self.assertEqual(given, [("namespace_within", 100), ("exists", 1)])


class OnServer(unittest.TestCase):
    token = False

    def setUp(self):
        self.server = Server(token=self.token)
        self.addCleanup(self.server.stop)

    def connect(self, **o):
        store = skepkv.connect(self.server.url, **o)
        self.addCleanup(shut, store)
        return store


class Calls:
    """What every store does, whatever it is: self.store is one."""

    def test_blocks_there_and_back(self):
        space = self.store.namespace("n")
        keys = [key(i) for i in range(5)]
        data = [block(i, 1 + i * 9000) for i in range(5)]
        self.assertTrue(space.put(keys, data))
        into = [bytearray(len(b)) for b in data]
        self.assertTrue(space.restore(keys, into))
        self.assertEqual(into, data)
        found = space.lookup(b"".join(keys), lease=5)
        self.assertEqual(found.blocks, 5)
        with found.lease as lease:
            self.assertTrue(lease)
            lease.renew(5)
        self.assertFalse(found.lease)

    def test_keys_are_found_and_leased_each_by_itself(self):
        space = self.store.namespace("n")
        space.put([key(0), key(2), key(3)], [block(0), block(2), block(3)])
        there, lease = space.lookup_each([key(i) for i in range(5)], lease=5)
        self.assertEqual(there, [True, False, True, True, False])
        self.assertTrue(lease)
        lease.renew(5)
        lease.renew()
        number = lease.number
        lease.release()
        with self.assertRaises(skepkv.SkepError) as e:
            skepkv.Lease(self.store, number).renew(5)
        self.assertEqual(e.exception.code, 10, "it is over")
        there, lease = space.lookup_each([key(3), key(4)])
        self.assertEqual((there, bool(lease)), ([True, False], False), "without a lease")
        there, lease = space.lookup_each([key(4)], lease=5)
        self.assertEqual((there, bool(lease)), ([False], False), "nothing to lease")
        self.assertEqual(space.lookup_each([], lease=5)[0], [])
        chain = self.store.namespace("chain", chained=True)
        chain.put([key(0), key(1), key(2)], [block(i) for i in range(3)])
        there, lease = chain.lookup_each([key(0), key(1), key(9), key(2)], lease=5)
        self.assertEqual((there, bool(lease)), ([True, True, False, False], True), "keys of a chain are one")
        lease.release()

    def test_a_miss_is_of_its_key(self):
        space = self.store.namespace("n")
        space.put([key(0), key(2)], [block(0), block(2)])
        self.assertEqual([t != 0 for t in space.exists([key(0), key(1), key(2)])], [True, False, True])
        into = [bytearray(64 << 10) for _ in range(3)]
        restored = space.restore([key(0), key(1), key(2)], into)
        self.assertFalse(restored)
        self.assertEqual(restored.landed, [True, False, True])
        self.assertEqual(restored.blocks, 1)
        self.assertIn(restored.codes[1], MISSING)
        self.assertEqual((into[0], into[2]), (block(0), block(2)))

    def test_each_key_is_a_chain_of_its_own(self):
        space = self.store.namespace("each", chained=True, each=True)
        keys, data = [key(i) for i in range(6)], [block(i, 1 + i * 9000) for i in range(6)]
        some = [0, 1, 3, 5]
        self.assertEqual(set(space.put([keys[i] for i in some], [data[i] for i in some]).outcomes), {1})
        there = [i in some for i in range(6)]
        self.assertEqual([t != 0 for t in space.exists(keys)], there)
        self.assertEqual([o == 3 for o in space.want(keys)], there)
        self.assertEqual(space.lookup_each(keys)[0], there)
        self.assertEqual(space.lookup([keys[2]], lease=5).lease.number, 0)
        found = space.lookup(keys, lease=5)
        self.assertEqual((found.blocks, found.tokens, found.bytes), (2, 2, 9002))
        with found.lease as lease:
            lease.renew(5)
        into = [bytearray(len(b)) for b in data]
        self.assertEqual(space.restore(keys, into).landed, there)
        self.assertEqual([into[i] for i in some], [data[i] for i in some])
        self.assertEqual(space.restore([keys[5]], [bytearray(7)]).codes, bytes([17]))
        again = space.put(keys, data[::-1])
        self.assertEqual(again.outcomes, bytes(3 if known else 1 for known in there), "the first writer of a key wins")
        self.assertTrue(again)
        self.assertEqual(space.put(keys, data, accepted=True).outcomes, bytes([3] * 6))
        self.assertEqual(space.delete([keys[0], key(99)]), 1)
        self.assertEqual([t != 0 for t in space.exists(keys)], [False] + [True] * 5)
        with self.assertRaisesRegex(skepkv.Invalid, "parent"):
            space.put([keys[0]], [data[0]], parent=keys[1], depth=1)
        with self.assertRaisesRegex(skepkv.Invalid, "each"):
            self.store.namespace("alone", each=True)
        with self.assertRaisesRegex(skepkv.SkepError, "each"):
            self.store.namespace("each", chained=True)

    def test_a_wrong_length_is_an_error_of_its_key(self):
        space = self.store.namespace("n")
        space.put([key(i) for i in range(3)], [block(i) for i in range(3)])
        into = [bytearray((64 << 10) + d) for d in (-1, 1, 0)]
        restored = space.restore([key(i) for i in range(3)], into)
        self.assertEqual(list(restored.codes), [17, 17, 0])
        self.assertEqual(into[2], block(2))

    def test_what_is_accepted_is_there_at_once(self):
        space = self.store.namespace("accepted", chained=True)
        keys, blocks = [key(i) for i in range(8)], [block(i) for i in range(8)]
        stored = space.put(keys, blocks, accepted=True)
        self.assertTrue(stored)
        self.assertLessEqual(set(stored.outcomes), {1, 2})
        self.assertIn(2, stored.outcomes)
        into = [bytearray(64 << 10) for _ in keys]
        self.assertTrue(space.restore(keys, into))
        self.assertEqual([bytes(b) for b in into], blocks)
        self.store.flush()
        self.assertTrue(space.restore(keys, into))

    def test_delete(self):
        space = self.store.namespace("n")
        space.put([key(0), key(1)], [block(0), block(1)])
        self.assertEqual(space.delete([key(0), key(9)]), 1)
        self.assertEqual([t != 0 for t in space.exists([key(0), key(1)])], [False, True])

    def test_hints_are_of_what_is_stored(self):
        space = self.store.namespace("n")
        space.put([key(0), key(1)], [block(0), block(1)])
        known = space.hint([key(0), key(1), key(9)], next_use=60, steps=2, program="agent-7")
        self.assertEqual(known, 2)
        self.assertEqual(space.hint([key(9)], drop=True), 0)
        with self.assertRaisesRegex(skepkv.Invalid, "pin"):
            space.hint([key(0)], pin=25 * 3600)

    def test_keys_are_listed(self):
        space, keys = self.store.namespace("n"), [key(i) for i in range(5)]
        space.put(keys, [block(i) for i in range(5)])
        self.assertEqual(set(space.keys()), set(keys))

    def test_a_purge_is_of_a_namespace_or_a_salt(self):
        space = self.store.namespace("n")
        salted = space.salted(b"salt")
        for s in (space, salted):
            s.put([key(0)], [block(0)])
        salted.purge()
        self.assertEqual([s.exists([key(0)])[0] != 0 for s in (space, salted)], [True, False])
        space.purge()
        self.assertEqual(space.exists([key(0)]), b"\0")

    def test_statistics_tell_of_what_was_done(self):
        space = self.store.namespace("n")
        before = self.store.stats()["put_blocks"]
        space.put([key(0), key(1)], [block(0), block(1)])
        self.assertEqual(self.store.stats()["put_blocks"], before + 2)

    def test_events_tell_of_what_is_stored_and_goes(self):
        space = self.store.namespace("told", chained=True)
        keys = [key(i) for i in range(3)]
        space.put(keys, [block(i) for i in range(3)])
        self.store.flush()
        seen, last = {}, None
        with self.store.events(snapshot=True) as events:
            for e in events:
                if e.kind in ("stored", "committed"):
                    seen[e.key] = e.parent
                if set(keys) <= set(seen):
                    break
            self.assertEqual([seen[k] for k in keys], [None, *keys[:2]])
            space.delete(keys[2:])
            last = next(e for e in events if e.kind == "deleted")
            self.assertEqual((last.key, last.tier), (keys[2], 0))
            space.delete(keys[1:2])
        with self.store.events(after=(last.epoch, last.seq)) as events:
            e = next(e for e in events if e.key != keys[2])  # in a cluster each copy is told of
            self.assertEqual((e.kind, e.key), ("deleted", keys[1]))

    def test_salts_do_not_see_each_other(self):
        space = self.store.namespace("n", lazy=True)
        mine, yours = space.salted(b"mine"), space.salted(b"yours")
        mine.put([key(0)], [block(0)])
        self.assertEqual([s.exists([key(0)])[0] != 0 for s in (mine, yours, space)], [True, False, False])

    def test_a_chain(self):
        space = self.store.namespace("chain", chained=True)
        keys = [key(i) for i in range(3)]
        self.assertTrue(space.put(keys[:1], [block(0)]))
        self.assertTrue(space.put(keys[1:], [block(1), block(2)], parent=keys[0], depth=1))
        self.assertEqual(space.lookup(keys).blocks, 3)
        self.assertEqual(space.exists(keys[1:])[0], 0)
        self.assertEqual(space.lookup(keys[1:], timeout=60).blocks, 0, "a lookup begins where the chain does")
        self.assertEqual(list(space.want(keys[1:] + [key(9)])), [3, 3, 255], "and a want anywhere")

    def test_buffers(self):
        space = self.store.namespace("n")
        space.put([key(0)], [memoryview(bytearray(block(0))).cast("I")])
        with self.assertRaisesRegex((BufferError, ValueError), "block 0: .*contiguous"):
            space.put([key(0)], [memoryview(block(0))[::2]])
        with self.assertRaisesRegex(BufferError, "block 1: .*writable"):
            space.restore([key(0), key(0)], [bytearray(64 << 10), block(0)])
        with self.assertRaisesRegex(ValueError, "2 keys and 1 blocks"):
            space.restore([key(0), key(0)], [bytearray(1)])
        with self.assertRaisesRegex(ValueError, "key 0 has 3 bytes"):
            space.exists([b"abc"])
        with self.assertRaises(skepkv.Invalid):
            space.put([key(0)], [b""])
        into = bytearray(64 << 10)
        self.assertTrue(space.restore([key(0)], [into]))
        self.assertEqual(into, block(0))
        into.extend(b"x")  # nobody holds it

    def test_eight_threads(self):
        space, wrong = self.store.namespace("n"), []

        def work(t):
            try:
                for k in range(10):
                    keys = [skepkv.key(b"threads", bytes([t, k, i])) for i in range(4)]
                    data = [block(t * 16 + i, 30000) for i in range(4)]
                    into = [bytearray(30000) for _ in range(4)]
                    if not space.put(keys, data) or not space.restore(keys, into) or into != data:
                        wrong.append((t, k))
            except Exception as e:
                wrong.append(e)

        threads = [threading.Thread(target=work, args=(t,)) for t in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])

    def test_a_forked_process_is_refused(self):
        space = self.store.namespace("n")
        space.put([key(0)], [block(0)])
        child = os.fork()
        if child == 0:
            code = 1
            try:
                try:
                    space.exists([key(0)])
                except skepkv.Forked:
                    self.store.close()
                    code = 0
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertNotEqual(space.exists([key(0)])[0], 0)


class OnUnixSocket(Calls, OnServer):
    def setUp(self):
        super().setUp()
        self.store = self.connect()

    def test_a_forked_process_leaves_the_tests_server(self):
        child = os.fork()
        if child == 0:
            try:
                self.server.stop()
            finally:
                os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertTrue(os.path.exists(self.server.socket))
        with skepkv.connect(self.server.url) as store:  # over a connection of its own
            self.assertEqual(store.namespace("n").exists([key(0)]), b"\0")

    def test_memory_shared_with_the_server(self):
        self.assertIsNone(self.store.direct())
        space = self.store.namespace("n")
        keys = [key(i) for i in range(4)]
        with self.store.alloc(4 * (64 << 10)) as memory:
            places = memory.blocks(4)
            for i, place in enumerate(places):
                place[:] = block(i)
            self.assertTrue(space.put(keys, places))
            memory.view[:] = bytes(len(memory))
            self.assertTrue(space.restore(keys, places))
            self.assertEqual([bytes(p) for p in places], [block(i) for i in range(4)])
        with self.assertRaisesRegex(skepkv.SkepError, "memory"):
            self.store.alloc(1 << 40)

    def test_memory_of_the_programs_own(self):
        with open(f"/dev/shm/skepkv-test-{os.getpid()}", "x+b") as f:
            os.unlink(f.name)
            f.truncate(4 * (64 << 10))
            own = memoryview(mmap.mmap(f.fileno(), 0))
            store = self.connect(shared_bytes=1)
            space = store.namespace("n")
            keys = [key(i) for i in range(4)]
            places = [own[i << 16 : (i + 1) << 16] for i in range(4)]
            for how in ({}, {"fd": f.fileno()}):
                with store.register(own, **how):
                    for i, place in enumerate(places):
                        place[:] = block(i)
                    self.assertTrue(space.put(keys, places))
                    own[:] = bytes(len(own))
                    self.assertTrue(space.restore(keys, places))
                    self.assertEqual([bytes(p) for p in places], [block(i) for i in range(4)])
        with self.assertRaises(skepkv.SkepError) as e:
            store.register(bytearray(8192))
        self.assertIn(e.exception.code, (1, 19))
        with self.assertRaises(skepkv.SkepError) as e:
            store.register(mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self.assertEqual(e.exception.code, 19)

    def test_registered_memory_of_a_store_whose_server_may_use_it_yet(self):
        """Whatever error closing ends with: it is the first of several."""
        for error in (skepkv.NotReleased(18, "close"), skepkv.SkepError(9, "close")):
            with self.subTest(str(error)):
                self.registered_memory_of_a_store_that_closes_with(error)

    def registered_memory_of_a_store_that_closes_with(self, error):
        with open(f"/dev/shm/skepkv-test-{os.getpid()}-unsure", "x+b") as f:
            os.unlink(f.name)
            f.truncate(64 << 10)
            store = self.connect(shared_bytes=1)
            mine = store.register(memoryview(mmap.mmap(f.fileno(), 0)))
            library = skepkv._store.library()
            close = library.call

            def unsure(name, *args):
                close(name, *args)
                if name == "close":
                    raise error

            with mock.patch.object(library, "call", unsure), self.assertRaises(type(error)):
                store.close()
            for _ in range(2):
                with self.assertRaises(type(error)):
                    mine.free()

    def test_memory_is_given_back_with_its_last_view(self):
        store = self.connect(shared_bytes=1 << 20)
        memory = store.alloc(1 << 20)  # of 2 MiB, less the ring
        place = memory.view[:10]
        memory.free()
        with self.assertRaises(skepkv.SkepError):
            store.alloc(1 << 20)
        place[:] = b"0123456789"
        del place
        store.alloc(1 << 20).free()

    def test_the_server_is_killed_and_started_again(self):
        space = self.store.namespace("n")
        self.assertTrue(space.put([key(0)], [block(0)]))
        self.server.kill()
        with self.assertRaises(skepkv.SkepError) as e:
            space.exists([key(0)], timeout=20)
        self.assertEqual(e.exception.code, 24)
        self.server.start()

        def answers():
            try:
                return bool(space.put([key(1)], [block(1)], timeout=5))
            except skepkv.SkepError:
                return False

        eventually(answers)
        into = bytearray(64 << 10)
        self.assertTrue(space.restore([key(1)], [into]))
        self.assertEqual(into, block(1))

    def test_a_lazy_store_waits_for_its_server(self):
        self.server.kill()
        store = self.connect(lazy=True)
        space = store.namespace("n", lazy=True)
        with self.assertRaises(skepkv.SkepError):
            space.exists([key(0)])
        self.server.start()

        def answers():
            try:
                return space.exists([key(0)]) == b"\0"
            except skepkv.SkepError:
                return False

        eventually(answers)

    def test_signals_of_python_are_python_s(self):
        came = []
        old = signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
        self.addCleanup(signal.signal, signal.SIGUSR1, old)
        os.kill(os.getpid(), signal.SIGUSR1)
        self.store.namespace("n").exists([key(0)])
        self.assertEqual(came, [1])

    def test_doctor(self):
        def doctor(url):
            return subprocess.run(
                [sys.executable, "-m", "skepkv", "doctor", url],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )

        well = doctor(self.server.url)
        self.assertEqual((well.returncode, well.stderr), (0, ""))
        self.assertEqual([line.split()[0] for line in well.stdout.splitlines()], ["ok"] * 6)
        far = doctor(f"127.0.0.1:{self.server.port}")
        self.assertEqual(far.returncode, 0)
        self.assertIn("warn  direct     no: ", far.stdout)
        gone = doctor("unix:/nonesuch")
        self.assertEqual(gone.returncode, 1)
        self.assertIn("fail  server", gone.stdout)

    @unittest.skipUnless(os.geteuid() == 0, "another user is needed")
    def test_doctor_of_another_user(self):
        os.chmod(self.server.dir, 0o755)
        os.chmod(self.server.socket, 0o666)
        # Once as it is: another user may not be allowed to read the modules.
        program = "import os, sys, skepkv.__main__ as m\nlook = lambda: m.doctor(sys.argv[1], '', None, '')\n"
        program += "look()\nos.setresuid(*[65534] * 3)\nsys.exit(look())"
        said = subprocess.run(
            [sys.executable, "-c", program, self.server.url],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        self.assertEqual((said.returncode, said.stderr), (0, ""), said.stdout)
        own, other = said.stdout.split("ok    4 MiB")[:2]
        self.assertIn("ok    engine's", own)
        self.assertIn("ok    direct", other)
        do = "denied: .*run the server and the engine as one user. This is user 65534, the socket's is 0"
        self.assertRegex(other, f"(?m)^warn  engine's   .*copied once: {do}$")


class OnTCP(Calls, OnServer):
    def setUp(self):
        super().setUp()
        self.store = skepkv.connect(f"127.0.0.1:{self.server.port}")
        self.addCleanup(self.store.close)


class OverTLS(Calls, unittest.TestCase):
    def setUp(self):
        self.server = Server(tls=True)
        self.addCleanup(self.server.stop)
        self.url = f"127.0.0.1:{self.server.port}"
        self.store = skepkv.connect(self.url, tls=self.server.cert)
        self.addCleanup(self.store.close)

    def test_who_is_not_trusted_is_not_spoken_to(self):
        other, key = certificate(self.server.dir, "other")
        for tls in (None, "system", other, {"ca": self.server.cert, "name": "elsewhere"}):
            with self.assertRaises(skepkv.SkepError):
                skepkv.connect(self.url, tls=tls)
        for tls in ({"ca": "/nonesuch"}, {"ca": key}, {"cert": other}):
            with self.assertRaises(skepkv.Invalid):
                skepkv.connect(self.url, tls=tls)

    def test_doctor(self):
        well = subprocess.run(
            [sys.executable, "-m", "skepkv", "doctor", self.url, "--tls-ca", self.server.cert],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        self.assertEqual((well.returncode, well.stderr), (0, ""))


class WithToken(OnServer):
    token = True

    def test_the_token_says_who_it_is(self):
        with self.assertRaises(skepkv.SkepError) as e:
            self.connect(token="another token of the tests")
        self.assertEqual(e.exception.code, 26)
        self.assertNotIn("another token", str(e.exception))
        space = self.connect(token=TOKEN).namespace("n")
        self.assertTrue(space.put([key(0)], [block(0)]))
        with self.assertRaises(skepkv.SkepError):
            self.connect(token=TOKEN).namespace("n", tenant="theirs")


class Embedded(Calls, unittest.TestCase):
    def setUp(self):
        import shutil
        import tempfile

        self.dir = tempfile.mkdtemp(prefix="skepkv")
        self.addCleanup(shutil.rmtree, self.dir, True)
        self.store = skepkv.embed(self.dir, devices=1, capacity_bytes=256 << 20)
        self.addCleanup(self.store.close)

    def test_it_keeps_what_it_has(self):
        self.store.namespace("n").put([key(0)], [block(0)])
        self.store.close()
        with skepkv.embed(self.dir) as store:
            self.assertNotEqual(store.namespace("n").exists([key(0)])[0], 0)


if __name__ == "__main__":
    unittest.main()
