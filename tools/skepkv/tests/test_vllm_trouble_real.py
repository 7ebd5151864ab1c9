"""The tier under vLLM's own classes when the server is killed, stands still, is not there yet, or refuses."""

import os
import signal
import threading
import unittest

import skepkv
import skepkv._region
from serving import TOKEN, eventually
from vllm_engine import OnServer, chain, straight

try:
    from vllm.v1.kv_offload.base import LookupResult, ReqContext
except (ImportError, OSError):
    pass  # vllm_engine.missing says so


class TestTrouble(OnServer):
    def stand_still(self):
        self.server.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.server.process.pid, os.WUNTRACED)  # until it stands
        self.addCleanup(self.server.process.send_signal, signal.SIGCONT)

    def test_the_server_is_killed_and_started_again(self):
        for direct in (False, True):
            with self.subTest(direct=direct):
                self.killed(direct)

    def killed(self, direct):
        e, keys = self.engine(chunks=80, size=2 << 20, direct=direct), chain(40, str(direct))
        e.store(keys)
        e.torn = direct
        began, done = threading.Event(), []

        def read():
            while not done or all(done[-1]):
                done.append(e.load(keys))  # compares what landed
                began.set()

        reader = threading.Thread(target=read)
        reader.start()
        self.assertTrue(began.wait(300))
        self.server.kill()
        reader.join(300)
        self.assertFalse(reader.is_alive())
        self.assertEqual(e.load(keys), [False] * 40)
        e.forget()
        e.store(chain(2, "lost"))
        self.assertGreaterEqual(e.tier.counters()["written_missed"], 2)
        self.server.start()

        def stored():
            e.forget()
            e.store(chain(2, "new"))
            return e.load(chain(2, "new")) == [True] * 2

        eventually(stored, 120)
        e.torn = False
        eventually(lambda: [e.load(keys), straight(e) == direct][1], 120)

    def test_a_server_that_is_not_there_yet(self):
        self.server.kill()
        e, keys = self.engine(), chain(2)
        e.store(keys)
        self.assertEqual(e.load(keys), [False] * 2)
        self.server.start()

        def stored():
            e.forget()
            e.store(keys)
            return e.load(keys) == [True] * 2

        eventually(stored, 120)

    def test_a_lookup_that_nobody_answers_is_a_miss(self):
        e, keys = self.engine(lookup_timeout=0.05), chain(2)
        e.store(keys)
        self.stand_still()
        self.assertEqual(e.load(keys), [False] * 2)
        self.server.process.send_signal(signal.SIGCONT)
        eventually(lambda: e.load(keys) == [True] * 2)

    def test_a_load_past_its_deadline(self):
        e, keys = self.engine(load_timeout=0.2, store_timeout=0.2, direct=False), chain(2)
        eventually(lambda: [e.forget(), e.store(keys), e.load(keys)][2] == [True] * 2)
        e.forget()
        self.stand_still()
        jobs = [e.job(keys, [0, 1]), e.job(chain(2, "b"), [2, 3], False)]
        e.tier.submit_load(jobs[0])
        e.tier.submit_store(jobs[1])
        done = []
        eventually(lambda: done.extend(e.tier.get_finished_jobs()) or len(done) == 2)
        self.assertEqual({r.job_id: r.success for r in done}, {j.job_id: False for j in jobs})
        self.server.process.send_signal(signal.SIGCONT)
        self.assertTrue((e.memory == 0xEE).all())
        eventually(lambda: e.load(keys) == [True] * 2)

    def test_memory_that_was_taken_back_is_not_written(self):
        for end in ("drain_jobs", "shutdown"):
            with self.subTest(end):
                e, keys = self.engine(drain_timeout=0.1, direct=False), chain(8)
                e.store(keys)
                e.forget()
                self.stand_still()
                jobs = [e.job(keys, range(8)) for _ in range(4)] + [e.job(chain(8, end), range(8), False)]
                for job in jobs:
                    (e.tier.submit_load if job.is_promotion else e.tier.submit_store)(job)
                eventually(lambda: len(e.tier._running) == 3)
                getattr(e.tier, end)()
                done = e.tier.get_finished_jobs()
                self.assertEqual({r.job_id: r.success for r in done}, {j.job_id: False for j in jobs})
                self.server.process.send_signal(signal.SIGCONT)
                if end == "shutdown":
                    for t in e.tier._threads:
                        t.join(60)
                    self.assertFalse(any(t.is_alive() for t in e.tier._threads))
                    e.tier.submit_load(jobs[0])
                    self.assertEqual([r.success for r in e.tier.get_finished_jobs()], [False])
                    self.assertEqual(e.tier.lookup(keys[0], ReqContext("late")), LookupResult.RETRY)
                    e.tier.on_schedule_end(None)
                    self.assertEqual(e.tier.lookup(keys[0], ReqContext("late")), LookupResult.MISS)
                else:
                    eventually(lambda: e.load(keys) == [True] * 8)
                    e.blank()
                self.assertTrue((e.memory == 0xEE).all())

    def under_way(self, e, keys):
        """A server that stands still has vLLM's memory for loads of keys and a store. The jobs."""
        e.store(keys)
        self.assertEqual(e.load(keys), [True] * len(keys))
        self.assertTrue(straight(e))
        e.forget()
        self.stand_still()
        jobs = [e.job(keys, range(8)) for _ in range(4)] + [e.job(chain(8, "more"), range(8), False)]
        for job in jobs:
            (e.tier.submit_load if job.is_promotion else e.tier.submit_store)(job)
        eventually(lambda: [j.gate.lent for j in list(e.tier._running) if j.load] == [1, 1])
        return jobs

    def test_memory_that_the_server_has_is_waited_for(self):
        e, keys = self.engine(drain_timeout=0.1), chain(8)
        jobs = self.under_way(e, keys)
        drain = threading.Thread(target=e.tier.drain_jobs)
        drain.start()
        eventually(lambda: len(e.tier._done) == 3)  # two that had not begun, and the store, which asked what is there
        self.assertTrue(drain.is_alive())
        self.server.process.send_signal(signal.SIGCONT)
        drain.join(300)
        self.assertFalse(drain.is_alive())
        done = {r.job_id: r.success for r in e.tier.get_finished_jobs()}
        self.assertEqual(sorted(done), sorted(j.job_id for j in jobs), "each is told of once")
        self.assertEqual(e.tier._running, set())
        e.blank()
        eventually(lambda: e.load(keys) == [True] * 8)

    def test_memory_that_the_server_has_at_the_end_stays_mapped(self):
        e, keys = self.engine(drain_timeout=0.1), chain(8)
        self.under_way(e, keys)
        e.tier.shutdown()
        self.assertIs(skepkv._region._kept[-1], e.tier._region._flat)
        e.close()  # vLLM keeps it mapped, and says so
        self._cleanups = [c for c in self._cleanups if c[0] != e.close]
        self.server.process.send_signal(signal.SIGCONT)
        for t in e.tier._threads:
            t.join(300)
        self.assertFalse(any(t.is_alive() for t in e.tier._threads))

    def test_a_load_past_its_deadline_that_the_server_has(self):
        e, keys = self.engine(load_timeout=0.2), chain(2)
        eventually(lambda: [e.forget(), e.store(keys), e.load(keys)][2] == [True] * 2)
        e.forget()
        self.stand_still()
        job = e.job(keys, [0, 1])
        e.tier.submit_load(job)
        eventually(lambda: e.tier._region._busy, 120)  # it is late, and the server may yet write
        self.assertEqual(e.tier.get_finished_jobs(), [])
        self.server.process.send_signal(signal.SIGCONT)
        done = []
        eventually(lambda: done.extend(e.tier.get_finished_jobs()) or done)
        self.assertEqual([(r.job_id, r.success) for r in done], [(job.job_id, False)])
        e.blank()
        eventually(lambda: e.load(keys) == [True] * 2)

    def test_over_tcp(self):
        e, keys = self.engine(url=f"127.0.0.1:{self.server.port}"), chain(5)
        e.store(keys)
        self.assertEqual(e.load(keys), [True] * 5)


class TestToken(OnServer):
    token = True

    def test_a_wrong_token_is_a_miss_and_a_right_one_is_not(self):
        keys = chain(2)
        with self.assertLogs("skepkv.vllm", "WARNING") as logs:
            e = self.engine(token="another token of the tests")
            e.store(keys)
            self.assertEqual(e.load(keys), [False] * 2)
        self.assertEqual(sum("denied" in line for line in logs.output), 1, "said once")
        path = os.path.join(self.server.dir, "token")
        with open(path, "w", encoding="utf-8") as f:
            f.write(TOKEN + "\n")
        e = self.engine(token_file=path)
        e.store(keys)
        self.assertEqual(e.load(keys), [True] * 2)


if __name__ == "__main__":
    unittest.main()
