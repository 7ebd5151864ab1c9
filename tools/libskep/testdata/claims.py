#!/usr/bin/env python3
"""Claims by a word from Python: one process restores a chain by two pointers, another, which only has the word in a
page of shared memory, claims what it "computes". Each block is loaded or granted, once.

    python3 claims.py LIBSKEP.SO DIRECTORY
"""
import ctypes as c
import json
import mmap
import os
import subprocess
import sys
import time

lib = c.CDLL(sys.argv[1])
LAYERS, DIM, UNIT, BLOCKS = 8, 64, 16, 256
PLANE, BYTES, TOKENS = BLOCKS * UNIT * DIM * 2, LAYERS * 2 * UNIT * DIM * 2, BLOCKS * UNIT
PER = 20e-6  # seconds a block takes to compute


class Claimed(c.Structure):
    _fields_ = [("first", c.c_int64), ("end", c.c_int64), ("jump", c.c_int64)]


class Cost(c.Structure):
    _fields_ = [("fixed_ns", c.c_int64), ("per_token_ns", c.c_int64), ("per_square_ns", c.c_double),
                ("suffix", c.c_int64)]


class Error(c.Structure):
    _fields_ = [("code", c.c_int32), ("message", c.c_char * 252)]


class Scope(c.Structure):
    _fields_ = [("namespace_id", c.c_uint32), ("salt_bytes", c.c_uint32), ("salt", c.c_char_p)]


class Paged(c.Structure):
    _fields_ = [("order", c.c_uint32), ("where", c.c_uint32), ("layers", c.c_uint32), ("page_tokens", c.c_uint32),
                ("page_stride", c.c_int64), ("plane_bytes", c.c_int64), ("k", c.POINTER(c.c_uint64)),
                ("v", c.POINTER(c.c_uint64)), ("slots", c.POINTER(c.c_int64))]


def claim(page):
    """The other process: claims by the word alone, and notes in the page which blocks it was granted."""
    word, last, got, pos = c.c_uint64.from_buffer(page), c.c_uint64(), Claimed(), 0
    while pos < TOKENS and not page[8]:
        answered = lib.skep_word_claim_call(c.byref(word), c.byref(last), c.c_int64(UNIT), c.c_int64(TOKENS),
                                            c.c_int64(pos), c.c_int64(min(pos + 4 * UNIT, TOKENS)), 0, c.byref(got))
        n = (got.end - got.first) // UNIT
        for i in range(got.first // UNIT, got.end // UNIT):
            page[64 + i] += 1
        time.sleep(max(n * PER, 1e-4 if not answered else 5e-5))
        pos = got.jump


def call(function, *args):
    err = Error()
    if getattr(lib, function)(*args, c.byref(err)):
        raise RuntimeError(f"{function}: {err.code}: {err.message.decode()}")


if len(sys.argv) == 4:
    with open(sys.argv[3], "r+b") as f:
        claim(mmap.mmap(f.fileno(), 4096))
    sys.exit()

path = os.path.join(sys.argv[2], "word")
with open(path, "wb") as f:
    f.write(bytes(4096))
f = open(path, "r+b")
page = mmap.mmap(f.fileno(), 4096)
store, namespace, scope = c.c_uint64(), c.c_uint32(), Scope()
call("skep_open", json.dumps({"dir": os.path.join(sys.argv[2], "store"), "devices": 1, "capacity_bytes": 256 << 20,
                              "dram_bytes": -1}).encode(), c.byref(store))
call("skep_namespace", store, json.dumps({"tenant": "t", "name": "claims", "model": "m", "chained": True, "shape": {
    "kind": 1, "layers": LAYERS, "kv_heads": 1, "head_dim": DIM, "element": 1, "block_tokens": UNIT}}).encode(),
     c.byref(namespace))
scope.namespace_id = namespace.value
keys = b"".join(i.to_bytes(2, "little") + bytes([7] * 30) for i in range(BLOCKS))
blocks = [bytes([1 + i % 250]) * BYTES for i in range(BLOCKS)]
for i in range(0, BLOCKS, 64):
    pointers = (c.c_char_p * 64)(*blocks[i:i + 64])
    call("skep_put", store, c.byref(scope), keys[32 * (i - 1):32 * i] if i else None, c.c_uint32(i), keys[32 * i:],
         c.c_uint32(64), pointers, c.c_int64(BYTES), (c.c_uint8 * 64)())
cache = [c.create_string_buffer(b"\xee" * PLANE, PLANE) for _ in range(2 * LAYERS)]
k, v = ((c.c_uint64 * LAYERS)(*[c.addressof(p) for p in cache[x::2]]) for x in range(2))
dest = Paged(1, 0, LAYERS, UNIT, UNIT * DIM * 2, PLANE, k, v, (c.c_int64 * TOKENS)(*range(TOKENS)))
restore, states, waiting = c.c_uint64(), (c.c_uint8 * BLOCKS)(), c.c_uint32(BLOCKS)
cost = Cost(0, int(PER * 1e9 / UNIT), 0, 0)
word = c.c_uint64.from_buffer(page)
other = subprocess.Popen([sys.executable, *sys.argv, path])
call("skep_restore_begin", store, c.byref(scope), keys, c.c_uint32(BLOCKS), c.c_uint32(0), c.c_uint32(BLOCKS),
     c.byref(dest), c.c_uint64(0), c.byref(cost), c.byref(word), c.c_int64(60000), c.byref(restore))
while waiting.value:
    call("skep_restore_poll", restore, c.c_int64(1000), states, c.byref(waiting))
page[8] = 1
assert other.wait() == 0
call("skep_restore_end", restore, c.c_int64(0))
call("skep_close", store)
for i in range(BLOCKS):
    assert page[64 + i] == (states[i] == 2) and states[i] in (1, 2), (i, page[64 + i], states[i])
    want = blocks[i][:UNIT * DIM * 2] if states[i] == 1 else b"\xee" * (UNIT * DIM * 2)
    for p in cache:
        assert p.raw[i * len(want):(i + 1) * len(want)] == want, i
print("every block loaded or granted, once")
