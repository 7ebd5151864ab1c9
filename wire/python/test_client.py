"""Tests of skep_client: against the vectors of wire/testdata, and, when SKEP_ADDRESS
names a server (its token in SKEP_TOKEN), against that."""

import glob
import hashlib
import json
import os
import random
import socket
import threading
import unittest
import zlib
from unittest import mock

import skep_client as s

HERE = os.path.dirname(os.path.abspath(__file__))
VECTORS = os.path.join(HERE, "..", "testdata")


def load(name):
    text, meaning = "", None
    with open(os.path.join(VECTORS, name + ".hex"), encoding="utf-8") as f:
        for line in f:
            if line.startswith("# = "):
                meaning = json.loads(line[4:])
            elif not line.startswith("#"):
                text += line
    return bytes.fromhex(text), meaning


def unhex(k):
    return None if k is None else bytes.fromhex(k)


def keys(m):
    return [unhex(k) for k in m["keys"]]


def cost(m):
    return (m["fixed"], m["per_token"], m["per_token_squared"]) if m["cost"] else None


def blocks(m, payload):
    parts, at = [], 0
    for name, size, *_ in m["parts"]:
        parts.append((name, payload[at : at + size]))
        at += size
    return [s.Block(unhex(m["key"]), parts, m["valid"], unhex(m["replaces"]), m["name"].encode())]


def chain(m):
    shared = (m["offset"], m["length"], m["stride"]) if m["to"] == 1 else None
    return s.Chain(m["namespace"], keys(m), m["salt"], m["part"], m["direction"], m["lease"], m["priority"], m["deadline"],
                   m["blocks"], m["layers"], m["heads"], shared)


# How the client makes the body of each frame it sends, from its meaning and payload.
SENDS = {
    "hello": lambda m, p: s.hello(unhex(m["client"]), m["name"], m["token"], m["features"]),
    "ping": lambda m, p: b"",
    "open-namespace": lambda m, p: s.open_namespace(**{("class_" if k == "class" else k): v for k, v in m.items()}),
    "lookup": lambda m, p: s.lookup(m["namespace"], keys(m), m["salt"], m["lease"], m["tiers"], cost(m)),
    "lookup-runs": lambda m, p: s.lookup_runs(m["namespace"], [[unhex(k) for k in run] for run in m["runs"]], m["salt"], m["lease"], m["tiers"]),
    "renew": lambda m, p: s.renew(m["lease"], m["left"]),
    "release": lambda m, p: s.number(m["number"]),
    "want": lambda m, p: s.want(m["namespace"], keys(m), m["salt"], m["bytes"]),
    "put": lambda m, p: s.put(m["namespace"], blocks(m, p), m["salt"], unhex(m["parent"]), m["depth"], m["ack"], s.XXH3),
    "put-each": lambda m, p: s.put(m["namespace"], [s.Block(unhex(m["keys"][0]), [("kv", p[:16])]), s.Block(unhex(m["keys"][1]), [("kv", p[16:])])],
                                   m["salt"], ack=m["ack"], sum_kind=s.XXH3),
    "begin": lambda m, p: s.begin(m["namespace"], unhex(m["key"]), m["parts"], m["salt"], unhex(m["parent"]), m["depth"],
                                  m["name"].encode(), m["valid"], unhex(m["replaces"]), m["timeout"]),
    "write": lambda m, p: s.write(m["writer"], m["part"], m["offset"], p, m["sum"]),
    "commit": lambda m, p: s.commit(m["writer"], m["ack"]),
    "restore": lambda m, p: s.restore(m["window"], [chain(m)], m["ring"]),
    "restore-shared": lambda m, p: s.restore(m["window"], [chain(m)], m["ring"]),
    "costed-restore": lambda m, p: s.costed_restore([s.Cost(**c) for c in m["costs"]], m["window"], [chain(m)], m["ring"]),
    "claim-when": lambda m, p: s.claim_when(m["session"], m["chain"], m["range"], m["idle"]),
    "computed": lambda m, p: s.computed(m["session"], m["chain"], m["range"], m["took"], m["other"]),
    "costed-restore-either": lambda m, p: s.costed_restore([s.Cost(**c) for c in m["costs"]], m["window"], [chain(m)], m["ring"]),
    "direction": lambda m, p: s.direction(m["session"], m["chain"]),
    "credit": lambda m, p: s.credit(m["session"], m["amount"]),
    "claim": lambda m, p: s.claim(m["session"], m["chain"], m["range"]),
    "reprioritise": lambda m, p: s.reprioritise(m["session"], m["chain"], m["priority"], m["deadline"]),
    "stop": lambda m, p: s.stop(m["session"], m["chain"]),
    "end": lambda m, p: s.number(m["number"]),
    "hint": lambda m, p: s.hint(m["namespace"], keys(m), m["salt"], m["pin"], m["next_use"], m["steps"], m["ttl"], m["program"], m["drop"]),
    "delete": lambda m, p: s.delete(m["namespace"], keys(m), m["salt"]),
    "purge": lambda m, p: s.purge(m["tenant"], m["model"], m["namespace"], (m["scope_namespace"], m["scope_salt"]) if m["salted"] else None),
    "list": lambda m, p: s.list_keys(m["namespace"], m["from"], m["n"]),
    "events": lambda m, p: s.events(m["epoch"], m["seq"], m["snapshot"], m["credit"]),
    "admin": lambda m, p: s.admin(m["name"], m["json"]),
    "attach": lambda m, p: s.attach(m["size"], m["ring"], m["entries"]),
    "goodbye": lambda m, p: s.goodbye(m["after"], m["reason"]),
}


def shown(v):
    """v as the vectors show it: bytes as hexadecimal."""
    if isinstance(v, (bytes, bytearray)):
        return v.hex()
    if isinstance(v, dict):
        return {k: shown(x) for k, x in v.items()}
    if isinstance(v, (list, tuple)):
        return [shown(x) for x in v]
    return v


def pieces(body):
    out = s.read_chunks(body)
    for p in out:
        for one in p.get("sums", []):
            one[2:] = [f"{v:016x}" for v in one[2:]]
    return {"pieces": out}


# How the client reads the body of each frame the server sends.
READS = {
    "welcome": s.read_welcome,
    "welcome-node": s.read_welcome,
    "welcome-cluster": s.read_welcome,
    "error": s.read_error,
    "error-overloaded": s.read_error,
    "open-namespace-answer": s.read_namespace,
    "lookup-answer": s.read_lookup,
    "lookup-runs-answer": s.read_lookup_runs,
    "want-answer": lambda b: {"wants": s.read_wants(b)},
    "put-answer": lambda b: {"results": s.read_results(b)},
    "restore-answer": lambda b: {},
    "chunks": pieces,
    "chunks-last": pieces,
    "claim-answer": s.read_claim,
    "direction-answer": s.read_direction,
    "delete-answer": lambda b: {"number": s.read_number(b)},
    "list-answer": s.read_list,
    "event-batch": lambda b: {"events": s.read_events(b)},
    "goodbye": s.read_goodbye,
}


class Vectors(unittest.TestCase):
    def test_every_vector_is_known(self):
        names = {os.path.basename(p)[:-4] for p in glob.glob(os.path.join(VECTORS, "*.hex"))}
        self.assertEqual(names, set(SENDS) | set(READS) | {"ring-entry", "attach-memory"})

    def test_what_the_client_sends(self):
        for name, make in SENDS.items():
            with self.subTest(name):
                want, m = load(name)
                payload = unhex(m["payload"])
                body = make(m["body"], payload)
                self.assertEqual(s.encode_frame(m["type"], m["call"], body, payload, m["flags"], m["deadline"]).hex(), want.hex())

    def test_what_the_client_reads(self):
        for name, read in READS.items():
            with self.subTest(name):
                b, m = load(name)
                type_, flags, call, body_length, payload_length, deadline, body_sum = s.decode_header(b[:40])
                body, payload = b[40 : 40 + body_length], b[40 + body_length :]
                self.assertEqual([type_, flags, call, deadline, payload.hex()], [m["type"], m["flags"], m["call"], m["deadline"], m["payload"]])
                self.assertEqual(len(payload), payload_length)
                self.assertEqual(zlib.crc32(body), body_sum)
                self.assertEqual(shown(read(body)), m["body"])

    def test_chunks_are_covered_by_their_checksums(self):
        b, m = load("chunks")
        body = b[40:-16]
        p = s.read_chunks(body)[0]
        self.assertTrue(s.covered(b[-16:], p["sums"]))
        self.assertFalse(s.covered(b[-16:-1] + b"?", p["sums"]))

    def test_ring_entry(self):
        b, m = load("ring-entry")
        self.assertEqual(s.read_entry(b), m)
        self.assertIsNone(s.read_entry(b[:20] + b"?" + b[21:]))

    def test_xxh3(self):
        with open(os.path.join(VECTORS, "xxh3.json"), encoding="utf-8") as f:
            for row in json.load(f):
                data = bytes(i * 131 % 251 for i in range(row["len"]))
                with self.subTest(**row):
                    self.assertEqual(f"{s.xxh3_64(data, int(row['seed'], 16)):016x}", row["sum"])

    def test_bodies_that_are_cut_or_too_long_are_refused(self):
        for name, read in READS.items():
            b, m = load(name)
            body = b[40 : 40 + s.decode_header(b[:40])[3]]
            if not body:
                continue
            for bad in (body[:-1], body + b"\0"):
                with self.assertRaises(s.Broken, msg=name):
                    read(bad)

    def test_damaged_headers_are_refused(self):
        b, _ = load("ping")
        for i in range(40):
            with self.assertRaises(s.Broken):
                s.decode_header(b[:i] + bytes([b[i] ^ 1]) + b[i + 1 : 40])


class Addresses(unittest.TestCase):
    """Servers that do nothing but answer a hello, with a frame of the vectors; one with none hangs up."""

    def server(self, *answers):
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def answer():
            for body in answers:
                conn, _ = listener.accept()
                with conn, conn.makefile("rb") as f:
                    length = s.decode_header(f.read(s.HEADER_SIZE))[3]
                    f.read(length)
                    if body:
                        conn.sendall(body)
                        f.read()  # the goodbye, and the end

        thread = threading.Thread(target=answer)
        thread.start()
        self.addCleanup(thread.join)
        return "127.0.0.1:%d" % listener.getsockname()[1]

    def test_the_first_that_answers(self):
        away, welcome = "unix:/nonesuch", load("welcome")[0]
        hangs_up, other = self.server(b""), self.server(welcome, welcome)
        for address in (other, f"{away}, {hangs_up},{other},127.0.0.1:1"):
            with s.Client(address) as c:
                self.assertEqual("127.0.0.1:%d" % c.sock.getpeername()[1], other)
        with self.assertRaises(FileNotFoundError):
            s.Client(f"{away},{away}")
        with self.assertRaises(s.Broken):
            s.Client(f"{away},{self.server(b'')}")

    def test_all_addresses_have_the_timeout_together(self):
        """Each has its share of what those before it left: one that says nothing does not take it all."""
        class Silent:
            def __init__(self, seconds):
                self.seconds = seconds

            def settimeout(self, seconds):
                self.seconds = seconds

            def recv_into(self, _):
                clock[0] += self.seconds
                raise TimeoutError

            def sendall(self, _):
                clock[0] += 1  # a second until the hello is sent

            def close(self):
                pass

        def dial(address, _, until):
            shares.append((address, until - clock[0]))
            if address == "d:1":
                raise ConnectionRefusedError
            return Silent(until - clock[0])

        clock, shares = [100.0], []
        with mock.patch("time.monotonic", lambda: clock[0]), mock.patch.object(s.connection, "dial", dial):
            with self.assertRaises(TimeoutError):
                s.Client("a:1,d:1,b:1,c:1", timeout=12)
        self.assertEqual(shares, [("a:1", 3), ("d:1", 3), ("b:1", 4.5), ("c:1", 4.5)])
        self.assertEqual(clock, [112])

    def test_the_addresses_of_a_name_share_its_time(self):
        silent, waits, clock = [(socket.AF_INET, 0, 0, "", (f"10.0.0.{i}", 1)) for i in (1, 2)], [], [100.0]

        class Socket:
            def __init__(self, _):
                pass

            def settimeout(self, seconds):
                waits.append(seconds)

            def connect(self, _):
                clock[0] += waits[-1]
                raise TimeoutError

            def close(self):
                pass

        with mock.patch("time.monotonic", lambda: clock[0]), mock.patch("socket.socket", Socket):
            with mock.patch("socket.getaddrinfo", lambda *_, **__: silent), self.assertRaises(TimeoutError):
                s.Client("name:1", timeout=10)
        self.assertEqual(waits, [5, 5])

    def test_a_name_that_takes_all_the_time_leaves_a_moment_to_others(self):
        clock, tried = [100.0], []

        def found(host, *_, **__):
            if host == "slow":
                clock[0] += 20
                raise socket.gaierror("nobody answers")
            return [(socket.AF_INET, 0, 0, "", (host, 1))]

        class Socket:
            def __init__(self, _):
                pass

            def settimeout(self, seconds):
                tried.append(seconds)

            def connect(self, _):
                raise ConnectionRefusedError

            def close(self):
                pass

        with mock.patch("time.monotonic", lambda: clock[0]), mock.patch("socket.socket", Socket):
            with mock.patch("socket.getaddrinfo", found), self.assertRaises(ConnectionRefusedError):
                s.Client("slow:1,10.0.0.2:1", timeout=10)
        self.assertEqual(tried, [s.connection.MOMENT])

    def test_one_that_refuses_has_answered(self):
        frame, meaning = load("error")
        with self.assertRaises(s.Error) as e:
            s.Client(self.server(frame) + ",unix:/nonesuch")
        self.assertEqual(e.exception.kind, meaning["body"]["kind"])

    def test_lists_that_are_none(self):
        for text in ("", "host", "unix:", "a:1,", "a:1,,b:1", "a:1,b", ":1", "a:b", "unix:/run/a,b/s"):
            with self.assertRaisesRegex(ValueError, "must be host:port or unix:path without a comma"):
                s.Client(text)


@unittest.skipUnless(os.environ.get("SKEP_ADDRESS"), "SKEP_ADDRESS names no server")
class Live(unittest.TestCase):
    def setUp(self):
        features = int(os.environ.get("SKEP_FEATURES", "3"))
        self.c = s.Client(os.environ["SKEP_ADDRESS"], os.environ.get("SKEP_TOKEN", ""), features=features)
        self.addCleanup(self.c.close)
        self.tenant = "python" if self.c.tenant == "*" else self.c.tenant
        self.names = random.Random()

    def test_a_list_of_addresses(self):
        listed = "unix:/nonesuch, " + os.environ["SKEP_ADDRESS"]
        with s.Client(listed, os.environ.get("SKEP_TOKEN", "")) as c:
            self.assertEqual(c.tenant, self.c.tenant)

    @unittest.skipUnless(hasattr(os, "fork"), "no fork")
    def test_a_forked_process_is_refused(self):
        self.c.ping()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            said = b"went through"
            try:
                self.c.ping()
            except s.Error as e:
                said = f"{e.kind} {e}".encode()
            try:
                self.c.close()
            finally:
                os.write(write, said)
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as f:
            said = f.read()
        os.waitpid(child, 0)
        self.assertRegex(said, f"^19 .*forked from {os.getpid()}")
        self.c.ping()  # what the child did is not seen here

    def space(self, **fields):
        return self.c.open_namespace(tenant=self.tenant, name=f"{self.id()} {self.names.random()}", model="m", **fields)["id"]

    def chain(self, n):
        out, parent = [], b""
        for i in range(n):
            parent = hashlib.sha256(parent + i.to_bytes(4, "little") + self.id().encode()).digest()
            out.append(parent)
        return out

    def payload(self, key, size):
        return (hashlib.sha512(key).digest() * (size // 64 + 1))[:size]

    def stored(self, n, size, **fields):
        ns, ks = self.space(block_tokens=16, **fields), self.chain(n)
        res = self.c.put(ns, [s.Block(k, [("kv", self.payload(k, size))]) for k in ks])
        self.assertEqual(res, [[1, 0, 0]] * n)
        return ns, ks

    def test_put_lookup_restore(self):
        ns, ks = self.stored(6, 5000)
        got = self.c.lookup(ns, ks + self.chain(7)[6:], tiers=True)
        self.assertEqual([got["blocks"], got["tokens"], got["bytes"]], [6, 96, 30000])
        self.assertTrue(got["lease"])
        self.assertEqual(len(got["tiers"]), 6)
        self.assertGreater(self.c.renew(got["lease"], 60 * 10**9)["left"], 50 * 10**9)
        for direction in (0, 1):
            chunks = list(self.c.restore([s.Chain(ns, ks, direction=direction, lease=got["lease"])]))
            self.assertEqual({c.block: c.data for c in chunks}, {i: self.payload(k, 5000) for i, k in enumerate(ks)})
        self.c.release(got["lease"])
        with self.assertRaises(s.Error) as e:
            self.c.renew(got["lease"], 10**9)
        self.assertEqual(e.exception.kind, 10)

    def test_layers_and_heads(self):
        shape = dict(kind=1, element=2, layers=4, kv_heads=2, head_dim=8, chained=True)
        size = 4 * 2 * 2 * 16 * 8 * 2
        ns, ks = self.stored(3, size, **shape)
        head = 16 * 8 * 2
        for c in self.c.restore([s.Chain(ns, ks, direction=2, layers=(1, 3), heads=(1, 2))]):
            self.assertIsNone(c.error)
            layer = c.layers[0]
            whole = self.payload(ks[c.block], size)
            want = b"".join(whole[((layer * 2 + kv) * 2 + 1) * head :][:head] for kv in (0, 1))
            self.assertEqual(c.data, want)

    def test_large_chunks_come_in_pieces_and_with_credit(self):
        ns, size = self.space(block_tokens=1), 6 << 20
        key = self.chain(1)[0]
        self.assertEqual(self.c.put_parts(ns, key, [("kv", self.payload(key, size)), ("state", b"x" * 99)]), [[1, 0, 0]])
        (chunk,) = self.c.restore([s.Chain(ns, [key])], window=1 << 20)
        self.assertIsNone(chunk.error)
        self.assertEqual(hashlib.sha1(chunk.data).digest(), hashlib.sha1(self.payload(key, size)).digest())
        (chunk,) = self.c.restore([s.Chain(ns, [key], part="state")])
        self.assertEqual(chunk.data, b"x" * 99)

    def test_a_claim_is_not_loaded_and_a_miss_says_why(self):
        ns, ks = self.stored(4, 100)
        session = self.c.restore([s.Chain(ns, ks + self.chain(5)[4:], direction=1)], window=0)
        got = session.claim(0, (0, 16))
        kinds = {c.block: c.error and c.error.kind for c in self._credited(session)}
        self.assertIn(kinds[4], (2, 21))
        if got["granted"] == [0, 16]:
            self.assertEqual(kinds[0], 22)
        self.assertIsNone(kinds[3])

    def test_what_is_computed_is_not_loaded(self):
        ns, ks = self.stored(8, 100)
        session = self.c.restore([s.Chain(ns, ks, direction=1)], window=0, costs=[s.Cost(0, per_token=1000)])
        got = session.claim(0, (0, 16))["granted"]
        if self.c.has_compute:
            session.computed(0, got, took=16_000)
            more = session.claim_when(0, (got[1], got[1] + 16), idle=True)["granted"]
            self.assertEqual(more[0], got[1])
            got = [got[0], more[1]]
        chunks = self._credited(session)
        self.assertEqual(len(chunks), 8)
        for c in chunks:
            if c.block * 16 < got[1]:
                self.assertEqual(c.error.kind, 22)
            else:
                self.assertEqual(c.data, self.payload(ks[c.block], 100))

    def test_either_way_says_which(self):
        ns, ks = self.stored(8, 100)
        if not self.c.has_either:
            return
        session = self.c.restore([s.Chain(ns, ks, direction=4)], window=0, costs=[s.Cost(0, per_token=1000)])
        self.assertEqual(session.direction(0), 1)  # blocks without layers come whole
        for c in self._credited(session):
            self.assertEqual(c.data, self.payload(ks[c.block], 100))

    def _credited(self, session):
        self.c._send(s.CREDIT, 0, s.credit(session.id, 1 << 20))
        return list(session)

    def test_stop_ends_what_has_not_landed(self):
        ns, ks = self.stored(40, 100_000)
        session = self.c.restore([s.Chain(ns, ks)], window=0)
        session.stop()
        chunks = self._credited(session)
        self.assertEqual(len(chunks), 40)
        for c in chunks:
            if c.error:
                self.assertEqual(c.error.kind, 15)
            else:
                self.assertEqual(c.data, self.payload(ks[c.block], 100_000))
        self.assertTrue(any(c.error for c in chunks))

    def test_errors_and_other_calls(self):
        ns, ks = self.stored(2, 100)
        with self.assertRaises(s.Error) as e:
            self.c.lookup(ns + 1000, ks)
        self.assertEqual(e.exception.kind, 2)
        with self.assertRaises(s.Error) as e:
            self.c.lookup(ns, ks, lease=-5)
        self.assertEqual([e.exception.kind, e.exception.field], [1, "lease"])
        self.assertEqual(self.c.put(ns, [s.Block(ks[0], [("kv", b"other")])]), [[3, 1, 0]])
        bad = s.put(ns, [s.Block(self.chain(3)[2], [("kv", b"right")])], parent=ks[1], depth=2)
        with self.assertRaises(s.Error) as e:
            self.c._call(s.PUT, bad, b"wrong")
        self.assertEqual(e.exception.kind, 7)
        self.assertEqual(self.c.want(ns, self.chain(3)), [[0, 3, 0], [0, 3, 0], [1, 0, 0]])
        self.assertEqual(self.c.hint(ns, ks, pin=10**9), 2)
        self.assertEqual(self.c.delete(ns, ks[1:]), 1)
        self.c.purge(namespace=ns)
        self.assertEqual(self.c.lookup(ns, ks)["blocks"], 0)
        self.c.flush()
        self.c.ping()
        self.assertIn(ns, [n["id"] for n in self.c.namespaces()])
        self.assertEqual(self.c.stats()["state"], "ok")


if __name__ == "__main__":
    unittest.main()
