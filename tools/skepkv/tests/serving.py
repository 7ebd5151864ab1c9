"""A real skep server for the tests: SKEP_BINARY names the program."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

TOKEN = "token-of-the-skepkv-tests"


def binary():
    name = os.environ.get("SKEP_BINARY") or shutil.which("skep")
    if not name:
        raise unittest.SkipTest("SKEP_BINARY names no skep to run, and there is none on PATH")
    return name


def certificate(directory, name="server"):
    """A certificate of 127.0.0.1 that signs itself, and its key."""
    if not shutil.which("openssl"):
        raise unittest.SkipTest("there is no openssl to make a certificate with")
    cert, key = (os.path.join(directory, name + end) for end in (".pem", ".key"))
    args = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    args += ["-days", "2", "-subj", "/CN=skep", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert]
    subprocess.run(args, check=True, capture_output=True)
    return cert, key


class Server:
    """A server of a store in a directory of its own, until stop. It can be killed and started again."""

    def __init__(self, token=False, capacity="512MiB", block="", tls=False, events=False):
        self.capacity = capacity
        self.environment = {**os.environ, **({"SKEP_STORE_BLOCK_BYTES": block} if block else {})}
        self.dir = tempfile.mkdtemp(prefix="skepkv")
        self.socket = os.path.join(self.dir, "s")
        self.url = "unix:" + self.socket
        self.config = None
        if token:
            self.config = os.path.join(self.dir, "config.yaml")
            with open(self.config, "w", encoding="utf-8") as f:
                f.write(
                    "credentials:\n  - {name: test, tenant: mine, rights: [read, write], token_sha256: "
                    + hashlib.sha256(TOKEN.encode()).hexdigest()
                    + "}\n"
                )
        if tls:
            self.cert, key = certificate(self.dir)
            self.config = os.path.join(self.dir, "config.yaml")
            with open(self.config, "w", encoding="utf-8") as f:
                f.write(f"tls: {{cert: {self.cert}, key: {key}}}\n")
        self.process, self.zmq, self.replay = None, 0, 0  # ports of KV events: any at first, then the same
        self.events = events
        self.start()

    def start(self):
        if self.events:
            self.environment.update(SKEP_EVENTS_ZMQ=f":{self.zmq}", SKEP_EVENTS_ZMQ_REPLAY=f":{self.replay}")
            self.environment.update(SKEP_EVENTS_NODE="node-1")
        args = [
            binary(),
            "serve",
            "--dir",
            os.path.join(self.dir, "store"),
            "--devices",
            "1",
            "--capacity",
            self.capacity,
            "--http",
            "none",
            "--resp",
            "none",
            "--listen",
            "127.0.0.1:0",
            "--unix",
            self.socket,
        ]
        if self.config:
            args += ["--config", self.config]
        self.process = subprocess.Popen(
            args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment
        )
        self.port = None
        for line in self.process.stdout:
            protocol, _, port = line.partition(" ")[0], *line.rpartition(":")[1:]
            if protocol == "zmq":
                self.zmq = int(port)
            if protocol == "zmq_replay":
                self.replay = int(port)
            if line.startswith("wire") and "127.0.0.1" in line:
                self.port = int(line.rsplit(":", 1)[1])
            if line.startswith("wire") and "unix:" in line:
                return
        self.process.stdout.close()
        raise AssertionError(f"skep serve ended with {self.process.wait()}")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.dir, ignore_errors=True)


class Cluster:
    """Three servers that are one cluster, each block of a chain on two of them. url is the first one's, by a path that
    the map does not have."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="skepkv")
        self.map = os.path.join(self.dir, "map.yaml")
        nodes = "".join(
            f"  - {{id: {i + 1}, name: {name}, addr: 'unix:{self.dir}/{name}', weight: 1}}\n"
            for i, name in enumerate("abc")
        )
        with open(self.map, "w", encoding="utf-8") as f:
            f.write(f"epoch: 1\nseed: {'5e' * 16}\ngroup: 4\nreplicas: 2\nnodes:\n{nodes}")
        self.processes = {name: self._start(name) for name in "abc"}
        os.symlink(os.path.join(self.dir, "a"), os.path.join(self.dir, "near"))
        self.url = f"unix:{self.dir}/near"

    def _start(self, name):
        process = subprocess.Popen(
            [binary(), "serve", "--cluster", self.map, "--node", name, "--dir", os.path.join(self.dir, "store-" + name)]
            + ["--devices", "1", "--capacity", "256MiB", "--http", "none", "--resp", "none"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for line in process.stdout:
            if line.startswith("wire"):
                return process
        process.stdout.close()
        raise AssertionError(f"skep serve ended with {process.wait()}")

    def kill(self, name):
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()

    def stop(self):
        for name in list(self.processes):
            self.kill(name)
        shutil.rmtree(self.dir, ignore_errors=True)


def differing(server, engine, count):
    """Names of the values that `skep doctor keys` says differ among an engine's processes, when so many settings of it
    have been told."""

    def told():
        out = subprocess.run(
            [binary(), "doctor", "keys", "--server", server.url, "-o", "json"], capture_output=True, text=True, timeout=60
        )
        groups = [g for g in json.loads(out.stdout).get("groups", []) if g["engine"] == engine]
        if sum(len(g["settings"]) for g in groups) < count:
            return None
        return [{d["field"] for d in g["differ"]} for g in groups]

    return eventually(told)


def eventually(test, within=60.0):
    """Waits until test() is true, with a minute's patience."""
    until = time.monotonic() + within
    while not (got := test()):
        if time.monotonic() > until:
            raise AssertionError("it did not come about within a minute")
        time.sleep(0.01)
    return got
