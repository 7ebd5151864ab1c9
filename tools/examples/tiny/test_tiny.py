"""The tiny engine against a real server and in this process. SKEP_BINARY names the program."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "skepkv", "tests"))
sys.path.insert(0, HERE)

try:
    from engine import BLOCK, CHUNK, Engine, Shape, _Meeting  # before NumPy: it has that sum in one order
except ModuleNotFoundError as e:
    if e.name != "numpy":
        raise
    raise unittest.SkipTest("there is no numpy") from None

import numpy as np
import skepkv
from serving import Server

TOKENS = 4 * CHUNK


def prompt(number, tokens=TOKENS):
    return np.random.default_rng(number).integers(0, Shape().vocabulary, tokens)


def ask(*args):
    """A process of its own, as after a restart."""
    args = [sys.executable, os.path.join(HERE, "engine.py"), "-o", "json", "--prompt-tokens", str(TOKENS), *args]
    run = subprocess.run(args, capture_output=True, text=True, timeout=300, check=False)
    if run.returncode:
        raise AssertionError(run.stderr)
    return json.loads(run.stdout)


class Restarts(unittest.TestCase):
    """The prefix is computed by one process and loaded by another one, and the logits are the same bits."""

    @classmethod
    def setUpClass(cls):
        engine = Engine(Shape(), None, TOKENS)
        cls.alone = engine.ask(prompt(1)).digest()
        engine.close()

    def check(self, where, restart):
        first = ask(*where)
        self.assertEqual((first["found"], first["stored"], first["logits"]), (0, TOKENS, self.alone))
        restart()
        again = ask(*where)
        self.assertEqual((again["found"], again["stored"], again["logits"]), (TOKENS, 0, self.alone))
        self.assertGreater(again["loaded"], 0)
        other = ask(*where, "--seed", "8")
        self.assertEqual(other["found"], 0, "KV of other weights is not this model's")
        self.assertNotEqual(other["logits"], self.alone)
        self.assertEqual(ask(*where, "--prompt", "2")["found"], 0)

    def serve(self):
        server = Server()
        self.addCleanup(server.stop)

        def restart():
            server.process.terminate()
            server.process.wait()
            server.process.stdout.close()
            server.start()

        return server, restart

    def test_unix_socket_and_shared_memory(self):
        server, restart = self.serve()
        self.check(["--server", server.url], restart)

    def test_tcp(self):
        server, _ = self.serve()
        self.check(["--server", f"127.0.0.1:{server.port}"], lambda: None)

    def test_embedded(self):
        where = tempfile.mkdtemp(prefix="tiny")
        self.addCleanup(shutil.rmtree, where, True)
        self.check(["--embed", where], lambda: None)


class Store(unittest.TestCase):
    def setUp(self):
        self.server = Server()
        self.addCleanup(self.server.stop)
        self.store = skepkv.connect(self.server.url)
        self.addCleanup(self.store.close)

    def engine(self, **o):
        e = Engine(Shape(**o), self.store, TOKENS)
        self.addCleanup(e.close)
        return e

    def test_pages_are_loaded_in_place(self):
        self.assertIsNotNone(self.engine().registered)

    def test_a_hole_ends_the_prefix_and_changes_no_bit(self):
        e = self.engine()
        want = e.ask(prompt(1)).digest()
        hole = 2 * CHUNK // BLOCK + 3
        self.assertEqual(e.space.delete([e.names(prompt(1))[hole]]), 1)
        got = e.ask(prompt(1))
        self.assertEqual((got.found, got.digest()), (hole * BLOCK, want))
        self.assertEqual(e.ask(prompt(1)).found, TOKENS)

    def test_what_is_not_loaded_is_computed(self):
        e = self.engine()
        want = e.ask(prompt(1)).digest()
        restore = e.space.restore

        def lossy(names, into, lease=None):
            got = restore(names, into, lease)
            into[0][:] = bytes(len(into[0]))
            return skepkv.Restored(bytes([21]) + got.codes[1:])

        e.space.restore = lossy
        self.assertEqual(e.ask(prompt(1)).digest(), want)
        self.server.kill()
        e.space.restore = restore
        got = e.ask(prompt(1))
        self.assertEqual((got.found, got.stored, got.digest()), (0, 0, want))
        self.server.start()

    def test_pages_that_a_drive_may_write_to_are_not_used_again(self):
        e = self.engine()
        e.ask(prompt(1))
        free = len(e.cache.free)

        def held(*_):
            raise skepkv.NotReleased(18, "held")

        e.space.restore = held
        with self.assertRaises(skepkv.NotReleased):
            e.ask(prompt(1))
        self.assertEqual(len(e.cache.free), free - TOKENS // BLOCK)

    def test_a_longer_prompt_goes_on_behind_what_is_there(self):
        e = self.engine()
        long = prompt(3)
        e.ask(long[: 2 * CHUNK])
        got = e.ask(long)
        self.assertEqual((got.found, got.stored), (2 * CHUNK, 2 * CHUNK))
        self.assertEqual(got.digest(), e.ask(long, use=False).digest())

    def test_prompts_of_other_lengths_are_refused(self):
        e = self.engine()
        for n in (0, 1, CHUNK + 1):
            with self.assertRaisesRegex(ValueError, f"{n} tokens"):
                e.ask(prompt(1, n))


class Meeting(unittest.TestCase):
    """Every chunk is computed or loaded, whoever is quicker."""

    def test_they_meet(self):
        for first in range(8):
            m = _Meeting(7)
            done = [i for i in range(first) if m.compute(i)]
            for part in m.parts():
                done += part
                m.landed(dict.fromkeys(part, True))
            done += [i for i in range(first, 9) if m.compute(i)]
            self.assertEqual(sorted(done), list(range(9)))

    def test_what_did_not_come_is_computed(self):
        m = _Meeting(3)
        for part in m.parts():
            m.landed({i: i != 1 for i in part})
        self.assertEqual([m.compute(i) for i in range(4)], [False, True, False, True])


if __name__ == "__main__":
    unittest.main()
