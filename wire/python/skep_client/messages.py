"""The bodies of frames: a function that writes each one a client sends, and one that reads
each one a server sends."""

import struct
import zlib
from dataclasses import dataclass

from .fields import BYTES, CRC32, LANDED, MISS, VERSION, Broken, Reader, Writer
from .sums import checksum

# ---- messages the client sends -------------------------------------------------------


def hello(client, name="", token="", features=1):
    return Writer().u8(VERSION).u8(VERSION).u32(features).raw(client).text(name).text(token).done()


def open_namespace(tenant, name, model="", kind=0, element=0, order=0, layers=0, kv_heads=0, head_dim=0, block_tokens=1,
                   bytes=0, class_=0, copies=1, chained=True):
    w = Writer().text(tenant).text(name).text(model).u8(kind).u8(element).u8(order)
    for v in (layers, kv_heads, head_dim, block_tokens, bytes):
        w.i64(v)
    return w.u8(class_).i64(copies).flag(chained).done()


def lookup(namespace, keys, salt="", lease=0, tiers=False, cost=None):
    w = Writer().scope(namespace, salt).i64(lease).flag(tiers).flag(cost is not None)
    if cost is not None:
        w.i64(cost[0]).i64(cost[1]).f64(cost[2])
    return w.keys(keys).done()


def lookup_runs(namespace, runs, salt="", lease=0, tiers=False, cost=None):
    w = Writer().scope(namespace, salt).i64(lease).flag(tiers).flag(cost is not None)
    if cost is not None:
        w.i64(cost[0]).i64(cost[1]).f64(cost[2])
    w.u32(len(runs))
    for keys in runs:
        w.keys(keys)
    return w.done()


def number(n):
    return Writer().u64(n).done()


def renew(lease, duration):
    return Writer().u64(lease).i64(duration).done()


def want(namespace, keys, salt="", bytes=0):
    return Writer().scope(namespace, salt).i64(bytes).keys(keys).done()


@dataclass
class Block:
    key: bytes
    parts: list  # of (name, bytes)
    valid: int = 0
    replaces: bytes = None
    name: bytes = b""


def put(namespace, blocks, salt="", parent=None, depth=0, ack=0, sum_kind=CRC32):
    """The body; the payload is the parts' bytes one after another."""
    w = Writer().scope(namespace, salt).maybe_key(parent).i64(depth).u8(ack).u32(len(blocks))
    for b in blocks:
        w.raw(b.key).i64(b.valid).maybe_key(b.replaces).bytes(b.name).u32(len(b.parts))
        for name, data in b.parts:
            w.text(name).u64(len(data)).u8(sum_kind).u64(checksum(sum_kind, data)).flag(False).u64(0)
    return w.done()


def begin(namespace, key, parts, salt="", parent=None, depth=0, name=b"", valid=0, replaces=None, timeout=0):
    w = Writer().scope(namespace, salt).maybe_key(parent).i64(depth).raw(key).bytes(name).i64(valid).maybe_key(replaces).i64(timeout)
    w.u32(len(parts))
    for part, size in parts:
        w.text(part).i64(size)
    return w.done()


def write(writer, part, offset, data, sum_kind=CRC32):
    return Writer().u64(writer).text(part).i64(offset).u8(sum_kind).u64(checksum(sum_kind, data)).done()


def commit(writer, ack=0):
    return Writer().u64(writer).u8(ack).done()


@dataclass
class Chain:
    namespace: int
    keys: list
    salt: str = ""
    part: str = ""
    direction: int = 0
    lease: int = 0
    priority: int = 0
    deadline: int = 0
    blocks: tuple = (0, 0)
    layers: tuple = (0, 0)
    heads: tuple = (0, 0)
    shared: tuple = None  # (offset, length, stride) in the attached memory


def restore(window, chains, ring=False, w=None):
    w = (w or Writer()).u64(window).flag(ring).u32(len(chains))
    for c in chains:
        w.scope(c.namespace, c.salt).text(c.part).u8(c.direction).u64(c.lease).i64(c.priority).i64(c.deadline)
        w.range(c.blocks).range(c.layers).range(c.heads)
        if c.shared is None:
            w.u8(0)
        else:
            w.u8(1).u64(c.shared[0]).u64(c.shared[1]).i64(c.shared[2])
        w.keys(c.keys)
    return w.done()


@dataclass
class Cost:
    """What computing a chain costs: durations in nanoseconds."""

    chain: int  # index into the session's chains
    fixed: int = 0
    per_token: int = 0
    per_token_squared: float = 0.0
    suffix: int = 0
    weight: float = 0.0
    load_only: bool = False
    background: bool = False
    boundary: tuple = None  # (chain, bytes of a token)


def costed_restore(costs, window, chains, ring=False):
    w = Writer().u32(len(costs))
    for c in costs:
        w.u32(c.chain).i64(c.fixed).i64(c.per_token).f64(c.per_token_squared).i64(c.suffix).f64(c.weight)
        w.flag(c.load_only).flag(c.background).flag(c.boundary is not None)
        if c.boundary is not None:
            w.u32(c.boundary[0]).i64(c.boundary[1])
    return restore(window, chains, ring, w)


def credit(session, amount):
    return Writer().u64(session).u64(amount).done()


def claim(session, chain, range_):
    return Writer().u64(session).i64(chain).range(range_).done()


def claim_when(session, chain, range_, idle):
    return Writer().u64(session).i64(chain).range(range_).flag(idle).done()


def computed(session, chain, range_, took, other=0):
    return Writer().u64(session).i64(chain).range(range_).i64(took).i64(other).done()


def direction(session, chain):
    return Writer().u64(session).i64(chain).done()


def reprioritise(session, chain, priority, deadline=0):
    return Writer().u64(session).i64(chain).i64(priority).i64(deadline).done()


def stop(session, chain=-1):
    return Writer().u64(session).i64(chain).done()


def hint(namespace, keys, salt="", pin=0, next_use=0, steps=0, ttl=0, program="", drop=False):
    return Writer().scope(namespace, salt).i64(pin).i64(next_use).i64(steps).i64(ttl).text(program).flag(drop).keys(keys).done()


def delete(namespace, keys, salt=""):
    return Writer().scope(namespace, salt).keys(keys).done()


def purge(tenant="", model="", namespace=0, salted=None):
    w = Writer().text(tenant).text(model).u32(namespace).flag(salted is not None)
    return (w if salted is None else w.scope(*salted)).done()


def list_keys(namespace, place=0, most=4096):
    return Writer().u32(namespace).u64(place).u32(most).done()


def events(epoch=0, sequence=0, snapshot=False, amount=4096):
    return Writer().u64(epoch).u64(sequence).flag(snapshot).u64(amount).done()


def admin(name, document):
    return Writer().text(name).bytes(document).done()


def attach(size, ring, entries):
    return Writer().u64(size).u64(ring).u32(entries).done()


def goodbye(after=0, reason=""):
    return Writer().i64(after).text(reason).done()


# ---- messages the server sends -------------------------------------------------------


def whole(read):
    """Makes a reader of a body that must be read to its end."""

    def wrapped(body):
        r = Reader(body)
        out = read(r)
        r.end()
        return out

    return wrapped


def _error(r):
    return dict(kind=r.u16(), retry_after=r.i64(), op=r.text(), field=r.text(), value=r.text(), limit=r.text(), cause=r.text())


read_error = whole(_error)
read_number = whole(lambda r: r.u64())
read_list = whole(lambda r: dict(blocks=r.i64(), next=r.u64(), keys=r.list(r.key)))
read_document = whole(lambda r: r.bytes())
read_lease = whole(lambda r: dict(lease=r.u64(), left=r.i64()))
read_goodbye = whole(lambda r: dict(after=r.i64(), reason=r.text()))
read_claim = whole(lambda r: dict(granted=r.range(), jump=r.i64()))
read_direction = whole(lambda r: dict(direction=r.u8()))
read_wants = whole(lambda r: r.list(lambda: [int(r.flag()), r.u8(), r.u16()]))
read_results = whole(lambda r: r.list(lambda: [r.u8(), int(r.flag()), r.u16()]))


@whole
def read_welcome(r):
    out = dict(version=r.u8(), features=r.u32(), server=r.raw(16), max_body=r.u32(), max_payload=r.u32(), max_keys=r.u32(),
               max_calls=r.u32(), max_window=r.u64(), tenant=r.text(), rights=r.u8(), name=r.text())
    if out["features"] & 128:
        out["node"] = r.text()
    if out["features"] & 1024:
        out["cluster"], out["node_id"] = r.text(), r.u64()
    return out


def _namespace(r):
    out = dict(id=r.u32(), created=r.i64(), tenant=r.text(), name=r.text(), model=r.text(), kind=r.u8(), element=r.u8(), order=r.u8())
    for name in ("layers", "kv_heads", "head_dim", "block_tokens", "bytes"):
        out[name] = r.i64()
    out["class"] = r.u8()
    out["copies"] = r.i64()
    out["chained"] = r.flag()
    return out


read_namespace = whole(_namespace)
read_namespaces = whole(lambda r: r.list(lambda: _namespace(r)))


@whole
def read_lookup(r):
    return dict(blocks=r.u64(), tokens=r.u64(), bytes=r.i64(), lease=r.u64(), left=r.i64(), denied=r.flag(), pays=r.flag(),
                estimate=r.i64(), tiers=list(r.bytes()))


@whole
def read_lookup_runs(r):
    runs = r.list(lambda: [r.i64(), r.i64(), r.i64(), r.i64(), r.flag()])
    return dict(runs=runs, lease=r.u64(), left=r.i64(), denied=r.flag(), tiers=list(r.bytes()))


@whole
def read_chunks(r):
    def piece():
        p = dict(chain=r.u32(), block=r.u32(), layers=[r.u32(), r.u32()], tier=r.u8(), what=r.u8())
        if p["what"] == BYTES:
            p.update(bytes=r.u64(), offset=r.u64(), len=r.u64())
            p["sums"] = r.list(lambda: [r.u8(), r.u64(), r.u64(), r.u64()])
        elif p["what"] == MISS:
            p["error"] = _error(r)
        elif p["what"] == LANDED:
            p["bytes"] = r.u64()
        else:
            raise Broken("a piece of an unknown sort")
        return p

    return r.list(piece)


@whole
def read_events(r):
    def event():
        return dict(epoch=r.u64(), seq=r.u64(), kind=r.u8(), salted=r.flag(), tier=r.u8(), reason=r.u16(), time=r.i64(),
                    namespace=r.u32(), depth=r.u32(), lost=r.u64(), key=r.key(), parent=r.maybe_key())

    return r.list(event)


def read_entry(b):
    """An entry of a ring in shared memory; None when its checksum does not match."""
    sequence, session, chain, block, first, last, length, kind, what, tier, crc = struct.unpack("<QQIIIIQHBBI", b[:48])
    if zlib.crc32(b[8:44]) != crc:
        return None
    return dict(sequence=sequence, session=session, chain=chain, block=block, layers=[first, last], bytes=length, kind=kind, what=what, tier=tier)
