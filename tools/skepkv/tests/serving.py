"""A real skep server for the tests: SKEP_BINARY names the program."""

import hashlib
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.parse
from xml.sax.saxutils import escape, unescape

import skepkv

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


def cut(memory, *lengths):
    """A place for a block, in pieces of these lengths: they lie in memory from its end to its begin, a byte between two
    of them."""
    view, end, pieces = memoryview(memory), len(memory), []
    for n in lengths:
        pieces.append(view[end - n : end])
        end -= n + 1
    return pieces


def laid(block, *lengths):
    """What memory cut that way is, where the block is in its place and nothing else."""
    out, at = b"", 0
    for n in lengths:
        out, at = block[at : at + n] + b"\0" + out, at + n
    return out[:-1]


class Server:
    """A server of a store in a directory of its own, until stop. It can be killed and started again."""

    def __init__(
        self,
        token=False,
        capacity="512MiB",
        block="",
        tls=False,
        events=False,
        bucket=None,
        lockstep=False,
        shared="",
        devices=1,
        rights="read, write",
    ):
        self.capacity, self.devices = capacity, devices
        self.environment = {**os.environ, **({"SKEP_STORE_BLOCK_BYTES": block} if block else {})}
        if shared:
            self.environment["SKEP_LIMITS_SHARED_BYTES"] = shared
        if lockstep:
            self.environment["SKEP_REDIS_LOCKSTEP"] = "127.0.0.1:0"
        self.dir = tempfile.mkdtemp(prefix="skepkv")
        self._pid = os.getpid()
        self.socket = os.path.join(self.dir, "s")
        self.url = "unix:" + self.socket
        self.config = None
        if token:
            self.config = os.path.join(self.dir, "config.yaml")
            with open(self.config, "w", encoding="utf-8") as f:
                f.write(
                    "credentials:\n  - {name: test, tenant: mine, rights: ["
                    + rights
                    + "], token_sha256: "
                    + hashlib.sha256(TOKEN.encode()).hexdigest()
                    + "}\n"
                )
        if bucket:
            self.config = os.path.join(self.dir, "config.yaml")
            with open(self.config, "w", encoding="utf-8") as f:
                f.write("bucket: " + json.dumps(bucket))
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
            "--file-devices",
            str(self.devices),
            "--capacity",
            self.capacity,
            "--http",
            "none",
            "--resp",
            "127.0.0.1:0" if "SKEP_REDIS_LOCKSTEP" in self.environment else "none",
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
        self.port = self.lockstep = self.resp = None
        for line in self.process.stdout:
            protocol, _, port = line.partition(" ")[0], *line.rpartition(":")[1:]
            if protocol == "zmq":
                self.zmq = int(port)
            if protocol == "lockstep":
                self.lockstep = int(port)
            if protocol == "resp":
                self.resp = int(port)
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

    def stop_and_keep(self):
        """Stops as an operator does. What is stored stays."""
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()

    def stop(self):
        """In a forked process it does nothing: there Popen takes a server that runs for one that has ended."""
        if os.getpid() != self._pid:
            return
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.dir, ignore_errors=True)


class S3(http.server.BaseHTTPRequestHandler):
    """The calls of S3 that skep makes, of one bucket, without a look at who asks."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status=200, body=b"", **headers):
        self.send_response(status)
        for name, value in {"ETag": '"x"', "Last-Modified": "Thu, 01 Jan 1970 00:00:00 GMT", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def name(self):
        return urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).removeprefix("/blocks").lstrip("/")

    def do_PUT(self):
        body, out = self.rfile.read(int(self.headers["Content-Length"])), b""
        while self.headers.get("X-Amz-Content-Sha256", "").startswith("STREAMING") and body:
            head, _, rest = body.partition(b"\r\n")  # a signed body comes in frames
            n = int(head.partition(b";")[0], 16)
            out, body = out + rest[:n], rest[n + 2 :] if n else b""
        self.server.objects[self.name()] = out or body
        self.answer()

    def do_POST(self):
        """Deletes what is named: the only POST that the server makes."""
        for name in re.findall(rb"<Key>(.*?)</Key>", self.rfile.read(int(self.headers["Content-Length"]))):
            self.server.objects.pop(unescape(name.decode()), None)
        self.answer(body=b"<DeleteResult></DeleteResult>")

    def do_GET(self):
        asked = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        if "list-type" in asked:
            entries = "".join(
                f"<Contents><Key>{escape(name)}</Key><Size>{len(body)}</Size></Contents>"
                for name, body in sorted(self.server.objects.items())
                if name.startswith(asked.get("prefix", [""])[0])
            )
            return self.answer(body=f"<ListBucketResult>{entries}</ListBucketResult>".encode())
        body = self.server.objects.get(self.name())
        if body is None:
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        if "Range" not in self.headers:
            return self.answer(body=body)
        first, last = (int(n) for n in self.headers["Range"].removeprefix("bytes=").split("-"))
        last = min(last, len(body) - 1)
        self.answer(206, body[first : last + 1], **{"Content-Range": f"bytes {first}-{last}/{len(body)}"})


class ObjectStorage:
    """A server of S3 in this process, until stop, and the settings with which all that is chained is sent there at
    once."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="skepkv")
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), S3)
        self._server.daemon_threads, self._server.objects = True, {}
        self._server.handle_error = lambda *_: None  # who asked has gone
        self.objects = self._server.objects
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.settings = {
            "endpoint": f"http://127.0.0.1:{self._server.server_address[1]}",
            "bucket": "blocks",
            "region": "us-east-1",
            "key_file": self._file("key", "5e" * 32),
            "credentials_file": self._file("credentials", "id\nsecret\n"),
            "begin_at": 1e-9,
            "unfound": True,
            "every": "10ms",
        }

    def _file(self, name, text):
        path = os.path.join(self.dir, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def size(self):
        return sum(len(body) for body in list(self.objects.values()))

    def stop(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
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
            + ["--file-devices", "1", "--capacity", "256MiB", "--http", "none", "--resp", "none"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for line in process.stdout:
            if line.startswith("wire"):
                return process
        process.stdout.close()
        raise AssertionError(f"skep serve ended with {process.wait()}")

    def start(self, name, wiped=False):
        """Starts a node again, with what it had or without."""
        if wiped:
            shutil.rmtree(os.path.join(self.dir, "store-" + name))
        self.processes[name] = self._start(name)

    def repair(self):
        """How many copies are missing when the nodes have repaired."""
        out = subprocess.run(
            [binary(), "cluster", "repair", "--server", f"unix:{self.dir}/a", "--json"],
            capture_output=True,
            text=True,
            timeout=300,
        )
        return json.loads(out.stdout)["missing"]

    def kill(self, name):
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()

    def stop(self):
        for name in list(self.processes):
            self.kill(name)
        shutil.rmtree(self.dir, ignore_errors=True)


def shut(store):
    """Closes a store whose calls may be under way, and says whether their memory is free: a server that needs more than
    a second for its goodbye may still use it, and close says so. The store is closed all the same."""
    try:
        store.close()
    except skepkv.NotReleased:
        return False
    return True


def differing(server, engine, count):
    """Names of the values that `skep doctor keys` says differ among an engine's processes, when so many settings of it
    have been told."""

    def told():
        out = subprocess.run(
            [binary(), "doctor", "keys", "--server", server.url, "-o", "json"],
            capture_output=True,
            text=True,
            timeout=60,
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
