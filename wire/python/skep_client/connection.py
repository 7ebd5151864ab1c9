"""A connection, its calls and its sessions."""

import json
import os
import socket
import time
import zlib
from dataclasses import dataclass, field

from .fields import *
from .messages import *
from .sums import checksum


@dataclass
class Chunk:
    chain: int
    block: int
    layers: tuple
    tier: int = 0
    data: bytes = None
    error: Error = None


@dataclass
class Session:
    """A restore under way: iterate over it for its chunks."""

    client: "Client"
    id: int
    window: int
    waiting: list = field(default_factory=list)  # Chunks frames that came while something else was awaited
    partial: bytearray = field(default_factory=bytearray)
    over: bool = False

    def __iter__(self):
        while not self.over:
            flags, body, payload = self.waiting.pop(0) if self.waiting else self.client._chunks(self.id)
            self.over = bool(flags & LAST)
            yield from self._pieces(read_chunks(body), payload)
            if payload and not self.over:
                self.client._send(CREDIT, 0, credit(self.id, len(payload)))
        self.end()

    def _pieces(self, pieces, payload):
        at = 0
        for p in pieces:
            out = Chunk(p["chain"], p["block"], tuple(p["layers"]), p["tier"])
            if p["what"] == MISS:
                out.error = Error(**p["error"])
                yield out
                continue
            data, at = payload[at : at + p["len"]], at + p["len"]
            if p["offset"] == 0:
                self.partial = bytearray()
            elif p["offset"] != len(self.partial):
                raise Broken("a piece out of order")
            if not covered(data, p["sums"]):
                self.partial = bytearray(p["offset"] + p["len"])
                out.error = Error(7, op="restore", field="checksum on arrival")
                yield out
                continue
            self.partial += data
            if len(self.partial) == p["bytes"]:
                out.data, self.partial = bytes(self.partial), bytearray()
                yield out

    def claim(self, chain, range_=(0, 0)):
        return read_claim(self.client._call(CLAIM, claim(self.id, chain, range_)))

    def claim_when(self, chain, range_, idle):
        return read_claim(self.client._call(CLAIM_WHEN, claim_when(self.id, chain, range_, idle)))

    def direction(self, chain):
        """1 tail first or 3 layers down, of a chain that was asked for with 4, either way."""
        return read_direction(self.client._call(DIRECTION, direction(self.id, chain)))["direction"]

    def computed(self, chain, range_, took, other=0):
        self.client._call(COMPUTED, computed(self.id, chain, range_, took, other))

    def stop(self, chain=-1):
        self.client._call(STOP, stop(self.id, chain))

    def end(self):
        if self.id in self.client.sessions:
            self.client._call(END, number(self.id))
            del self.client.sessions[self.id]


def covered(data, sums):
    """Whether checksums cover data whole, one after another, and match."""
    at = 0
    for kind, length, seed, check in sums:
        if checksum(kind, data[at : at + length], seed) != check:
            return False
        at += length
    return at == len(data)


def addresses(text):
    """The addresses of a list with commas between them."""
    out = [a.strip() for a in text.split(",")]
    for a in out:
        host, _, port = a.rpartition(":")
        if not (a.startswith("unix:") and a != "unix:" or host and port.isdecimal()):
            raise ValueError(f"address {a!r} in {text!r}, must be host:port or unix:path without a comma")
    return out


def _left(until):
    """Seconds until a time of time.monotonic()."""
    seconds = until - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds


MOMENT = 0.25  # seconds that whoever is tried has at least: what finds a name's addresses heeds no time


def _later(until):
    return max(until, time.monotonic() + MOMENT)


def _shares(each, until):
    """Each with the time until which it may take: what is left is shared evenly by those that are left."""
    for i, x in enumerate(each):
        now = time.monotonic()
        yield x, _later(now + (until - now) / (len(each) - i))


def _connected(family, to, until):
    sock = socket.socket(family)
    try:
        sock.settimeout(_left(until))
        sock.connect(to)
    except BaseException:
        sock.close()
        raise
    return sock


def dial(address, tls, until):
    if address.startswith("unix:"):
        return _connected(socket.AF_UNIX, address[5:], until)
    host, port = address.rsplit(":", 1)
    found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    for (family, _, _, _, to), its in _shares(found, until):
        try:
            sock = _connected(family, to, its)
            break
        except OSError as e:
            why = e
    else:
        raise why
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(_left(_later(until)))
        return sock if tls is None else tls.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise


class Client:
    """One connection. address is "host:port" or "unix:path", or several with commas between them (a path has none), of
    which the first that answers is taken; tls an ssl.SSLContext. timeout is in seconds: of connecting, shared evenly by
    the addresses, each of which has 0.25 at least, and later of each wait for the server. How long it takes to find a
    name is the system's. Where none answers, the last one's OSError or Broken is raised. A server that
    refuses has answered: its Error is raised."""

    def __init__(self, address, token="", tls=None, timeout=10.0, features=7, name="python"):
        self.timeout, self.calls, self.sessions, self.process = timeout, 0, {}, os.getpid()
        until = time.monotonic() + timeout
        for a, its in _shares(addresses(address), until):
            try:
                self._connect(a, token, tls, features, name, its)
                return
            except (OSError, Broken) as e:
                why = e  # it is away
        raise why

    def _connect(self, address, token, tls, features, name, until):
        self.sock = dial(address, tls, until)
        self.until = _later(until)
        try:
            self._send(HELLO, 0, hello(os.urandom(16), name, token, features))
            type_, _, _, body, _ = self._frame()
            if type_ == ERROR:
                raise Error(**read_error(body))
            if type_ != HELLO | ANSWER:
                raise Broken("no welcome")
            self.welcome = read_welcome(body)
        except Exception:
            self.sock.close()
            raise
        self.until = None
        self.sock.settimeout(self.timeout)
        self.tenant = self.welcome["tenant"]
        self.has_compute = bool(self.welcome["features"] & 2)
        self.has_either = bool(self.welcome["features"] & 4)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if os.getpid() != self.process:  # a Goodbye would end the other process's connection
            self.sock.close()
            return
        try:  # the server closes first: closing with bytes unread would lose the Goodbye
            self._send(GOODBYE, 0, goodbye())
            self.sock.settimeout(0.25)
            while self.sock.recv(1 << 16):
                pass
        except OSError:
            pass
        self.sock.close()

    # frames

    def _ours(self):
        """A forked process has a copy of the connection: what it sent and took would be missing in the other one's."""
        if os.getpid() != self.process:
            raise Error(19, op="call", field="process", value=f"forked from {self.process}, which has this connection",
                        limit="that one; connect in this one")

    def _send(self, type_, call, body=b"", payload=b""):
        self._ours()
        self.sock.sendall(encode_frame(type_, call, body, payload, deadline=int(self.timeout * 1000)))

    def _exactly(self, n):
        out = bytearray(n)
        view, at = memoryview(out), 0
        while at < n:
            if self.until is not None:  # it is being connected
                self.sock.settimeout(_left(self.until))
            k = self.sock.recv_into(view[at:])
            if k == 0:
                raise Broken("the server closed the connection")
            at += k
        return bytes(out)

    def _frame(self):
        self._ours()
        type_, flags, call, body_length, payload_length, _, body_sum = decode_header(self._exactly(HEADER_SIZE))
        body = self._exactly(body_length)
        if zlib.crc32(body) != body_sum:
            raise Broken("body checksum")
        return type_, flags, call, body, self._exactly(payload_length)

    def _call(self, type_, body=b"", payload=b""):
        self.calls += 1
        call = self.calls
        self._send(type_, call, body, payload)
        while True:
            got, flags, number_, answer, data = self._frame()
            if got == CHUNKS:
                if number_ in self.sessions:
                    self.sessions[number_].waiting.append((flags, answer, data))
            elif got == GOODBYE:
                continue
            elif number_ != call:
                raise Broken(f"an answer to call {number_}")
            elif got == ERROR:
                raise Error(**read_error(answer))
            elif got != type_ | ANSWER:
                raise Broken(f"a frame of type {got:#x}")
            else:
                return answer

    def _chunks(self, session):
        while True:
            got, flags, number_, body, payload = self._frame()
            if got == CHUNKS and number_ == session:
                return flags, body, payload
            if got == ERROR and number_ == session:
                self.sessions.pop(session, None)
                raise Error(**read_error(body))
            if got == CHUNKS and number_ in self.sessions:
                self.sessions[number_].waiting.append((flags, body, payload))
            elif got not in (CHUNKS, GOODBYE):
                raise Broken(f"a frame of type {got:#x}")

    # calls

    def ping(self):
        self._call(PING)

    def open_namespace(self, **fields):
        return read_namespace(self._call(OPEN_NAMESPACE, open_namespace(**fields)))

    def namespaces(self):
        return read_namespaces(self._call(NAMESPACES))

    def lookup(self, namespace, keys, **fields):
        return read_lookup(self._call(LOOKUP, lookup(namespace, keys, **fields)))

    def lookup_runs(self, namespace, runs, **fields):
        return read_lookup_runs(self._call(LOOKUP_RUNS, lookup_runs(namespace, runs, **fields)))

    def renew(self, lease, duration):
        return read_lease(self._call(RENEW, renew(lease, duration)))

    def release(self, lease):
        self._call(RELEASE, number(lease))

    def want(self, namespace, keys, **fields):
        return read_wants(self._call(WANT, want(namespace, keys, **fields)))

    def put(self, namespace, blocks, each=False, **fields):
        payload = b"".join(data for b in blocks for _, data in b.parts)
        return read_results(self._call(PUT_EACH if each else PUT, put(namespace, blocks, **fields), payload))

    def put_parts(self, namespace, key, parts, piece=1 << 20, **fields):
        """One block, written piece by piece."""
        writer = read_number(self._call(BEGIN, begin(namespace, key, [(n, len(d)) for n, d in parts], **fields)))
        for name, data in parts:
            for at in range(0, len(data), piece):
                part = data[at : at + piece]
                self._call(WRITE, write(writer, name, at, part), part)
        return read_results(self._call(COMMIT, commit(writer)))

    def flush(self):
        self._call(FLUSH)

    def restore(self, chains, window=4 << 20, costs=()):
        """A session. costs, where the server knows them, has chains restored by two pointers."""
        self.calls += 1
        session = Session(self, self.calls, window)
        self.sessions[session.id] = session
        self.calls -= 1  # _call takes the same number
        try:
            if costs and self.has_compute:
                self._call(COSTED_RESTORE, costed_restore(costs, window, chains))
            else:
                self._call(RESTORE, restore(window, chains))
        except Error:
            del self.sessions[session.id]
            raise
        return session

    def hint(self, namespace, keys, **fields):
        return read_number(self._call(HINT, hint(namespace, keys, **fields)))

    def delete(self, namespace, keys, salt=""):
        return read_number(self._call(DELETE, delete(namespace, keys, salt)))

    def list_keys(self, namespace, place=0, most=4096):
        return read_list(self._call(LIST, list_keys(namespace, place, most)))

    def purge(self, **fields):
        self._call(PURGE, purge(**fields))

    def stats(self):
        return json.loads(read_document(self._call(STATS)))

    def admin(self, name, document):
        return json.loads(read_document(self._call(ADMIN, admin(name, json.dumps(document)))))
