"""What is in a frame: numbers, texts, headers, errors."""

import struct
import zlib

MAGIC = 0x50454B53
VERSION = 1
HEADER = struct.Struct("<IBBHQIIIII")  # but for its checksum
HEADER_SIZE = 40
ANSWER = 0x80
LAST = 1

HELLO, PING, CANCEL, GOODBYE = 0x01, 0x02, 0x03, 0x04
OPEN_NAMESPACE, NAMESPACES, LOOKUP, RENEW, RELEASE, WANT, PUT = range(0x10, 0x17)
BEGIN, WRITE, COMMIT, ABORT, FLUSH, LOOKUP_RUNS, PUT_EACH = range(0x17, 0x1E)
RESTORE, CREDIT, CLAIM, REPRIORITISE, STOP, END, CHUNKS = range(0x20, 0x27)
COSTED_RESTORE, CLAIM_WHEN, COMPUTED = range(0x27, 0x2A)
DIRECTION = 0x2B
HINT, DELETE, PURGE, STATS, EVENTS, EVENT_BATCH, ADMIN = range(0x30, 0x37)
LIST = 0x39
ATTACH, DETACH = 0x40, 0x41
ERROR = 0xFF

CRC32, XXH3 = 1, 2
BYTES, MISS, LANDED = 0, 1, 2

KINDS = (
    "error", "invalid", "not found", "closed", "full", "over quota", "not admitted", "damaged",
    "read only", "store failed", "lease expired", "other format", "foreign device", "missing device",
    "locked", "stopped", "deadline passed", "conflict", "memory not released", "unsupported",
    "device failed", "evicted", "claimed by the caller", "out of memory budget", "unavailable",
    "overloaded", "denied", "stale map", "node behind",
)


class Error(Exception):
    """What a server answers a call that failed."""

    def __init__(self, kind, retry_after=0, op="", field="", value="", limit="", cause=""):
        self.kind, self.retry_after = kind, retry_after
        self.op, self.field, self.value, self.limit, self.cause = op, field, value, limit, cause
        text = f"{op}: {KINDS[kind] if kind < len(KINDS) else kind}"
        if field:
            text += f": {field} is {value}" if value else f": {field}"
        if limit:
            text += f", must be {limit}"
        if cause:
            text += f": {cause}"
        super().__init__(text)


class Broken(Exception):
    """What arrived is not the protocol: the connection is of no more use."""


class Writer:
    """Puts fields one after another."""

    def __init__(self):
        self.parts = []

    def raw(self, b):
        self.parts.append(bytes(b))
        return self

    def pack(self, form, *values):
        return self.raw(struct.pack("<" + form, *values))

    def u8(self, v):
        return self.pack("B", v)

    def u16(self, v):
        return self.pack("H", v)

    def u32(self, v):
        return self.pack("I", v)

    def u64(self, v):
        return self.pack("Q", v)

    def i64(self, v):
        return self.pack("q", v)

    def f64(self, v):
        return self.pack("d", v)

    def flag(self, v):
        return self.u8(1 if v else 0)

    def text(self, v):
        b = v.encode() if isinstance(v, str) else v
        return self.u16(len(b)).raw(b)

    def bytes(self, v):
        b = v.encode() if isinstance(v, str) else v
        return self.u32(len(b)).raw(b)

    def maybe_key(self, v):
        self.flag(v is not None)
        return self if v is None else self.raw(v)

    def keys(self, keys):
        return self.u32(len(keys)).raw(b"".join(keys))

    def range(self, v):
        return self.i64(v[0]).i64(v[1])

    def scope(self, namespace, salt):
        return self.u32(namespace).text(salt)

    def done(self):
        return b"".join(self.parts)


class Reader:
    """Takes fields one after another."""

    def __init__(self, b):
        self.b, self.at = b, 0

    def raw(self, n):
        if n > len(self.b) - self.at:
            raise Broken("a body that ends too soon")
        self.at += n
        return self.b[self.at - n : self.at]

    def one(self, form):
        s = struct.Struct("<" + form)
        return s.unpack(self.raw(s.size))[0]

    def u8(self):
        return self.one("B")

    def u16(self):
        return self.one("H")

    def u32(self):
        return self.one("I")

    def u64(self):
        return self.one("Q")

    def i64(self):
        return self.one("q")

    def f64(self):
        return self.one("d")

    def flag(self):
        v = self.u8()
        if v > 1:
            raise Broken("a flag that is neither 0 nor 1")
        return v == 1

    def text(self):
        return self.raw(self.u16()).decode(errors="surrogateescape")

    def bytes(self):
        return self.raw(self.u32())

    def key(self):
        return self.raw(32)

    def maybe_key(self):
        return self.key() if self.flag() else None

    def list(self, each):
        return [each() for _ in range(self.u32())]

    def range(self):
        return [self.i64(), self.i64()]

    def end(self):
        if self.at != len(self.b):
            raise Broken("a body that is longer than its fields")


def encode_header(type_, flags, call, body, payload_length, deadline):
    h = HEADER.pack(MAGIC, VERSION, type_, flags, call, len(body), payload_length, deadline, zlib.crc32(body), 0)
    return h + struct.pack("<I", zlib.crc32(h))


def decode_header(b):
    """type, flags, call, body length, payload length, deadline, body checksum."""
    if len(b) != HEADER_SIZE or zlib.crc32(b[:36]) != struct.unpack("<I", b[36:])[0]:
        raise Broken("header checksum")
    magic, version, type_, flags, call, body, payload, deadline, body_sum, zero = HEADER.unpack(b[:36])
    if magic != MAGIC or zero != 0:
        raise Broken("not a frame")
    if version != VERSION:
        raise Broken(f"version {version}")
    return type_, flags, call, body, payload, deadline, body_sum


def encode_frame(type_, call, body=b"", payload=b"", flags=0, deadline=0):
    return encode_header(type_, flags, call, body, len(payload), deadline) + body + payload
