"""What users of KV stores ask for in public threads, shown through LMCache's connector. The tenth, an interface that
stays, is test_lmcache_real's, test_sglang_real's and test_vllm_real's: each under the engines' own classes."""

import os
import signal
import threading
import unittest

import skepkv
from serving import TOKEN, Server, eventually
from skepkv.lmcache import Connector
from test_lmcache import Waiting, name

SIZE = 1 << 20


def value(i, n=SIZE):
    return bytes([i & 255, i >> 8, 7, 11]) * (n // 4)


class TestWishes(unittest.TestCase):
    def serve(self, **o):
        self.server = Server(**o)
        self.addCleanup(self.server.stop)
        return self.connect()

    def connect(self, **o):
        for what in ("get", "set", "exists", "delete"):
            o.setdefault(what + "_timeout", 120)
        c = Connector(url=self.server.url, **o)
        self.addCleanup(c.close)
        self.wait = Waiting(c)
        return c

    def put(self, c, numbers, **o):
        number = c.submit_batch_set([name(i, **o) for i in numbers], [memoryview(value(i)) for i in numbers])
        return self.wait(number)[:2]

    def get(self, c, numbers, **o):
        """Which are there; what is there is compared, every byte."""
        into = [bytearray(SIZE) for _ in numbers]
        _, _, landed = self.wait(
            c.submit_batch_get([name(i, **o) for i in numbers], [memoryview(b) for b in into])
        )
        for i, b, there in zip(numbers, into, landed):
            if there:
                self.assertEqual(bytes(b), value(i))
        return landed

    def exists(self, c, numbers, **o):
        return self.wait(c.submit_batch_exists([name(i, **o) for i in numbers]))[2]

    def flush(self):
        with skepkv.connect(self.server.url) as store:
            store.flush()

    def crash(self, between=lambda: None):
        """The server is killed, something is done to its drives, and it is started again."""
        self.flush()
        self.server.kill()
        between()
        self.server.start()

    def drive(self, i=0):
        return os.path.join(self.server.dir, "store", f"device-{i}")

    def there_again(self, c, numbers):
        """exists, once the connector has found the server that was started again."""
        return eventually(lambda: any(found := self.exists(c, numbers)) and found)

    def test_1_a_tier_of_files_is_bounded_and_outlives_its_server(self):
        """vllm issues 54779 and 54327: a file tier without a cap fills the disk, and starts from nothing."""
        c, capacity = self.serve(capacity="128MiB"), 128 << 20
        for first in range(0, 240, 20):  # nearly twice what fits
            self.assertTrue(self.put(c, range(first, first + 20))[0])
        self.flush()
        held = os.stat(self.drive()).st_blocks * 512
        self.assertLessEqual(held, capacity)
        self.assertGreater(held, 32 << 20, "it is used")
        was = self.exists(c, range(240))
        self.assertIn(False, was, "the oldest made room")
        self.crash()
        found = self.there_again(c, range(240))
        self.assertGreater(sum(found), 0)
        self.assertEqual([i for i in range(240) if found[i] and not was[i]], [], "nothing comes back that had gone")
        there = [i for i in range(240) if found[i]]
        self.assertEqual(self.get(c, there), [True] * len(there))

    def test_2_what_is_damaged_or_was_not_stored_is_a_miss(self):
        """vllm issues 54363 and 57912, LMCache issues 4991 and 4533: a failed store or a changed byte served as a
        hit."""
        c = self.serve()
        self.assertTrue(self.put(c, range(6))[0])

        def flip():
            with open(self.drive(), "r+b") as f:
                at = f.read().find(value(3, 4096))
                self.assertGreater(at, 0)
                f.seek(at + 1000)
                f.write(b"X")
            self.assertFalse(self.put(c, [9])[0], "there is no server")

        self.crash(flip)
        self.there_again(c, range(6))
        self.assertEqual(self.get(c, range(6)), [True, True, True, False, True, True])
        self.assertEqual(self.get(c, [9]), [False])

    def test_3_a_store_that_stands_still_is_a_miss_in_time(self):
        """vllm issues 54363 and 49829, sglang issue 38639: an engine waits without an end for I/O."""
        self.serve()
        c = self.connect(get_timeout=0.5, exists_timeout=0.5)
        self.assertTrue(self.put(c, range(4))[0])
        self.server.process.send_signal(signal.SIGSTOP)
        try:
            os.waitpid(self.server.process.pid, os.WUNTRACED)
            self.assertEqual(self.exists(c, range(4)), [False] * 4)
            self.assertEqual(self.get(c, range(4)), [False] * 4)
        finally:
            self.server.process.send_signal(signal.SIGCONT)
        eventually(lambda: self.get(c, range(4)) == [True] * 4)

    def test_4_of_many_drives_one_is_lost_alone(self):
        """Mooncake issues 4230 and 2922, LMCache issue 4260: several drives without RAID."""
        c = self.serve(devices=3, capacity="384MiB")
        self.assertTrue(self.put(c, range(60))[0])
        self.crash(lambda: os.remove(self.drive(1)))
        found = self.there_again(c, range(60))
        there = [i for i in range(60) if found[i]]
        self.assertGreater(len(there), 0)
        self.assertLess(len(there), 60, "what was on that drive is a miss")
        self.assertEqual(self.get(c, there), [True] * len(there))
        self.assertTrue(self.put(c, range(100, 110))[0], "the others go on")
        self.assertEqual(self.get(c, range(100, 110)), [True] * 10)

    def test_5_drives_are_warm_after_a_restart(self):
        """Mooncake issues 3052 and 3182, LMCache issue 4778: what is on the drives is forgotten with the process."""
        c = self.serve()
        self.assertTrue(self.put(c, range(20))[0])
        self.crash()
        fresh = self.connect()  # an engine that was started again, too
        self.assertEqual(self.exists(fresh, range(20)), [True] * 20)
        self.assertEqual(self.get(fresh, range(20)), [True] * 20)

    def test_6_a_salt_reaches_the_drives_and_the_events(self):
        """sglang issue 37160, dynamo issue 11571: a salt that ends at the first tier."""
        c = self.serve()
        for salt in ("", "one"):
            self.assertTrue(self.put(c, [1], salt=salt)[0])
        self.crash()
        self.there_again(c, [1])
        self.assertEqual([self.get(c, [1], salt=s) for s in ("", "one", "another")], [[True], [True], [False]])
        with skepkv.connect(self.server.url) as store, store.events(snapshot=True) as events:
            seen = {}
            for e in events:
                if e.kind == "stored" and e.namespace == c._space("org/model-7b", "00000001", "0", "")._number[0]:
                    seen[e.salted] = e.key
                if len(seen) == 2:
                    break
        self.assertNotEqual(seen[True], seen[False], "a salted key is not told of")

    def test_7_an_agents_hint_keeps_what_it_comes_back_for(self):
        """vllm issues 57103 and 53421, sglang issue 27574, LMCache issue 4456, Mooncake issue 2819: retain, demote,
        prefetch."""
        c = self.serve(capacity="128MiB")
        self.assertTrue(self.put(c, range(20))[0])
        space = c._space("org/model-7b", "00000001", "0", "")
        key = {i: skepkv.key(b"", *name(i).encode().split(b"@")) for i in range(20)}
        self.assertEqual(space.hint([key[i] for i in range(10)], pin=3600, program="agent"), 10)
        for first in range(100, 400, 20):
            self.put(c, range(first, first + 20))
        found = self.exists(c, range(20))
        self.assertEqual(found[:10], [True] * 10)
        self.assertIn(False, found[10:], "what nobody pinned made room")
        self.assertEqual(self.get(c, range(10)), [True] * 10)
        with self.assertRaises(skepkv.SkepError) as e:
            space.hint([key[0]], pin=48 * 3600)
        self.assertEqual(e.exception.code, 1, "a day at most")

    def test_8_usage_is_told_by_tier(self):
        """vllm issue 53486: how much is in which tier, and what each one served."""
        c = self.serve()
        self.assertTrue(self.put(c, range(10))[0])
        self.assertEqual(self.get(c, range(10)), [True] * 10)
        with skepkv.connect(self.server.url) as store:
            stats = store.stats()
        self.assertGreaterEqual(stats["block_bytes"], 10 * SIZE)
        self.assertEqual([t["name"] for t in stats["tenants"] if t["bytes"] >= 10 * SIZE], ["default"])
        self.assertEqual(sum(stats["restore_tiers"].values()), 10 * SIZE)
        self.assertEqual([d["index"] for d in stats["devices"]], [0])

    def test_9_loads_do_not_wait_for_stores_and_a_refusal_has_a_reason(self):
        """vllm issues 50031 and 53485: stores in front of loads, and an admission that nobody can explain."""
        c = self.serve(token=True, rights="read, write")
        c.close()
        c = self.connect(token=TOKEN)
        self.assertTrue(self.put(c, range(4))[0])
        go, space = threading.Event(), type(c._space("org/model-7b", "00000001", "0", ""))
        put = space.put
        self.addCleanup(setattr, space, "put", put)
        self.addCleanup(go.set)

        def hangs(*args, **o):
            go.wait(300)
            return put(*args, **o)

        space.put = hangs
        late = [c.submit_batch_set([name(i)], [memoryview(value(i))]) for i in range(10, 20)]
        self.assertEqual(self.get(c, range(4)), [True] * 4)
        go.set()
        self.assertEqual([self.wait(number)[0] for number in late], [True] * 10)

        self.server.stop()
        self.serve(token=True, rights="read")
        ok, why = self.put(self.connect(token=TOKEN), [1])
        self.assertFalse(ok)
        self.assertIn("denied", why)


if __name__ == "__main__":
    unittest.main()
