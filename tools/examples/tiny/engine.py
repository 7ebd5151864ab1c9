"""A tiny engine that computes: a transformer of random weights, in NumPy on one core, whose KV is kept in skep.

    python engine.py --server unix:kv/skep.sock                a prompt of 4,096 tokens; run it twice
    python engine.py --server unix:kv/skep.sock --compare 7    computed and restored, in turns
    python engine.py --embed /tmp/kv                           the store in this process

It does what a serving engine does: prompts are computed in chunks, KV lies in pages that a table names, a page's key
says all tokens up to its end, and what the store has is loaded into the pages instead of being computed. The end of the
prefix is loaded while its beginning is computed, until the two meet. Chunks have the same shapes either way, so the
logits are the same bits.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # sums are in one order, however busy the machine
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import contextlib
import hashlib
import json
import mmap
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from typing import Iterator

import numpy as np

import skepkv

BLOCK = 16  # tokens of a page
CHUNK = 128  # tokens that are computed at once: whole pages
AHEAD = 4  # chunks that are loaded at once


@dataclass(frozen=True)
class Shape:
    """The model's: KV heads are shared by groups of heads."""

    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    dim: int = 64  # of a head
    vocabulary: int = 512
    seed: int = 7  # of the weights
    dtype: str = "float32"

    @property
    def width(self) -> int:
        return self.heads * self.dim

    @property
    def page(self) -> tuple[int, ...]:
        return (self.layers, 2, self.kv_heads, BLOCK, self.dim)

    @property
    def page_bytes(self) -> int:
        return int(np.prod(self.page)) * np.dtype(self.dtype).itemsize

    def fingerprint(self) -> str:
        """All that tells KV of this model from that of others under the same tokens."""
        about = {**asdict(self), "block": BLOCK, "chunk": CHUNK, "numpy": np.__version__}
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]


class Model:
    """Random weights, always the same of one seed."""

    def __init__(self, shape: Shape) -> None:
        self.shape = s = shape
        r = np.random.default_rng(s.seed)

        def matrix(rows: int, columns: int) -> np.ndarray:
            return (r.standard_normal((rows, columns)) / np.sqrt(rows)).astype(s.dtype)

        self.embedding = matrix(s.vocabulary, s.width)
        kv = s.kv_heads * s.dim
        self.layers = [
            {
                "q": matrix(s.width, s.width),
                "k": matrix(s.width, kv),
                "v": matrix(s.width, kv),
                "o": matrix(s.width, s.width),
                "up": matrix(s.width, 4 * s.width),
                "down": matrix(4 * s.width, s.width),
            }
            for _ in range(s.layers)
        ]

    def chunk(self, tokens: np.ndarray, at: int, cache: "Cache", table: list[int]) -> np.ndarray:
        """Computes CHUNK tokens that begin at position at, writes their KV into pages, and gives their logits."""
        s, n = self.shape, len(tokens)
        x = self.embedding[tokens]
        places = np.arange(at, at + n, dtype=s.dtype)
        seen = np.arange(at + n)[None, :] <= np.arange(at, at + n)[:, None]
        for i, w in enumerate(self.layers):
            h = _normed(x)
            q = _turned((h @ w["q"]).reshape(n, s.heads, s.dim).transpose(1, 0, 2), places)
            k = _turned((h @ w["k"]).reshape(n, s.kv_heads, s.dim).transpose(1, 0, 2), places)
            v = (h @ w["v"]).reshape(n, s.kv_heads, s.dim).transpose(1, 0, 2)
            cache.write(table, i, at, k, v)
            k, v = cache.read(table, i, at + n)
            out = np.empty((n, s.heads, s.dim), s.dtype)
            for head in range(s.heads):
                of = head * s.kv_heads // s.heads
                weight = q[head] @ k[of].T / np.sqrt(np.asarray(s.dim, s.dtype))
                weight = np.where(seen, weight, -np.inf)
                weight = np.exp(weight - weight.max(1, keepdims=True))
                out[:, head] = (weight / weight.sum(1, keepdims=True)) @ v[of]
            x = x + out.reshape(n, s.width) @ w["o"]
            x = x + np.maximum(_normed(x) @ w["up"], 0) @ w["down"]
        return _normed(x) @ self.embedding.T


def _normed(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.asarray(1e-5, x.dtype))


def _turned(x: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Rotary positions."""
    half = x.shape[-1] // 2
    angle = places[:, None] / 10000 ** (np.arange(half, dtype=x.dtype) / half)
    cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


class Cache:
    """Paged KV in a file in memory, which a server can map, too."""

    def __init__(self, shape: Shape, pages: int) -> None:
        self._file = tempfile.TemporaryFile(dir="/dev/shm")
        size = -(-pages * shape.page_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._file.truncate(size)
        self.memory = memoryview(mmap.mmap(self._file.fileno(), size))
        flat = np.frombuffer(self.memory, shape.dtype, pages * int(np.prod(shape.page)))
        self.pages = flat.reshape(pages, *shape.page)
        self._each = shape.page_bytes
        self.free = list(range(pages))

    def close(self) -> None:
        self._file.close()

    def view(self, page: int) -> memoryview:
        return self.memory[page * self._each : (page + 1) * self._each]

    def write(self, table: list[int], layer: int, at: int, k: np.ndarray, v: np.ndarray) -> None:
        for i in range(0, k.shape[1], BLOCK):
            page = self.pages[table[(at + i) // BLOCK]]
            page[layer, 0] = k[:, i : i + BLOCK]
            page[layer, 1] = v[:, i : i + BLOCK]

    def read(self, table: list[int], layer: int, to: int) -> tuple[np.ndarray, np.ndarray]:
        kv = self.pages[table[: to // BLOCK], layer]  # pages, K and V, heads, BLOCK, dim
        kv = kv.transpose(1, 2, 0, 3, 4).reshape(2, kv.shape[2], to, -1)
        return kv[0], kv[1]


@dataclass
class Answer:
    """What became of a prompt."""

    logits: np.ndarray  # of its last chunk
    seconds: float  # to the first token
    found: int  # tokens that the store had
    loaded: int  # of these, those that were loaded; others were computed meanwhile
    stored: int  # tokens that were stored afterwards

    def digest(self) -> str:
        return hashlib.sha256(self.logits.tobytes()).hexdigest()


class Engine:
    """A model, its pages, and a store; None: everything is computed."""

    def __init__(self, shape: Shape, store: skepkv.Store | None, tokens: int) -> None:
        self.shape, self.model = shape, Model(shape)
        self.cache = Cache(shape, -(-tokens // CHUNK) * (CHUNK // BLOCK))
        self.space = self.registered = None
        if store is not None:
            self.space = store.namespace(
                f"tiny/{shape.fingerprint()}", chained=True, block_tokens=BLOCK, bytes=shape.page_bytes
            )
            with contextlib.suppress(skepkv.SkepError):  # then bytes come through the socket
                self.registered = store.register(self.cache.memory)

    def close(self) -> None:
        if self.registered is not None:
            self.registered.free()
        self.cache.close()

    def ask(self, prompt: np.ndarray, use: bool = True) -> Answer:
        """Computes a prompt of whole chunks as far as it is not in the store, and stores what was computed."""
        if len(prompt) == 0 or len(prompt) % CHUNK:
            raise ValueError(f"the prompt has {len(prompt)} tokens, must be one or more chunks of {CHUNK}")
        each, began = CHUNK // BLOCK, time.perf_counter()
        table = [self.cache.free.pop() for _ in range(len(prompt) // BLOCK)]
        names, found, lease = self.names(prompt), 0, None
        chunks = len(prompt) // CHUNK
        try:
            if use and self.space is not None:
                with _without():
                    hit = self.space.lookup(names, lease=30.0)
                    found, lease = hit.blocks, hit.lease
            meeting = _Meeting(min(found // each, chunks - 1))  # the last chunk's logits are computed in any case
            loader = threading.Thread(target=self._load, args=(meeting, names, table, lease))
            loader.start()
            logits = None
            for i in range(chunks):
                if meeting.compute(i):
                    logits = self.model.chunk(prompt[i * CHUNK : (i + 1) * CHUNK], i * CHUNK, self.cache, table)
            seconds = time.perf_counter() - began
            loader.join()
            stored = 0
            if use and self.space is not None and found < len(names):
                views = [self.cache.view(p) for p in table[found:]]
                parent = names[found - 1] if found else None
                with _without():
                    stored = sum(o != 0 for o in self.space.put(names[found:], views, parent, found).outcomes)
        except skepkv.NotReleased:
            table = []  # a drive may write to these pages yet: nobody gets them again
            raise
        finally:
            if lease is not None:
                with _without():
                    lease.release()
            self.cache.free.extend(table)
        return Answer(logits, seconds, found * BLOCK, meeting.loaded() * CHUNK, stored * BLOCK)

    def names(self, prompt: np.ndarray) -> list[bytes]:
        """A page's key is of all tokens up to its end."""
        names, before = [], b""
        for i in range(0, len(prompt), BLOCK):
            before = skepkv.key(before, prompt[i : i + BLOCK].astype("<u4").tobytes())
            names.append(before)
        return names

    def _load(self, meeting: "_Meeting", names: list[bytes], table: list[int], lease: skepkv.Lease | None) -> None:
        """Loads chunks from the last one towards the first, until it meets who computes."""
        each = CHUNK // BLOCK
        for part in meeting.parts():
            at = [b for i in part for b in range(i * each, (i + 1) * each)]
            landed, into = [False] * len(at), [self.cache.view(table[b]) for b in at]
            try:
                with _without():
                    landed = self.space.restore([names[b] for b in at], into, lease).landed
            except skepkv.NotReleased as e:
                meeting.end(e)
                return
            meeting.landed({i: all(landed[k * each : (k + 1) * each]) for k, i in enumerate(part)})


@contextlib.contextmanager
def _without() -> Iterator[None]:
    """A store that fails is a miss: the engine goes on without it."""
    try:
        yield
    except skepkv.NotReleased:
        raise
    except skepkv.SkepError as e:
        print(f"without the store: {e}", file=sys.stderr)


class _Meeting:
    """Who does which chunk of a prefix: one computes from its beginning, another one loads from its end."""

    def __init__(self, chunks: int) -> None:
        self._head, self._tail = 0, chunks  # [head, tail) is nobody's yet
        self._there: dict[int, bool] = {}
        self._changed = threading.Condition()
        self._all = chunks
        self._error: Exception | None = None

    def compute(self, i: int) -> bool:
        """Whether chunk i is to be computed; it waits for one that is being loaded. Chunks are asked for in order."""
        with self._changed:
            if i >= self._all:
                return True
            if i < self._tail:
                self._head = i + 1
                return True
            self._changed.wait_for(lambda: i in self._there or self._error)
            if self._error:
                raise self._error
            return not self._there[i]

    def parts(self) -> Iterator[list[int]]:
        while True:
            with self._changed:
                first = max(self._head, self._tail - AHEAD)
                part = list(range(first, self._tail))
                self._tail = max(self._head, first) if part else self._tail
            if not part:
                return
            yield part

    def landed(self, there: dict[int, bool]) -> None:
        with self._changed:
            self._there.update(there)
            self._changed.notify_all()

    def end(self, error: Exception) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def loaded(self) -> int:
        return sum(self._there.values())


def main() -> int:
    p = argparse.ArgumentParser(description="a tiny engine that keeps its KV in skep")
    p.add_argument("--server", help="unix:/path or host:port")
    p.add_argument("--embed", help="directory of a store in this process")
    p.add_argument("--prompt-tokens", type=int, default=4096)
    p.add_argument("--prompt", type=int, default=1, help="number of the prompt")
    p.add_argument("--seed", type=int, default=7, help="of the weights")
    p.add_argument("--compare", type=int, default=0, metavar="N", help="N rounds: computed, and restored, in turns")
    p.add_argument("-o", "--output", choices=["table", "json"], default="table")
    a = p.parse_args()
    if a.server and a.embed:
        p.error("--server and --embed: one of them")
    shape = Shape(seed=a.seed)
    prompt = np.random.default_rng(a.prompt).integers(0, shape.vocabulary, a.prompt_tokens)
    with contextlib.ExitStack() as ends:
        store = None
        if a.server:
            store = ends.enter_context(skepkv.connect(a.server))
        elif a.embed:
            store = ends.enter_context(skepkv.embed(a.embed, devices=1, capacity_bytes=1 << 30))
        engine = Engine(shape, store, a.prompt_tokens)
        ends.callback(engine.close)
        if not a.compare:
            got = engine.ask(prompt)
            out = {"found": got.found, "loaded": got.loaded, "stored": got.stored, "seconds": got.seconds}
            out["logits"] = got.digest()
            if a.output == "json":
                print(json.dumps(out))
            else:
                print(f"found     {got.found} of {a.prompt_tokens} tokens, {got.loaded} of them loaded")
                print(f"first     token after {1000 * got.seconds:.0f} ms")
                print(f"stored    {got.stored} tokens")
                print(f"logits    {got.digest()[:16]}")
            return 0
        if store is None:
            p.error("--compare needs --server or --embed")
        engine.ask(prompt)
        rounds = [(engine.ask(prompt, use=False), engine.ask(prompt)) for _ in range(a.compare)]
    computed, restored = (statistics.median(r[i].seconds for r in rounds) for i in (0, 1))
    same = len({answer.digest() for r in rounds for answer in r}) == 1
    size = rounds[0][1].loaded // BLOCK * shape.page_bytes
    if a.output == "json":
        out = {"prompt_tokens": a.prompt_tokens, "rounds": a.compare, "loaded_bytes": size, "identical": same}
        print(json.dumps({**out, "computed_seconds": computed, "restored_seconds": restored}))
    else:
        print(f"{a.prompt_tokens} tokens, {a.compare} rounds, medians")
        print(f"computed  first token after {1000 * computed:7.0f} ms")
        sooner = f"{size >> 20} MiB loaded: {computed / restored:.1f} times sooner"
        print(f"restored  first token after {1000 * restored:7.0f} ms, {sooner}")
        print(f"logits    {'the same bits' if same else 'DIFFER'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
