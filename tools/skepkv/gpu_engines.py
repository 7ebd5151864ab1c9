#!/usr/bin/env python3
"""Runs engines for real, on a GPU, with skep behind them, and says what was seen, one JSON line an engine.

    gpu_engines.py [--model MODEL] [--tokens N] [--skep PROGRAM] [ENGINE ...]

ENGINE is vllm or sglang; both by default. Each has a skep server of its own, on files, and is configured as
docs/tutorials say. It is asked to go on with a prompt, which it computes and stores, and stopped. Started anew, its GPU
and host memory know nothing: it is asked for a prompt of the same length that nobody stored, and for the first one.

    same        the text of the first prompt was the same both times (greedy decoding)
    restored    bytes that skep gave back for it
    computed_s  to the first token of what nobody stored, in seconds; loaded_s, of what was
    why         what was missing, where it was not run

Exit status: 0 where every engine that was run wrote the same text and skep gave back bytes for it, or none could be
run.
"""

import argparse
import http.client
import json
import os
import random
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

# Seconds until an engine answers, goes on with a prompt, has stored one.
START, ANSWER, STORED = 900, 300, float(os.environ.get("SKEP_GPU_ENGINES_STORED", "120"))


def vllm(model, port, sock):
    tier = {"type": "SkepTier", "module_path": "skepkv.vllm", "url": "unix:" + sock, "revision": "1"}
    extra = {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 4 << 30,
        "blocks_per_chunk": 4,
        "secondary_tiers": [tier],
    }
    config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    beside = os.path.join(os.path.dirname(sys.executable), "vllm")  # of the environment whose version is told
    program = beside if os.path.exists(beside) else "vllm"
    return [program, "serve", model, "--port", str(port), "--kv-transfer-config", json.dumps(config)]


def sglang(model, port, sock):
    extra = {
        "backend_name": "skep",
        "module_path": "skepkv.sglang",
        "class_name": "Storage",
        "interface_v1": 1,
        "hicache_storage_pass_prefix_keys": True,
        "url": "unix:" + sock,
        "revision": "1",
    }
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", model, "--port", str(port)]
    command += ["--page-size", "64", "--enable-hierarchical-cache", "--hicache-mem-layout", "page_first"]
    command += ["--hicache-storage-backend", "dynamic", "--hicache-storage-backend-extra-config", json.dumps(extra)]
    return command


ENGINES = {"vllm": vllm, "sglang": sglang}


class Missing(Exception):
    """It cannot be run here."""


class Failed(Exception):
    """It was run, and did not do what it should."""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def fetch(url, timeout=10):
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read().decode()


class Process:
    """A program until the end of a with, whose output goes to a file."""

    def __init__(self, name, command, log, ready, patience, environment=None):
        self.name, self.log, self.ready, self.patience = name, log, ready, patience
        self.command, self.environment = command, environment

    def __enter__(self):
        with open(self.log, "ab") as log:
            try:
                self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=self.environment)
            except OSError as error:
                raise Failed(f"{self.name} did not start: {error}") from error
        try:
            return self.wait()
        except BaseException:
            self.__exit__()
            raise

    def wait(self):
        until = time.monotonic() + self.patience
        while True:
            try:
                fetch(self.ready)
                return self
            except (OSError, http.client.HTTPException):
                pass
            if self.process.poll() is not None or time.monotonic() > until:
                with open(self.log, errors="replace") as log:
                    raise Failed(f"{self.name} did not answer; the end of its log: {log.read()[-2000:]}")
            time.sleep(0.2)

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def prompt(seed, tokens):
    rng = random.Random(seed)
    return "Numbers: " + " ".join(str(rng.randrange(10)) for _ in range(tokens // 2))


def go_on(port, model, text):
    """What a model goes on with, and seconds to the first of it."""
    asked = {"model": model, "prompt": text, "max_tokens": 32, "temperature": 0, "stream": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    began, first, out = time.perf_counter(), None, ""
    with urllib.request.urlopen(request, timeout=ANSWER) as answer:
        for line in answer:
            line = line.decode().strip()
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            piece = json.loads(line[6:])["choices"][0].get("text", "")
            if piece and first is None:
                first = time.perf_counter() - began
            out += piece
    if first is None:
        raise Failed("the engine went on with nothing")
    return out, first


def metric(url, name):
    """The sum of a metric's series whose names begin so."""
    values = (line.rsplit(" ", 1)[1] for line in fetch(url + "/metrics").splitlines() if line.startswith(name))
    return sum(float(v) for v in values)


def stored(url, before):
    """Waits until more blocks are there than before, and for two seconds no more come: how many."""
    until, last, since = time.monotonic() + STORED, before, time.monotonic()
    while time.monotonic() < until:
        if (now := metric(url, "skep_blocks ")) != last:
            last, since = now, time.monotonic()
        if last > before and time.monotonic() - since > 2:
            return int(last - before)
        time.sleep(0.2)
    raise Failed("the engine stored nothing")


def one(name, o, command):
    with tempfile.TemporaryDirectory(prefix="skep-gpu-engines-") as directory:
        sock, log = os.path.join(directory, "skep.sock"), os.path.join(directory, name + ".log")
        port, web = free_port(), free_port()
        serve = [o.skep, "serve", "--dir", os.path.join(directory, "kv"), "--capacity", o.capacity, "--unix", sock]
        serve += ["--listen", "none", "--resp", "none", "--http", f"127.0.0.1:{web}"]
        url = f"http://127.0.0.1:{web}"
        environment = {**os.environ, "PYTHONHASHSEED": "0", "SKEP_STORE_BLOCK_BYTES": o.block}
        argv = command(o.model, port, sock)

        def engine():
            return Process(name, argv, log, f"http://127.0.0.1:{port}/health", START, environment)

        with Process("skep", serve, os.path.join(directory, "skep.log"), url + "/metrics", 60, environment):
            with engine():
                go_on(port, o.model, prompt(0, 64))
                before = metric(url, "skep_blocks ")  # connectors note what their keys are
                first, _ = go_on(port, o.model, prompt(1, o.tokens))
                blocks = stored(url, before)
            with engine():
                go_on(port, o.model, prompt(2, 64))
                _, computed = go_on(port, o.model, prompt(3, o.tokens))
                before = metric(url, "skep_restored_bytes_total")
                again, loaded = go_on(port, o.model, prompt(1, o.tokens))
                restored = int(metric(url, "skep_restored_bytes_total") - before)
        return {
            "same": first == again,
            "restored": restored,
            "stored": blocks,
            "computed_s": round(computed, 4),
            "loaded_s": round(loaded, 4),
        }


def gpu():
    """The machine's GPUs."""
    if not shutil.which("nvidia-smi"):
        raise Missing("no nvidia-smi, so no GPU")
    said = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    if said.returncode or not said.stdout.strip():
        raise Missing("nvidia-smi finds no GPU: " + (said.stderr or said.stdout).strip())
    return said.stdout.strip().splitlines()


def version(package):
    said = subprocess.run(
        [sys.executable, "-c", f"import importlib.metadata as m; print(m.version({package!r}))"],
        capture_output=True,
        text=True,
    )
    if said.returncode:
        raise Missing(f"{sys.executable} has no {package}")
    return said.stdout.strip()


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("engines", nargs="*", metavar="ENGINE", help="vllm, sglang; both by default")
    p.add_argument("--model", default="Qwen/Qwen3-0.6B", help="name or directory (default %(default)s)")
    p.add_argument("--tokens", type=int, default=8000, help="of a prompt, about (default %(default)s)")
    program = os.environ.get("SKEP_BINARY", "bin/skep")
    p.add_argument("--skep", default=program, help="the program (default %(default)s)")
    p.add_argument("--capacity", default="16GiB", help="of the store (default %(default)s)")
    p.add_argument("--block", default="8MiB", help="store.block_bytes (default %(default)s)")
    instead = "what is run in an engine's place, with {port}, {sock} and {model} filled in; it needs no GPU"
    p.add_argument("--command", action="append", default=[], metavar="ENGINE=COMMAND", help=instead)
    o = p.parse_args(argv)
    for c in o.command:
        if "=" not in c:
            p.error(f"--command is {c!r}, must be ENGINE=COMMAND")
    instead = dict(c.split("=", 1) for c in o.command)
    names = o.engines or sorted(ENGINES)
    for name in [*names, *instead]:
        if name not in ENGINES:
            p.error(f"engine is {name!r}, must be one of {', '.join(sorted(ENGINES))}")
    if o.tokens < 1000:
        p.error(f"--tokens is {o.tokens}, must be 1000 or more: a shorter prompt is no chunk")
    well = True
    for name in names:
        row = {"engine": name, "ran": False, "model": o.model, "tokens": o.tokens}
        command = ENGINES[name]
        try:
            if name in instead:
                row["command"] = instead[name]

                def command(model, port, sock, text=instead[name]):
                    return [w.format(model=model, port=port, sock=sock) for w in shlex.split(text)]

            else:
                row["gpu"], row["version"], row["skepkv"] = gpu(), version(name), version("skepkv")
            row.update(one(name, o, command), ran=True)
            well = well and row["same"] and row["restored"] > 0
        except Missing as why:
            row["why"] = str(why)
        except (Failed, OSError, ValueError, LookupError, http.client.HTTPException) as why:
            row.update(ran=True, why=str(why))
            well = False
        print(json.dumps(row), flush=True)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
