#!/usr/bin/env python3
"""How fast blocks go to a server and back, and what that costs this process.

    bench.py SOCKET HOST:PORT    64 blocks of 4 MiB in batches of 16, by each way to the server in turn, five rounds
    bench.py sglang SOCKET DIR   64 pages of 4 MiB, as SGLang's controller moves them: skepkv.sglang in its page_first
                                 pool, and in its layer_first one, where a page lies in 32 pieces, and SGLang's own
                                 HiCacheFile in DIR, in turn, seven rounds. It runs by
                                 tools/skepkv/engines.sh bench sglang SOCKET DIR
    bench.py vllm SOCKET DIR     64 chunks of 4 MiB, one job each way, by vLLM's tiering manager: skepkv.vllm in vLLM's
                                 own memory and with copies, and in DIR vLLM's fs tier and its kvcr tier (a file of
                                 NIXL's POSIX), in turn, seven rounds; likewise by engines.sh bench vllm. KVCR puts into
                                 its memory, of 64 chunks, and writes as many others from there to make room
    bench.py lmcache SOCKET DIR  64 chunks of 4 MiB in batches of 16, through LMCache's L2 adapters: skepkv.lmcache as
                                 plugin and as native_plugin, and in DIR LMCache's own fs_native (O_DIRECT) and
                                 raw_block (a file, io_uring, O_DIRECT), in turn, seven rounds; by engines.sh bench
                                 lmcache
    bench.py kvstash SOCKET HOST:PORT NAMESPACE TOKEN
                                 64 blocks of 4 MiB in batches of 16, by skepkv, whose puts wait for drives or for
                                 memory, and by KVStash's own client, whose puts wait for memory and whose gets come
                                 from its drive, in turn, seven rounds. Its daemon, kvblockd, runs with a file system in
                                 nvme_paths, and dram_arena_bytes 536870912, nvme_admit_min_hits 0,
                                 nvme_promote_window_ms 0, nvme_demote_watermark_pct 50, nvme_demote_batch_pct 49,
                                 which has it write what it was given to its drive. By engines.sh bench kvstash

Medians. Every byte is compared. What a put writes is deleted after each round. SKEPKV_ROUNDS is another number of
rounds.
"""

import concurrent.futures
import json
import mmap
import os
import socket as socketlib
import statistics
import sys
import time

import skepkv

BLOCKS, SIZE, BATCH = 64, 4 << 20, 16


def rounds(usual=7):
    return range(int(os.environ.get("SKEPKV_ROUNDS") or usual))


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


def page_rounds(way, engine, names):
    """Sets all pages and gets all into a blank pool, as HiCacheController does: GB/s and CPU-s/GB of each."""
    pool, storage, indices = engine.pool, engine.storage, engine.indices(0, BLOCKS)
    tokens = pool.page_size
    engine.fill(names)

    def put():
        if way.startswith("skepkv"):
            assert all(storage.batch_set_v1(names, indices, None))
        else:  # _generic_page_set
            assert storage.batch_set(names, [pool.get_data_page(indices[i * tokens]) for i in range(BLOCKS)])

    def get():
        if way.startswith("skepkv"):
            assert all(storage.batch_get_v1(names, indices, None))
            return
        into = [pool.get_dummy_flat_data_page() for _ in names]  # _generic_page_get
        for i, page in enumerate(storage.batch_get(names, into)):
            pool.set_from_flat_data_page(indices[i * tokens], page)

    puts = timed(put)
    engine.blank()
    gets = timed(get)
    assert engine.holds(names) == [True] * BLOCKS, "a byte is another one"
    return puts, gets


def sglang(socket, directory):
    sys.setdlopenflags(os.RTLD_LAZY | os.RTLD_GLOBAL)
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tests"))
    from sglang.srt.mem_cache.storage import StorageBackendFactory
    from test_sglang_real import Engine, chain, host_pool

    geometry = {"pages": BLOCKS, "tokens": 64, "layers": 16, "heads": 8, "dim": 128}
    engines = {
        "skepkv.sglang" + way: Engine("unix:" + socket, host_pool(layout=layout, **geometry), shared_bytes=256 << 20)
        for way, layout in (("", "page_first"), (", layer_first", "layer_first"))
    }
    file = engines["HiCacheFile"] = Engine("unix:" + socket, host_pool(**geometry))
    file.config.extra_config = {"file_storage_path": directory}
    file.storage = StorageBackendFactory.create_backend("file", file.config, file.pool)
    file.storage.register_mem_pool_host(file.pool)
    took, tiers = {way: [] for way in engines}, set()
    for i in rounds():
        names = chain(BLOCKS, os.urandom(8).hex())
        for way, engine in list(engines.items())[:: 1 if i % 2 else -1]:
            took[way].append(page_rounds(way, engine, names))
            if way == "HiCacheFile":
                engine.storage.clear()
                continue
            where = engine.storage._space("kv", False)
            with skepkv.connect("unix:" + socket) as store:
                space = store.namespace(where.name, model=where.model, bytes=where.bytes, chained=True, each=True)
                keys = [bytes.fromhex(n) for n in names]
                tiers |= set(space.exists(keys))
                space.delete(keys)
    print("skep had the pages in: " + ", ".join(("", "drives", "memory")[t] for t in sorted(tiers)))
    table("backend", took)


def chunk_rounds(engine, keys, between=None):
    """Stores all chunks in one job and loads all into blank memory in another: GB/s and CPU-s/GB of each. between is
    done between the two."""
    manager, ctx = engine.manager, engine.request()
    out = manager.prepare_store(keys, ctx)
    for key, row in zip(keys, out.store_spec.chunk_ids):
        engine.memory[row] = engine.value(key, engine.size)

    def put():
        manager.complete_store(keys, ctx)
        engine.idle()

    puts = timed(put)
    engine.finish(ctx)
    engine.forget()
    if between:
        between()
    ctx = engine.request()

    def get():
        assert all(engine.look(keys, ctx))

    gets = timed(get)
    engine.check(keys, ctx)
    engine.finish(ctx)
    engine.forget()
    return puts, gets


def kvcr_round(directory, keys):
    """A round of vLLM's kvcr tier, which is open for it alone: its threads never rest. All that it keeps is in a file
    but for the last 64 chunks, and others are stored to have those written."""
    from vllm_engine import Engine, chain

    with socketlib.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    path = os.path.join(directory, "kvcr")
    g3 = {"paths": [path], "capacity_bytes_per_file": 4 * BLOCKS * SIZE, "backend": "POSIX"}
    tier = {"type": "kvcr", "router_capabilities": ["router_hint"], "secondary_g2_slots": BLOCKS, "policy": "g3_lru"}
    tier |= {"control_host": "127.0.0.1", "control_advertise_host": "127.0.0.1", "control_ports": [port], "g3": g3}
    tier |= {"operation_timeout_ms": 60000, "abandon_timeout_ms": 120000}
    engine = Engine("", chunks=BLOCKS, size=SIZE, tier=tier, events=False)
    engine.tier.has_pending_work = lambda: bool(engine.tier._jobs_by_op)  # else it always has

    def others():
        engine.store(chain(BLOCKS, os.urandom(8).hex()))
        engine.forget()

    others()
    out = chunk_rounds(engine, keys, others)
    engine.close()
    return out


def vllm(socket, directory):
    sys.setdlopenflags(os.RTLD_LAZY | os.RTLD_GLOBAL)
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tests"))
    from vllm_engine import Engine, chain

    url = "unix:" + socket
    engines = {
        "skepkv.vllm": Engine(url, chunks=BLOCKS, size=SIZE),
        "skepkv.vllm, copied": Engine(url, chunks=BLOCKS, size=SIZE, direct=False),
        "fs": Engine(url, chunks=BLOCKS, size=SIZE, tier={"type": "fs", "root_dir": directory}),
    }
    print("fs reads and writes " + ("around" if engines["fs"].tier._use_o_direct else "through") + " the page cache")
    engines["kvcr"], skipped = None, ""
    took, places = {way: [] for way in engines}, set()
    for i in rounds():
        keys = chain(BLOCKS, os.urandom(8).hex())
        for way, engine in list(engines.items())[:: 1 if i % 2 else -1]:
            if way == "kvcr":
                try:
                    took[way].append(kvcr_round(directory, keys))
                except (ImportError, RuntimeError) as e:  # it, or NIXL, is not to be had
                    skipped = f"{type(e).__name__}: {e}"
                    del engines[way], took[way]
                continue
            took[way].append(chunk_rounds(engine, keys))
            if way == "fs":
                for key in keys:
                    os.remove(engine.tier.file_mapper.get_file_name(key))
                continue
            where = engine.tier._space(0)
            with skepkv.connect(url) as store:
                space = store.namespace(where.name, model=where.model, bytes=where.bytes, chained=True, each=True)
                places |= set(space.exists([k[:32] for k in keys]))
                space.delete([k[:32] for k in keys])
    print("skep had the chunks in: " + ", ".join(("", "drives", "memory")[t] for t in sorted(places)))
    print("vLLM's memory is " + ("the server's, too" if engines["skepkv.vllm"].tier._region.shared else "copied"))
    if skipped:
        print("skipped: kvcr: " + skipped)
    table("tier", took)
    for engine in filter(None, engines.values()):
        engine.close()
    sys.stdout.flush()
    os._exit(0)  # libraries of KVCR's crash at the end of a process


def lmcache(socket, directory):
    sys.setdlopenflags(os.RTLD_LAZY | os.RTLD_GLOBAL)
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tests"))
    import test_lmcache_real as real
    import torch

    device = os.path.join(directory, "raw_block")
    with open(device, "wb") as f:
        os.posix_fallocate(f.fileno(), 0, (256 << 20) + 4 * BLOCKS * SIZE)
    url, shared = "unix:" + socket, BLOCKS * SIZE
    ways = {
        "skepkv plugin": real.spec("plugin", url=url, shared_bytes=shared),
        "skepkv native_plugin": real.spec("native_plugin", url=url, shared_bytes=shared),
        "fs_native": {"type": "fs_native", "base_path": os.path.join(directory, "fs_native"), "use_odirect": True},
        "raw_block": {"type": "raw_block", "device_path": device, "slot_bytes": SIZE + 4096, "io_engine": "io_uring"},
    }
    os.makedirs(ways["fs_native"]["base_path"])
    adapters = {}
    for way, given in ways.items():
        try:
            adapters[way] = real.create(given)
        except Exception as e:  # of an engine that lacks what it needs here
            print(f"skipped: {way}: {type(e).__name__}: {e}")
    memory = torch.frombuffer(mmap.mmap(-1, BLOCKS * SIZE), dtype=torch.uint8)  # of whole pages, as LMCache's is
    places = [memory[i * SIZE : (i + 1) * SIZE] for i in range(BLOCKS)]
    value = torch.frombuffer(bytearray(os.urandom(BLOCKS * SIZE)), dtype=torch.uint8)
    took, tiers = {way: [] for way in adapters}, set()
    with skepkv.connect(url) as store:
        for i in rounds():
            for way, adapter in list(adapters.items())[:: 1 if i % 2 else -1]:
                engine = real.Engine(adapter, SIZE, model=f"bench-{way}")
                numbers = [int.from_bytes(os.urandom(8), "big") for _ in range(BLOCKS)]
                took[way].append(adapter_rounds(engine, numbers, memory, places, value, real.objects))
                if way.startswith("skepkv"):
                    tiers |= set(real.tiers(store, numbers, engine.of["model"]))
                adapter.delete(engine.keys(numbers))
    print("skep had the chunks in: " + ", ".join(("nothing", "drives", "memory")[t] for t in sorted(tiers)))
    table("adapter", took)
    for adapter in adapters.values():
        adapter.close()


def adapter_rounds(engine, numbers, memory, places, value, objects):
    """Stores all chunks and loads all into blank memory, in batches: GB/s and CPU-s/GB of each."""
    a, batches = engine.adapter, [slice(i, i + BATCH) for i in range(0, BLOCKS, BATCH)]
    keys, chunks = engine.keys(numbers), objects(places)
    memory.copy_(value)

    def put():
        for b in batches:
            task = a.submit_store_task(keys[b], chunks[b])
            done = engine.wait(a.get_store_event_fd(), lambda: a.pop_completed_store_tasks().get(task))
            assert done.is_successful()

    def get():
        for b in batches:
            task = a.submit_load_task(keys[b], chunks[b])
            loaded = engine.wait(a.get_load_event_fd(), lambda: a.query_load_result(task))
            assert all(loaded.test(j) for j in range(BATCH))

    puts = timed(put)
    memory.zero_()
    assert all(engine.lock(numbers)), "LMCache loads what it has locked"
    gets = timed(get)
    engine.unlock(numbers)
    assert memory.equal(value), "a byte is another one"
    return puts, gets


def kvstash(socket, address, namespace, token):
    from kvblockd.client import Client

    url, values = "unix:" + socket, [os.urandom(SIZE) for _ in range(BLOCKS)]
    own = memoryview(mmap.mmap(-1, BLOCKS * SIZE))
    into = [own[i * SIZE : (i + 1) * SIZE] for i in range(BLOCKS)]
    client = Client(address, namespace=namespace, token=token, op_timeout=60)
    threads = concurrent.futures.ThreadPoolExecutor(4)  # as many as it has connections
    took = {"skepkv, to drives": [], "skepkv, to memory": [], "KVStash, to memory": []}
    with skepkv.connect(url, shared_bytes=128 << 20) as store:
        space = store.namespace("skepkv/bench/kvstash", bytes=SIZE, chained=True, each=True)
        tiers = {way: set() for way in list(took)[:2]}
        for i in rounds():
            for way in list(took)[:: 1 if i % 2 else -1]:
                keys = [skepkv.key(os.urandom(16)) for _ in range(BLOCKS)]
                batches = [slice(j, j + BATCH) for j in range(0, BLOCKS, BATCH)]
                if way.startswith("skepkv"):

                    def put(accepted="memory" in way):
                        for b in batches:
                            assert space.put(keys[b], values[b], timeout=60, accepted=accepted)

                    def get():
                        for b in batches:
                            assert space.restore(keys[b], into[b], timeout=60)

                    puts = timed(put)
                    store.flush()
                    tiers[way] |= set(space.exists(keys))
                else:

                    def put():
                        for b in batches:
                            assert all(status in (0, 1) for status in threads.map(client.put, keys[b], values[b]))

                    def get():
                        for b in batches:
                            places = into[b]
                            got = client.batch_get_scatter(keys[b], 0, lambda j, *_: places[j])
                            assert not any(got), got

                    puts = timed(put)
                    fillers = to_its_drive(client)
                own[:] = bytes(len(own))
                gets = timed(get)
                for to, value in zip(into, values):
                    assert to == value, "a byte is another one"
                if way.startswith("skepkv"):
                    space.delete(keys)
                else:
                    client.delete(keys + fillers, force=True)  # what was read is leased for a while
                took[way].append((puts, gets))
    for way, seen in tiers.items():
        print(f"{way}: it had the blocks in " + ", ".join(("nothing", "drives", "memory")[t] for t in sorted(seen)))
    table("store", took)
    client.close()


def to_its_drive(client):
    """Waits until kvblockd has written what it was given to its drive, but for a few blocks. It does so once a half of
    its memory is in use, so it is given others, whose keys are returned."""
    fillers = []
    for _ in range(600):
        stats = json.loads(client.stats())
        if stats["bytes"] <= 4 * SIZE:
            return fillers
        if stats["arena_free_bytes"] > stats["arena_bytes"] // 2:
            fillers.append(skepkv.key(os.urandom(16)))
            client.put(fillers[-1], os.urandom(SIZE))
        time.sleep(0.1)
    raise AssertionError(f"kvblockd keeps blocks in its memory: {stats}")


def table(what, took):
    print(f"| {what} | put GB/s | client CPU-s/GB | restore GB/s | client CPU-s/GB |\n|---|---|---|---|---|")
    for way, rounds in took.items():
        cells = [statistics.median(r[i][j] for r in rounds) for i in (0, 1) for j in (0, 1)]
        print(f"| {way} | " + " | ".join(f"{c:.2f}" if i % 2 == 0 else f"{c:.3f}" for i, c in enumerate(cells)) + " |")


def main(socket, tcp):
    values = [os.urandom(SIZE) for _ in range(BLOCKS)]
    into = [memoryview(bytearray(SIZE)) for _ in range(BLOCKS)]
    direct = skepkv.connect("unix:" + socket, shared_bytes=BLOCKS * SIZE + (8 << 20))
    mine = direct.alloc(BLOCKS * SIZE).blocks(BLOCKS)
    with open(f"/dev/shm/skepkv-bench-{os.getpid()}", "x+b") as f:
        os.unlink(f.name)
        f.truncate(BLOCKS * SIZE)
        own = memoryview(mmap.mmap(f.fileno(), 0))
    own[:] = bytes(len(own))  # pages that are there, as an engine's are
    owns = [own[i * SIZE : (i + 1) * SIZE] for i in range(BLOCKS)]
    registered = skepkv.connect("unix:" + socket, shared_bytes=1)
    registered.register(own)
    ways = {
        "shared memory": (direct, mine),
        "own memory, registered": (registered, owns),
        "staged in shared memory": (skepkv.connect("unix:" + socket, shared_bytes=128 << 20), None),
        "Unix socket": (skepkv.connect("unix:" + socket, shared_bytes=0), None),
        "TCP": (skepkv.connect(tcp), None),
    }
    took = {way: [] for way in ways}
    for _ in rounds(5):
        for way, (store, memory) in ways.items():
            took[way].append(one(store, memory, values, into))
    table("way", took)


if __name__ == "__main__":
    ways = {"sglang": sglang, "vllm": vllm, "lmcache": lmcache, "kvstash": kvstash}
    ways.get(sys.argv[1], lambda *_: main(*sys.argv[1:]))(*sys.argv[2:])
