#!/usr/bin/env python3
"""libskep from Python, by ctypes alone: put a chain of blocks, find it, restore it into a
paged cache of K and V. With tensors of PyTorch the addresses are tensor.data_ptr().

    python3 example.py LIBSKEP.SO DIRECTORY
"""
import ctypes as c
import json
import sys

lib = c.CDLL(sys.argv[1])


class Error(c.Structure):
    _fields_ = [("code", c.c_int32), ("message", c.c_char * 252)]


class Scope(c.Structure):
    _fields_ = [("namespace_id", c.c_uint32), ("salt_bytes", c.c_uint32), ("salt", c.c_char_p)]


class Found(c.Structure):
    _fields_ = [("blocks", c.c_int64), ("tokens", c.c_int64), ("bytes", c.c_int64), ("lease", c.c_uint64)]


class Paged(c.Structure):
    _fields_ = [("order", c.c_uint32), ("where", c.c_uint32), ("layers", c.c_uint32), ("page_tokens", c.c_uint32),
                ("page_stride", c.c_int64), ("plane_bytes", c.c_int64), ("k", c.POINTER(c.c_uint64)),
                ("v", c.POINTER(c.c_uint64)), ("slots", c.POINTER(c.c_int64))]


def call(function, *args):
    err = Error()
    if getattr(lib, function)(*args, c.byref(err)):
        raise RuntimeError(f"{function}: {err.code}: {err.message.decode()}")


LAYERS, HEADS, DIM, TOKENS, BLOCKS = 2, 2, 8, 4, 3
PLANE = BLOCKS * TOKENS * HEADS * DIM * 2

store = c.c_uint64()
call("skep_open", json.dumps({"dir": sys.argv[2], "devices": 1, "capacity_bytes": 256 << 20}).encode(), c.byref(store))
scope = Scope()
namespace = c.c_uint32()
call("skep_namespace", store, json.dumps({
    "tenant": "t", "name": "python", "model": "m", "copies": 1, "chained": True,
    "shape": {"kind": 1, "layers": LAYERS, "kv_heads": HEADS, "head_dim": DIM, "element": 1, "block_tokens": TOKENS,
              "order": 1},
}).encode(), c.byref(namespace))
scope.namespace_id = namespace.value

SLICE = PLANE // BLOCKS
slices = [[[bytes([(b * 50 + l * 20 + v * 10 + i) % 251 for i in range(SLICE)]) for v in range(2)]
           for l in range(LAYERS)] for b in range(BLOCKS)]
blocks = [c.create_string_buffer(b"".join(b"".join(layer) for layer in block), 2 * LAYERS * SLICE) for block in slices]
keys = b"".join(bytes([i + 1]) * 32 for i in range(BLOCKS))
pointers = (c.c_void_p * BLOCKS)(*[c.addressof(b) for b in blocks])
outcomes = (c.c_uint8 * BLOCKS)()
call("skep_put", store, c.byref(scope), None, c.c_uint32(0), keys, c.c_uint32(BLOCKS), pointers,
     c.c_int64(len(blocks[0])), outcomes)

found = Found()
call("skep_lookup", store, c.byref(scope), keys, c.c_uint32(BLOCKS), c.c_int64(-1), c.byref(found))
assert found.blocks == BLOCKS, found.blocks

cache = [[c.create_string_buffer(PLANE) for _ in range(LAYERS)] for _ in range(2)]
k, v = ((c.c_uint64 * LAYERS)(*[c.addressof(p) for p in planes]) for planes in cache)
slots = (c.c_int64 * (BLOCKS * TOKENS))(*range(BLOCKS * TOKENS))
dest = Paged(1, 0, LAYERS, TOKENS, PLANE // BLOCKS, PLANE, k, v, slots)
arrived = c.c_uint32()
call("skep_restore", store, c.byref(scope), keys, c.c_uint32(BLOCKS), c.c_uint32(0), c.c_uint32(BLOCKS),
     c.byref(dest), c.c_uint64(0), c.c_int64(0), c.byref(arrived))
assert arrived.value == BLOCKS, arrived.value
for l in range(LAYERS):
    for x in range(2):
        assert cache[x][l].raw == b"".join(slices[b][l][x] for b in range(BLOCKS)), (l, x)
call("skep_close", store)
print(f"{arrived.value} blocks restored")
