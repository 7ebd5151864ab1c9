"""LMCache's own native RESP client, which reads replies of fixed lengths and never looks for the beginning of one, on
the port redis.lockstep. What it says is loaded is its key's, every byte of it (Engine.load)."""

import threading
import unittest

from serving import Server, eventually

try:
    import redis
    from test_lmcache_real import Engine, create, missing
except ImportError as e:
    missing = str(e)


@unittest.skipIf(missing, missing)
class OnLockstep(unittest.TestCase):
    capacity = "1GiB"

    def setUp(self):
        self.server = Server(capacity=self.capacity, lockstep=True)
        self.addCleanup(self.server.stop)

    def engine(self, size=1 << 20, workers=2):
        a = create({"type": "resp", "host": "127.0.0.1", "port": self.server.lockstep, "num_workers": workers})
        self.addCleanup(a.close)
        return Engine(a, size)


@unittest.skipIf(missing, missing)
class TestMisses(OnLockstep):
    def test_misses_leave_it_in_step(self):
        e = self.engine()
        self.assertTrue(e.store(range(16)).is_successful())
        self.assertEqual(e.lookup([*range(16), 1000]), [True] * 16 + [False])
        self.assertEqual(e.load(range(16)), [True] * 16)
        for _ in range(3):
            self.assertEqual(e.load([0, 1000, 1, 1001, 2]), [True, False, True, False, True])
            self.assertEqual(e.load(range(16)), [True] * 16)

    def test_what_is_deleted_between_lookup_and_load_is_a_miss(self):
        e = self.engine()
        self.assertTrue(e.store(range(16)).is_successful())
        self.assertEqual(e.lookup(range(16)), [True] * 16)
        with redis.Redis(port=self.server.resp) as other:
            names = sorted(other.scan_iter())
            self.assertEqual(len(names), 16)
            self.assertEqual(other.delete(*names[::3]), 6)
        landed = e.load(range(16))
        self.assertEqual(sum(landed), 10)
        self.assertEqual(e.load(range(16)), landed)


@unittest.skipIf(missing, missing)
class TestSmallStore(OnLockstep):
    """More than there is room for, by many connections, of several lengths at a time."""

    capacity = "192MiB"

    def test_many_that_are_in_each_other_s_way(self):
        wrong, loaded = [], []

        def work(number):
            try:
                e = self.engine((number % 3 + 1) << 18)
                e.of = {"model": f"org/model-{number}"}
                for at in range(0, 128, 16):
                    e.store(range(at, at + 16))
                    found = e.lookup(range(at + 16))
                    loaded.extend(e.load([i for i, there in enumerate(found) if there]))
            except BaseException as why:
                wrong.append(why)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])
        self.assertIn(True, loaded)

    def test_the_server_is_killed_in_the_middle(self):
        e, enough = self.engine(), threading.Event()
        self.assertTrue(e.store(range(16)).is_successful())

        def kill():
            enough.wait()
            self.server.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        for i in range(8):
            e.load(range(16))  # compared; what comes no more is a miss
            if i == 3:
                enough.set()
        killer.join()
        self.assertEqual(e.load([0, 1]), [False, False])
        self.server.start()
        other = self.engine()  # the first one connects to nobody any more
        eventually(lambda: other.store([2000]).is_successful())
        there = other.lookup(range(16))
        self.assertEqual(other.load([i for i in range(16) if there[i]]), [True] * sum(there))
