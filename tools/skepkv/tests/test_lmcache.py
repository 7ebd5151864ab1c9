"""The LMCache connector as LMCache calls it, without LMCache."""

import os
import select
import signal
import sys
import threading
import unittest
from unittest import mock

import skepkv
from serving import TOKEN, Cluster, Server, differing, eventually
from skepkv import _keys, _region
from skepkv.lmcache import Connector

SIZE = 256 << 10


def name(i, model="org/model-7b", rank=1, group=0, salt=""):
    return f"{model}@{rank:08x}@{group:x}@{i:064x}" + (f"@{salt}" if salt else "")


def value(i, n=SIZE):
    return bytes([i & 255, (i >> 8) & 255, 7]) * (n // 3) + bytes(n % 3)


class Waiting:
    """Waits for completions of a connector as LMCache's thread does."""

    def __init__(self, connector):
        self.connector, self.done = connector, {}

    def __call__(self, number):
        poll = select.poll()
        poll.register(self.connector.event_fd(), select.POLLIN)
        while number not in self.done:
            if not poll.poll(240000):
                raise AssertionError(f"batch {number} has not completed")
            for done in self.connector.drain_completions():
                assert done[0] not in self.done, "completed twice"
                self.done[done[0]] = done[1:]
        return self.done.pop(number)


class Regions(unittest.TestCase):
    """The plugin's memory, with what it has of LMCache left out."""

    def test_who_waits_for_a_store_that_fails_to_close_waits_no_longer(self):
        names = ("lmcache_native", "v1.distributed.internal_api", "v1.distributed.l2_adapters.base")
        there = {f"lmcache.{n}": mock.Mock(L2AdapterInterface=object) for n in names}
        with mock.patch.dict(sys.modules, there):
            from skepkv._lmcache import _Plugin
        plugin, memory, store = _Plugin(mock.Mock(), url="unix:/nonesuch"), bytearray(4096), mock.Mock(_kept=[])
        self.addCleanup(plugin.close)
        region = plugin._region = _region.Region(memory, mock.Mock())
        store.register().free.side_effect = store.close.side_effect = skepkv.NotReleased(18, "a drive writes yet")
        self.assertTrue(region.lend(store, 1))
        job = threading.Thread(target=region.back, args=(store, False), daemon=True)
        job.start()
        eventually(lambda: store.register().free.called)
        plugin._drop(store)
        job.join(60)
        self.assertFalse(job.is_alive(), "it waits for what never comes")
        self.assertIsNone(plugin._region)
        with self.assertRaises(BufferError):
            memory.extend(b"x")  # a drive may write there
        _region._kept.remove(region._flat)


class StoresThatEnd(unittest.TestCase):
    """Stores that are no stores: what is closed, and when."""

    def setUp(self):
        self.c = Connector(url="unix:/nonesuch")
        self.addCleanup(self.c.close)

    def store(self, ending=None):
        out = mock.Mock()
        out.closed = threading.Event()
        out.close.side_effect = lambda: (ending and ending.wait(60), out.closed.set())
        return out

    def test_a_late_error_of_a_store_leaves_the_next_one_open(self):
        first, second = self.store(), self.store()
        self.c._store = first
        self.c._restart(first)
        self.c._store = second
        self.c._restart(first)  # another job's, which was at it
        self.assertTrue(first.closed.is_set())
        second.close.assert_not_called()
        self.assertIs(self.c._store, second)
        self.c._restart(second)
        self.assertTrue(second.closed.is_set())

    def test_the_store_that_failed_is_closed_and_not_the_one_before_it(self):
        """A job that was begun while the first store was there gets its spaces of the second."""
        first, second = self.store(), self.store()
        self.c._store = first

        def parts(_):
            self.c._restart(first)
            self.c._store = second
            return [(mock.Mock(_store=second), [0], [b""])]

        wait = Waiting(self.c)
        with mock.patch.object(self.c, "_parts", parts), mock.patch.object(self.c, "_straight"):
            for error in (skepkv.errors.NotReleased(18, "a drive has it"), skepkv.SkepError(3, "closed")):
                with mock.patch.object(self.c, "_get", lambda job: self.c._each(job, mock.Mock(side_effect=error))):
                    number = self.c.submit_batch_get([name(1)], [memoryview(bytearray(8))])
                    self.assertFalse(wait(number)[0])
                self.assertTrue(second.closed.is_set())
                self.assertIsNone(self.c._store)
                first, second = second, self.store()
                self.c._store = first

    def test_who_is_second_waits_until_it_is_closed(self):
        may = threading.Event()
        self.c._store = first = self.store(may)
        one = threading.Thread(target=self.c._restart, args=(first,))
        one.start()
        eventually(lambda: first.close.called)
        seen = []
        two = threading.Thread(target=lambda: (self.c._restart(first), seen.append(first.closed.is_set())))
        two.start()
        two.join(0.2)
        self.assertTrue(two.is_alive(), "it has not waited")
        may.set()
        one.join(60)
        two.join(60)
        self.assertEqual(seen, [True])


    def test_keys_of_a_closed_store_are_not_told_of_again(self):
        store = mock.Mock(_number=0)
        store.namespace().put.side_effect = skepkv.SkepError(1, "a store that is none")
        before = set(threading.enumerate())
        _keys.tell(store, "", "space", {})
        for t in set(threading.enumerate()) - before:
            t.join(5)  # it would try again after ten seconds
            self.assertFalse(t.is_alive())
        store.namespace().put.assert_called_once()


class OnServer(unittest.TestCase):
    token = False

    def setUp(self):
        self.server = Server(token=self.token)
        self.addCleanup(self.server.stop)

    def open(self, **o):
        o["url"] = o.get("url") or self.server.url
        for what in ("get", "set", "exists", "delete"):  # patience: what a dead server does to a batch takes no time
            o.setdefault(what + "_timeout", 120)
        c = Connector(**o)
        self.addCleanup(c.close)
        return c, Waiting(c)

    def put(self, c, wait, numbers, **o):
        return wait(c.submit_batch_set([name(i, **o) for i in numbers], [memoryview(value(i)) for i in numbers]))

    def get(self, c, wait, numbers, size=SIZE, **o):
        into = [bytearray(size) for _ in numbers]
        ok, _, landed = wait(c.submit_batch_get([name(i, **o) for i in numbers], [memoryview(b) for b in into]))
        self.assertEqual(len(landed), len(into))
        for i, b, there in zip(numbers, into, landed):
            if there:
                self.assertEqual(b, value(i))
        return ok, landed


class OnACluster(OnServer):
    """Three nodes, each chunk on two of them."""

    def setUp(self):
        self.cluster = Cluster()
        self.addCleanup(self.cluster.stop)

    def fill(self):
        """Stores 48 chunks, so that a node that is killed has what it had when it is started again."""
        c, wait = self.open(url=self.cluster.url)
        self.assertTrue(self.put(c, wait, range(48))[0])
        self.assertTrue(self.put(c, wait, range(48))[0], "they are there")
        with skepkv.connect(self.cluster.url) as store:
            store.flush()

    def found(self, without):
        """Whether all of 48 chunks are got, every byte of them, while one node is away: at once, or once it is known to
        be away."""
        self.cluster.kill(without)
        c, wait = self.open(url=f"unix:{self.cluster.dir}/{'b' if without == 'a' else 'a'}")
        return eventually(lambda: all(self.get(c, wait, range(48))[1]))

    def test_any_node_may_be_lost(self):
        self.fill()
        for node in "abc":
            self.assertTrue(self.found(without=node))
            self.cluster.start(node)

    def test_repair_makes_what_a_node_lost(self):
        self.fill()
        self.cluster.kill("b")
        self.cluster.start("b", wiped=True)
        self.assertTrue(eventually(lambda: self.cluster.repair() == 0), "the others may take it for away yet")
        self.assertTrue(self.found(without="c"))
        self.cluster.start("c")
        self.assertTrue(self.found(without="a"))


class TestConnector(OnServer):
    def test_all_of_its_calls(self):
        c, wait = self.open()
        self.assertEqual(self.put(c, wait, range(16)), (True, "", None))
        self.assertEqual(
            wait(c.submit_batch_exists([name(i) for i in range(18)])), (True, "", [True] * 16 + [False] * 2)
        )
        self.assertEqual(self.get(c, wait, range(16)), (True, [True] * 16))
        self.assertEqual(self.get(c, wait, [0, 99, 1, 98, 2]), (True, [True, False, True, False, True]), "half a batch")
        self.assertEqual(self.get(c, wait, [0, 1], size=SIZE - 1), (True, [False, False]), "a wrong length")
        self.assertEqual(wait(c.submit_batch_delete([name(0), name(77)])), (True, "", [True, True]))
        self.assertEqual(self.get(c, wait, [0, 1]), (True, [False, True]))

    def test_the_first_of_two_that_computed_a_chunk_is_kept(self):
        c, wait = self.open()
        self.assertTrue(self.put(c, wait, [1])[0])
        with self.assertNoLogs("skepkv", "WARNING"):
            other = [memoryview(value(2)), memoryview(value(3))]
            self.assertEqual(wait(c.submit_batch_set([name(1), name(3)], other)), (True, "", None))
            self.assertEqual(self.get(c, wait, [1, 3]), (True, [True, True]))

    def test_ranks_groups_models_and_salts_share_nothing(self):
        c, wait = self.open()
        self.assertTrue(self.put(c, wait, [1])[0])
        others = [name(1, rank=2), name(1, group=1), name(1, model="org/other"), name(1, salt="user")]
        self.assertEqual(wait(c.submit_batch_exists([name(1), *others]))[2], [True] + [False] * 4)
        self.assertTrue(self.put(c, wait, [1], salt="user")[0])
        self.assertEqual(self.get(c, wait, [1], salt="user")[1], [True])
        self.assertEqual(self.get(c, wait, [1], salt="another")[1], [False])
        long = "\u8a9e" * 128  # as many characters as LMCache takes, and more bytes than skep does
        self.assertTrue(self.put(c, wait, [1], salt=long)[0])
        self.assertEqual([self.get(c, wait, [1], salt=s)[1] for s in (long, long[1:])], [[True], [False]])
        d, waits = self.open(fingerprint="fp8")
        self.assertEqual(self.get(d, waits, [1])[1], [False])

    def test_it_tells_what_its_keys_are_by(self):
        c, wait = self.open()
        self.put(c, wait, [1])
        self.assertEqual(differing(self.server, "lmcache", 1), [set()])
        d, waits = self.open(fingerprint="fp8")
        self.put(d, waits, [1])
        self.put(d, waits, [1], rank=2)
        self.assertEqual(differing(self.server, "lmcache", 3), [{"fingerprint"}, set()])

    def test_keys_of_another_form_fail_alone(self):
        c, wait = self.open()
        self.assertTrue(self.put(c, wait, [1])[0])
        bad = ["", "model", "a@b@c", "a@b@c@d@e@f", "@@@"]
        self.assertEqual(wait(c.submit_batch_exists([*bad, name(1)])), (True, "", [False] * 5 + [True]))
        ok, why, _ = wait(c.submit_batch_set(bad, [memoryview(b"x")] * 5))
        self.assertFalse(ok)
        self.assertIn("form", why)

    def test_a_namespace_that_fails_leaves_the_others_of_its_batch(self):
        c, wait = self.open()
        self.assertTrue(self.put(c, wait, [1])[0])
        self.assertTrue(self.put(c, wait, [1], rank=2)[0])
        space, wrong = c._space, skepkv.SkepError(skepkv.errors.DEADLINE, "drive")

        class Hangs:
            def __getattr__(self, _):
                def refuse(*_, **__):
                    raise wrong

                return refuse

        c._space = lambda *who: Hangs() if who[1] == f"{2:08x}" else space(*who)
        both, into = [name(1, rank=2), name(1)], [bytearray(SIZE), bytearray(SIZE)]
        got = wait(c.submit_batch_get(both, [memoryview(b) for b in into]))
        self.assertEqual(got, (True, str(wrong), [False, True]))
        self.assertEqual(into[1], value(1))
        self.assertEqual(wait(c.submit_batch_exists(both)), (True, str(wrong), [False, True]))
        self.assertEqual(wait(c.submit_batch_set(both, [memoryview(b) for b in into])), (False, str(wrong), None))
        self.assertEqual(wait(c.submit_batch_get(both[:1], [memoryview(into[0])])), (False, str(wrong), [False]))
        self.assertEqual(wait(c.submit_batch_delete(both)), (True, str(wrong), [False, True]))

    def test_views_it_cannot_use(self):
        c, wait = self.open()
        self.assertTrue(self.put(c, wait, [1, 2])[0])
        ok, why, landed = wait(
            c.submit_batch_get([name(1), name(2)], [memoryview(bytearray(SIZE)), memoryview(bytes(SIZE))])
        )
        self.assertEqual((ok, landed), (False, [False, False]))
        self.assertIn("writable", why)
        self.assertEqual(self.get(c, wait, [1, 2])[1], [True, True])

    def test_the_server_is_killed_and_started_again(self):
        c, wait = self.open()
        self.assertTrue(self.put(c, wait, range(8))[0])
        under_way = [
            c.submit_batch_get([name(i) for i in range(8)], [memoryview(bytearray(SIZE)) for _ in range(8)])
            for _ in range(8)
        ]
        self.server.kill()
        for number in under_way:
            self.assertEqual(len(wait(number)[2]), 8)
        self.assertEqual(wait(c.submit_batch_exists([name(1)]))[::2], (False, [False]))
        self.assertEqual(self.get(c, wait, [1, 2]), (False, [False, False]))
        self.assertFalse(self.put(c, wait, [100])[0])
        self.server.start()
        eventually(lambda: self.put(c, wait, [100, 101])[0])
        self.assertEqual(self.get(c, wait, [100, 101]), (True, [True, True]))

    def test_a_server_that_is_not_there_yet(self):
        self.server.kill()
        c, wait = self.open()
        self.assertEqual(wait(c.submit_batch_exists([name(1)]))[::2], (False, [False]))
        self.server.start()
        eventually(lambda: wait(c.submit_batch_exists([name(1)]))[0])

    def test_a_batch_whose_time_is_over(self):
        c, wait = self.open(exists_timeout=1e-9, get_timeout=1e-9)
        self.assertTrue(self.put(c, wait, [1])[0])
        ok, why, there = wait(c.submit_batch_exists([name(1)]))
        self.assertEqual((ok, there), (False, [False]))
        self.assertIn("time was over", why)
        self.assertEqual(self.get(c, wait, [1]), (False, [False]))

    def test_close_completes_what_waits(self):
        c = Connector(self.server.url)
        numbers = [c.submit_batch_exists([name(i)]) for i in range(200)]
        c.close()
        c.close()
        self.assertEqual(sorted(d[0] for d in c.drain_completions()), numbers)
        late = c.submit_batch_get([name(1)], [memoryview(bytearray(1))])
        self.assertEqual([(d[0], d[1], d[3]) for d in c.drain_completions()], [(late, False, [False])])

    def test_in_a_forked_process_all_is_a_miss(self):
        c, wait = self.open()
        self.assertTrue(self.put(c, wait, [1])[0])
        with c._lock:  # as another thread of this process may
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    code = self.forked(c)
                finally:
                    os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(self.get(c, wait, [1]), (True, [True]))

    def test_a_forked_process_leaves_the_parent_s_completions(self):
        c, wait = self.open()
        poll = select.poll()
        poll.register(c.event_fd(), select.POLLIN)
        number = c.submit_batch_exists([name(1)])
        self.assertTrue(poll.poll(240000))
        child = os.fork()
        if child == 0:
            code = 1
            try:  # whatever is raised: else this test, and those after it, would go on here
                c.drain_completions()
                code = 0
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertTrue(poll.poll(0), "nobody tells the parent of its batch")
        self.assertEqual(wait(number), (True, "", [False]))

    def forked(self, c):
        signal.alarm(60)  # it would wait for ever
        number = c.submit_batch_exists([name(1)])
        poll = select.poll()
        poll.register(c.event_fd(), select.POLLIN)
        poll.poll()
        done = [(d[0], d[1], d[3]) for d in c.drain_completions()]
        c.close()
        return 0 if done == [(number, False, [False])] else 1

    def test_parameters_that_are_wrong(self):
        wrong = ({"readers": 0}, {"get_timeout": 0}, *({"copies": n} for n in (0, 5, True, "2")))
        for o in ({"url": ""}, *({"url": "unix:/x", **o} for o in wrong)):
            with self.assertRaises(ValueError):
                Connector(**o)


class OnFourDrives(OnServer):
    def setUp(self):
        self.server = Server(devices=4)
        self.addCleanup(self.server.stop)

    def lose_a_drive(self):
        self.server.stop_and_keep()
        os.remove(os.path.join(self.server.dir, "store", "device-1"))
        self.server.start()

    def test_a_drive_takes_nothing_of_what_has_two_copies(self):
        for copies in (1, 2):
            c, wait = self.open(copies=copies)
            self.assertEqual(wait(c.submit_batch_exists([name(0)]))[2], [False], "another number is another cache")
            self.assertTrue(self.put(c, wait, range(48))[0])
            c.close()
        self.lose_a_drive()
        found = {}
        for copies in (1, 2):
            c, wait = self.open(copies=copies)
            found[copies] = sum(self.get(c, wait, range(48))[1])
            self.assertTrue(self.put(c, wait, range(48, 60))[0])
        self.assertEqual(found[2], 48)
        self.assertLess(found[1], 48)

    def test_more_copies_than_drives_are_named(self):
        server = Server()
        self.addCleanup(server.stop)
        c, wait = self.open(copies=2, url=server.url)
        ok, why, _ = self.put(c, wait, [1])
        self.assertFalse(ok)
        self.assertIn("copies is 2, must be at most the number of devices, 1", why)


class TestToken(OnServer):
    token = True

    def test_a_wrong_token_is_a_miss_and_a_right_one_is_not(self):
        c, wait = self.open(token="another token of the tests")
        ok, why, landed = wait(c.submit_batch_exists([name(1)]))
        self.assertEqual((ok, landed), (False, [False]))
        self.assertIn("denied", why)
        path = os.path.join(self.server.dir, "token")
        with open(path, "w", encoding="utf-8") as f:
            f.write(TOKEN + "\n")
        c, wait = self.open(token_file=path)
        self.assertTrue(self.put(c, wait, [1])[0])
        self.assertEqual(self.get(c, wait, [1]), (True, [True]))


class TestTLS(OnServer):
    def setUp(self):
        self.server = Server(tls=True)
        self.addCleanup(self.server.stop)

    def test_the_server_s_signer_is_trusted_and_no_other(self):
        url = f"127.0.0.1:{self.server.port}"
        c, wait = self.open(url=url, tls_ca=self.server.cert)
        self.assertTrue(self.put(c, wait, [1])[0])
        self.assertEqual(self.get(c, wait, [1]), (True, [True]))
        c, wait = self.open(url=url, tls_ca="system")
        ok, why, landed = wait(c.submit_batch_exists([name(1)]))
        self.assertEqual((ok, landed), (False, [False]))
        with self.assertRaisesRegex(ValueError, "tls_ca is empty"):
            Connector(url=url, tls_cert=self.server.cert)


if __name__ == "__main__":
    unittest.main()
