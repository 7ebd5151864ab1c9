"""What gpu_engines.py says of engines, shown with one that needs no GPU in their place."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

from serving import binary

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "..", "gpu_engines.py")
DOCS = os.path.join(HERE, "..", "..", "..", "docs", "tutorials")
sys.path.insert(0, os.path.join(HERE, ".."))
import gpu_engines  # noqa: E402


def run(*args, path=None, **environment):
    environment = {**os.environ, "SKEP_BINARY": binary(), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    if path is not None:
        environment["PATH"] = path
    done = subprocess.run([sys.executable, SCRIPT, *args], capture_output=True, text=True, env=environment)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def fake(how="", **environment):
    command = f"vllm={sys.executable} {os.path.join(HERE, 'fake_engine.py')} {{port}} {{sock}} {how}"
    sizes = ("--capacity", "64MiB", "--block", "64KiB", "--tokens", "1000")
    return run("vllm", *sizes, "--command", command, **environment)


class Engines(unittest.TestCase):
    def test_an_engine_that_loads_what_it_stored(self):
        code, (row,), _ = fake()
        self.assertEqual(code, 0, row)
        self.assertTrue(row["ran"] and row["same"], row)
        self.assertEqual((row["restored"], row["stored"]), (64, 1), row)
        self.assertIn("fake_engine.py", row["command"])

    def test_one_that_writes_something_else(self):
        code, (row,), _ = fake("wrong")
        self.assertEqual((code, row["same"]), (1, False), row)

    def test_one_that_stores_and_loads_nothing(self):
        code, (row,), _ = fake("computing")
        self.assertEqual((code, row["same"], row["restored"]), (1, True, 0), row)

    def test_one_that_stores_nothing(self):
        code, (row,), _ = fake("forgetful", SKEP_GPU_ENGINES_STORED="1")
        self.assertEqual((code, row["why"]), (1, "the engine stored nothing"), row)

    def test_one_that_does_not_answer(self):
        code, (row,), _ = run("vllm", "--command", "vllm=false", "--capacity", "64MiB")
        self.assertEqual((code, row["ran"]), (1, True))
        self.assertIn("vllm did not answer", row["why"])

    def test_without_a_gpu_nothing_is_run_and_said_so(self):
        with tempfile.TemporaryDirectory() as empty:
            code, rows, _ = run(path=empty)
        self.assertEqual((code, [(r["engine"], r["ran"]) for r in rows]), (0, [("sglang", False), ("vllm", False)]))
        for row in rows:
            self.assertIn("no GPU", row["why"])

    def test_what_cannot_be_asked_for(self):
        for args in (["nosuch"], ["--command", "nosuch=true"], ["--command", "vllm"], ["--tokens", "10"]):
            code, rows, said = run(*args)
            self.assertEqual((code, rows), (2, []), said)
            self.assertIn("must be", said)

    def test_engines_are_configured_as_the_tutorials_say(self):
        for name, command in gpu_engines.ENGINES.items():
            with open(os.path.join(DOCS, name + ".md")) as page:
                fence = re.search(r"## Give it to.*?```\n(.*?)```", page.read(), re.DOTALL)[1]
            words = command("MODEL", 1, "/run/skep/skep.sock")
            for flag in (w for w in words if w.startswith("--") and w not in ("--port", "-m")):
                self.assertIn(flag, fence)
            for key, value in re.findall(r'"(\w+)": ("[^"]*"|\w+)', words[-1]):
                if key in ("revision", "cpu_bytes_to_use"):
                    continue
                self.assertIn(f'"{key}":{value}', fence)
