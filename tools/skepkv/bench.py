#!/usr/bin/env python3
"""How fast blocks go to a server and back, and what that costs this process: bench.py SOCKET HOST:PORT

64 blocks of 4 MiB in batches of 16, by each way to the server in turn, five rounds; medians. Every byte is compared. What
a put writes is deleted after each round.
"""

import os
import statistics
import sys
import time

import skepkv

BLOCKS, SIZE, BATCH, ROUNDS = 64, 4 << 20, 16, 5


def timed(do):
    began, cpu = time.perf_counter(), time.process_time()
    do()
    gb = BLOCKS * SIZE / 1e9
    return gb / (time.perf_counter() - began), (time.process_time() - cpu) / gb


def one(store, mine, values, into):
    """Puts all, restores all: GB/s and CPU-s/GB of each. With mine the blocks lie in memory shared with the server."""
    space = store.namespace("skepkv/bench")
    keys = [skepkv.key(os.urandom(16)) for _ in range(BLOCKS)]
    batches = [slice(i, i + BATCH) for i in range(0, BLOCKS, BATCH)]
    for to, value in zip(mine or [], values):
        to[:] = value
    source, target = mine or values, mine or into

    def put():
        for b in batches:
            assert space.put(keys[b], source[b], timeout=60)

    def get():
        for b in batches:
            assert space.restore(keys[b], target[b], timeout=60)

    puts = timed(put)
    for to in target:
        to[:] = bytes(SIZE)
    gets = timed(get)
    for to, value in zip(target, values):
        assert to == value, "a byte is another one"
    space.delete(keys)
    return puts, gets


def main(socket, tcp):
    values = [os.urandom(SIZE) for _ in range(BLOCKS)]
    into = [memoryview(bytearray(SIZE)) for _ in range(BLOCKS)]
    direct = skepkv.connect("unix:" + socket, shared_bytes=BLOCKS * SIZE + (8 << 20))
    mine = direct.alloc(BLOCKS * SIZE).blocks(BLOCKS)
    ways = {
        "shared memory": (direct, mine),
        "staged in shared memory": (skepkv.connect("unix:" + socket, shared_bytes=128 << 20), None),
        "Unix socket": (skepkv.connect("unix:" + socket, shared_bytes=0), None),
        "TCP": (skepkv.connect(tcp), None),
    }
    took = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, (store, memory) in ways.items():
            took[way].append(one(store, memory, values, into))
    print("| way | put GB/s | client CPU-s/GB | restore GB/s | client CPU-s/GB |\n|---|---|---|---|---|")
    for way, rounds in took.items():
        cells = [statistics.median(r[i][j] for r in rounds) for i in (0, 1) for j in (0, 1)]
        print(f"| {way} | " + " | ".join(f"{c:.2f}" if i % 2 == 0 else f"{c:.3f}" for i, c in enumerate(cells)) + " |")


if __name__ == "__main__":
    main(*sys.argv[1:])
