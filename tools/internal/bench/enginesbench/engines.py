"""A client in Python that `skep-bench engines` starts and asks for rounds: a line in, a line of JSON out.

    engines.py skepkv BLOCKS BYTES BATCH KEYS SOCKET     blocks in memory shared with a server
    engines.py each BLOCKS BYTES BATCH KEYS SOCKET       the same, each key a chain of its own
    engines.py each BLOCKS BYTES BATCH KEYS ADDRS        over TCP, of a cluster's nodes, with commas between
    engines.py mooncake BLOCKS BYTES BATCH KEYS          blocks in a Mooncake Store of its own, over TCP, zero-copy
    engines.py mooncake ... NODES COPIES                 of so many nodes, of which so many have each block
    engines.py segment BYTES MASTER                      the process that has Mooncake's blocks

The first line says which version is measured, or why none can be.
"""

import ctypes
import json
import mmap
import os
import signal
import socket
import statistics
import subprocess
import sys
import time


class Skipped(Exception):
    pass


def timed(do, size, ops):
    began, cpu = time.perf_counter(), time.process_time()
    do()
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
        "bytes": size,
        "ops": ops,
    }


class Skepkv:
    drives = whole = True

    def __init__(self, blocks, size, keys, socket_path):
        skepkv = self.imported()
        self.store = skepkv.connect("unix:" + socket_path, shared_bytes=blocks * size + (8 << 20))
        why = self.store.direct()
        if why:
            raise Skipped(f"skepkv: {why}")
        self.space = self.store.namespace("skepkv/bench")
        self.places = self.store.alloc(blocks * size).blocks(blocks)
        self.behind = self.store.namespace("skepkv/bench/accepted", chained=True)
        self.socket = skepkv.connect("unix:" + socket_path, shared_bytes=0)
        self.through = self.socket.namespace("skepkv/bench")
        self.chain = self.store.namespace("skepkv/bench/lookup", chained=True, bytes=4096)
        names = [skepkv.key(b"lookup", i.to_bytes(4, "little")) for i in range(keys)]
        for at in range(0, keys, 1000):
            part = names[at : at + 1000]
            assert self.chain.put(part, [bytes(4096)] * len(part), parent=names[at - 1] if at else None, depth=at)
        self.asked = b"".join(names)

    def imported(self):
        try:
            import skepkv
        except ImportError as e:
            raise Skipped(f"skepkv: {e}") from None
        self.skepkv, self.version = skepkv, f"skepkv with libskep {skepkv.version()}"
        return skepkv

    def begin(self):
        self.names = [self.skepkv.key(os.urandom(16)) for _ in self.places]

    def put(self, b):
        assert self.space.put(self.names[b], self.places[b], timeout=60)

    def get(self, b):
        assert self.space.restore(self.names[b], self.places[b], timeout=60)

    def warm(self, b):
        """Reads through the server's memory, where they are kept. What drives read into places would not be."""
        into = [bytearray(len(self.places[0])) for _ in self.places[b]]
        for _ in range(2):
            assert self.through.restore(self.names[b], into, timeout=60)

    def in_memory(self):
        return sum(tier == 2 for tier in self.space.exists(self.names))

    def end(self):
        until = time.monotonic() + 60
        while True:
            try:
                self.space.delete(self.names)
                return
            except self.skepkv.SkepError as e:  # a node that was away is asked again after a while
                if e.code != self.skepkv.errors.UNAVAILABLE or time.monotonic() > until:
                    raise
            time.sleep(0.05)

    def accept(self, b):
        parent = self.names[b.start - 1] if b.start else None
        places, names = self.places[b], self.names[b]
        assert self.behind.put(names, places, parent=parent, depth=b.start, timeout=60, accepted=True)

    def accepted(self):
        self.store.flush(timeout=60)
        self.behind.delete(self.names)

    def lookups(self):
        """The median time of 200 lookups of all keys, in microseconds."""
        took = []
        for _ in range(200):
            began = time.perf_counter()
            found = self.chain.lookup(self.asked)
            took.append(1e6 * (time.perf_counter() - began))
            assert found.blocks == len(self.asked) // 32
        return statistics.median(took)


class Each(Skepkv):
    def __init__(self, blocks, size, keys, where):
        if "/" in where:
            super().__init__(blocks, size, 0, where)
        else:
            self.store = self.socket = self.imported().connect(where)
            self.memory = mmap.mmap(-1, blocks * size)
            self.places = cut(self.memory, blocks)
        self.version += ", each key a chain"
        one = {"name": "skepkv/bench/each", "chained": True, "each": True}
        self.space, self.through = self.store.namespace(**one), self.socket.namespace(**one)
        self.behind = self.space

    def accept(self, b):
        assert self.space.put(self.names[b], self.places[b], timeout=60, accepted=True)

    def filled(self):
        self.store.flush(timeout=60)

    def got(self, b):
        try:
            codes = self.space.restore(self.names[b], self.places[b], timeout=60).codes
        except self.skepkv.SkepError:
            return ["failed"] * len(self.names[b])
        return [{0: "got", 2: "missed", 21: "missed"}.get(code, "failed") for code in codes]

    def stored(self, b):
        try:
            outcomes = self.space.put(self.names[b], self.places[b], timeout=60).outcomes
        except self.skepkv.SkepError:
            return ["failed"] * len(self.names[b])
        return ["got" if outcome else "failed" for outcome in outcomes]


def cut(memory, blocks):
    """Memory of its own in pieces of one size, each page touched once."""
    memory[:] = bytes(len(memory))
    view, size = memoryview(memory), len(memory) // blocks
    return [view[i * size : (i + 1) * size] for i in range(blocks)]


def port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def child(args, **o):
    """Starts a process that ends when this one does."""
    libc = ctypes.CDLL(None)
    return subprocess.Popen(args, preexec_fn=lambda: libc.prctl(1, signal.SIGKILL), **o)


def mooncake_store(master, segment, buffer):
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    code = store.setup(f"127.0.0.1:{port()}", "P2PHANDSHAKE", segment, buffer, "tcp", "", master)
    if code:
        raise Skipped(f"mooncake: setup says {code}")
    return store


def segment(size, master):
    store = mooncake_store(master, int(size), 16 << 20)
    print("ready", flush=True)
    sys.stdin.read()
    store.close()


class Mooncake:
    drives = False

    def __init__(self, blocks, size, keys, nodes="1", copies="1"):
        try:
            import mooncake
            from importlib import metadata
            from mooncake.store import ReplicateConfig
        except ImportError as e:
            raise Skipped(f"mooncake: {e}") from None
        names = [d.metadata["Name"] for d in metadata.distributions()]
        names = [n for n in names if n and n.startswith("mooncake-transfer-engine")]
        self.version = ", ".join(f"{n} {metadata.version(n)}" for n in names)
        self.program = os.path.join(os.path.dirname(mooncake.__file__), "mooncake_master")
        self.nodes, self.how = int(nodes), ReplicateConfig()
        self.how.replica_num = int(copies)
        # Leases that are in the way of nothing on one node; a cluster has the default.
        self.given = ["--default_kv_lease_ttl=60000"] if self.nodes == 1 else []
        self.share = 4 * blocks * size * int(copies) // self.nodes
        self.memory = mmap.mmap(-1, blocks * size)
        self.places = cut(self.memory, blocks)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.addresses, self.sizes = [self.address + i * size for i in range(blocks)], [size] * blocks
        self.whole, self.segments, self.store = False, [], None
        self.start()

    def start(self):
        """Starts all processes anew."""
        if self.store:
            self.store.close()
            for process in [self.leads, *self.segments]:
                process.kill()
                process.wait()
        self.master = f"127.0.0.1:{port()}"
        self.lead()
        self.segments = [self.segment() for _ in range(self.nodes)]
        self.store = mooncake_store(self.master, 0, 64 << 20)
        code = self.store.register_buffer(self.address, len(self.memory))
        if code:
            raise Skipped(f"mooncake: register_buffer says {code}")
        self.whole = True

    def lead(self):
        at = self.master.rpartition(":")[2]
        args = [self.program, "--rpc_address=127.0.0.1", f"--rpc_port={at}", f"--metrics_port={port()}", *self.given]
        self.leads = child(args, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", int(at))).close()
                break
            except OSError:
                if self.leads.poll() is not None or time.monotonic() > until:
                    raise Skipped("mooncake: mooncake_master does not answer") from None
                time.sleep(0.05)

    def segment(self):
        mine = [sys.executable, os.path.abspath(__file__), "segment", str(self.share), self.master]
        out = child(mine, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if not any(line == "ready\n" for line in out.stdout):
            raise Skipped("mooncake: the process with the blocks ended")
        return out

    def kill(self, what):
        self.whole, self.killed = False, what
        process = self.leads if what == "master" else self.segments.pop()
        process.kill()
        process.wait()

    def again(self):
        if self.killed == "master":
            self.lead()
        else:
            self.segments.append(self.segment())

    def begin(self):
        run = os.urandom(8).hex()
        self.names = [f"{run}-{i}" for i in range(len(self.places))]

    def put(self, b):
        said = self.store.batch_put_from(self.names[b], self.addresses[b], self.sizes[b], self.how)
        assert not any(said), said

    def get(self, b):
        said = self.store.batch_get_into(self.names[b], self.addresses[b], self.sizes[b])
        assert list(said) == self.sizes[b], said

    def warm(self, b):
        self.get(b)

    def in_memory(self):
        return len(self.places)

    def end(self):
        for name in self.names if self.whole else []:
            self.store.remove(name, True)  # though it is leased yet

    def filled(self):
        have = {len(self.store.get_replica_desc(name)) for name in self.names}
        assert have == {self.how.replica_num}, have

    def got(self, b):
        said = self.store.batch_get_into(self.names[b], self.addresses[b], self.sizes[b])
        return ["got" if n == m else "missed" if n == NOT_FOUND else "failed" for n, m in zip(said, self.sizes[b])]

    def stored(self, b):
        said = self.store.batch_put_from(self.names[b], self.addresses[b], self.sizes[b], self.how)
        return ["failed" if code else "got" for code in said]


NOT_FOUND = -704  # Mooncake's OBJECT_NOT_FOUND


def pass_of(way, values, batch, do):
    """Does all blocks, and counts what became of each; values are what they are compared with."""
    out = {"got": 0, "missed": 0, "failed": 0, "wrong": 0, "seconds": 0, "slowest": 0}
    for i in range(0, len(way.places), batch):
        b = slice(i, i + batch)
        began = time.perf_counter()
        said = do(b)
        took = time.perf_counter() - began
        out["seconds"] += took
        out["slowest"] = max(out["slowest"], took)
        for what, place, value in zip(said, way.places[b], values[b]):
            out["wrong" if what == "got" and bytes(place) != value else what] += 1
    return {"pass": out}


def lossy(way, values, batch, line):
    """Answers what is asked where a process is killed."""
    blank, do = bytes(len(values[0])), line.split()
    if do[0] == "kill":
        way.kill(do[1])
    elif do[0] == "again":
        way.again()
    elif do[0] == "end":
        for way.names in [way.names, *way.later]:
            way.end()
    elif do[0] == "fill":
        if not way.whole:
            way.start()
        way.begin()
        way.later = []
        fill(way, values)
        for i in range(0, len(values), batch):
            way.put(slice(i, i + batch))
        way.filled()
    elif do[0] == "pass":
        fill(way, [blank] * len(values))
        return pass_of(way, values, batch, way.got)
    elif do[0] == "more":
        names = way.names
        way.begin()
        fill(way, values)
        out = pass_of(way, values, batch, way.stored)
        way.later, way.names = [way.names], names
        return out
    return {}


def fill(way, values):
    for place, value in zip(way.places, values):
        place[:] = value


def round_of(way, values, batch):
    """Puts all blocks, and gets all into memory that is blank: from drives, where there are any, and from memory."""
    size, n = len(values[0]), len(values)
    batches = [slice(i, i + batch) for i in range(0, n, batch)]
    way.begin()
    fill(way, values)

    def put():
        for b in batches:
            way.put(b)

    def get():
        for b in batches:
            way.get(b)

    def got(rest=0):
        """Gets all, after a rest: what that took, and how many blocks have other bytes."""
        fill(way, [bytes(size)] * n)
        time.sleep(rest)
        took = timed(get, n * size, n)
        return took, sum(bytes(place) != value for place, value in zip(way.places, values))

    out = {"put": timed(put, n * size, n), "wrong": 0}
    if way.drives:
        out["cold_in_memory"] = way.in_memory()
        out["cold"], out["wrong"] = got(rest=1 if n * size >= 64 << 20 else 0)  # as the others do
    for _ in range(8):  # of copies either may be read
        for b in batches:
            way.warm(b)
        out["in_memory"] = way.in_memory()
        if out["in_memory"] == n:
            break
    out["get"], wrong = got()
    out["wrong"] += wrong
    way.end()
    if way.drives:  # else a put is to memory
        out["accepted"] = timed(lambda: [way.accept(b) for b in batches], n * size, n)
        way.accepted()
    else:
        out["accepted"] = out["put"]
    return out


def main(kind, blocks, size, batch, keys, *rest):
    blocks, size, batch, keys = int(blocks), int(size), int(batch), int(keys)
    answers = os.fdopen(os.dup(1), "w")  # what libraries print is not an answer
    os.dup2(2, 1)

    def say(answer):
        print(json.dumps(answer), file=answers, flush=True)

    try:
        way = {"skepkv": Skepkv, "each": Each, "mooncake": Mooncake}[kind](blocks, size, keys, *rest)
    except Skipped as e:
        say({"skipped": str(e)})
        return
    say({"version": way.version})
    values = [os.urandom(size) for _ in range(blocks)]
    for line in sys.stdin:
        if line == "round\n":
            say(round_of(way, values, batch))
        elif line == "lookup\n":
            say({"us": way.lookups()})
        else:
            say(lossy(way, values, batch, line))
    answers.close()
    os._exit(0)  # Mooncake's threads may not


if __name__ == "__main__":
    segment(*sys.argv[2:]) if sys.argv[1] == "segment" else main(*sys.argv[1:])
