"""The storage under SGLang's own classes: its factory, its configuration, its host pool, its controller's transfers."""

import ctypes
import hashlib
import itertools
import logging
import os
import re
import signal
import threading
import unittest

import skepkv
from serving import TOKEN, ObjectStorage, Server, differing, eventually

try:
    import torch
    from sglang.srt.managers.cache_controller import HiCacheController, PrefetchOperation, StorageOperation
    from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
    from sglang.srt.mem_cache.hicache_storage import (
        HiCacheStorageConfig,
        HiCacheStorageExtraInfo,
        PoolHitPolicy,
        PoolName,
        PoolTransfer,
    )
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
    from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.storage import StorageBackendFactory

    missing = ""
except (ImportError, OSError) as e:
    missing = f"SGLang is not installed here: {e}"

PATIENT = {"exists_timeout": 120, "get_timeout": 240, "set_timeout": 240}


def chain(n, seed="a", before=""):
    """n page hashes, each over the one before, as SGLang makes them."""
    out = []
    for i in range(n):
        before = hashlib.sha256(f"{before}{seed}{i}".encode()).hexdigest()
        out.append(before)
    return out


def value(name, n, rank=0):
    """What a page of that name holds: bytes that no other has."""
    return hashlib.shake_128(f"{name}{rank}".encode()).digest(1024) * (n // 1024 + 1)


def host_pool(pages=16, tokens=16, layers=2, heads=2, dim=64, layout="page_first", dtype=None):
    """SGLang's own host pool of an MHA model, on a CPU."""
    dtype = dtype or torch.bfloat16
    device = [torch.zeros((tokens, heads, dim), dtype=dtype) for _ in range(2 * layers)]
    info = MHABufferInfo(
        buffers=KVBuffers(
            k=tuple(device[:layers]),
            v=tuple(device[layers:]),
            k_data_ptrs=torch.tensor([t.data_ptr() for t in device[:layers]]),
            v_data_ptrs=torch.tensor([t.data_ptr() for t in device[layers:]]),
            layout=KVBufferLayout.NHD,
        ),
        page_size=tokens,
        head_num=heads,
        head_dim=dim,
        v_head_dim=dim,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    with host_memory_budget_scope(4 << 30):
        return MHATokenToKVPoolHost(
            info,
            2.0,
            0,
            tokens,
            layout,
            pin_memory=False,
            device_capacity_tokens=tokens,
            start_layer=0,
            end_layer=layers,
            host_token_capacity=pages * tokens,
        )


class Engine:
    """A rank of SGLang, as far as its storage sees it."""

    def __init__(self, url, pool=None, model="org/model-7b", rank=0, size=1, mla=False, **extra):
        self.pool, self.rank = pool or host_pool(), rank
        self.config = HiCacheStorageConfig(
            tp_rank=rank,
            tp_size=size,
            pp_rank=0,
            pp_size=1,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=mla,
            enable_storage_metrics=True,
            is_page_first_layout=self.pool.layout == "page_first",
            model_name=model,
            extra_config={
                "backend_name": "skep",
                "module_path": "skepkv.sglang",
                "class_name": "Storage",
                "interface_v1": 1,
                "url": url,
                "revision": "1",
                **PATIENT,
                **extra,
            },
        )
        self.storage = StorageBackendFactory.create_backend("dynamic", self.config, self.pool)
        self.storage.register_mem_pool_host(self.pool)
        self.storage.on_host_pools_registered()

    def indices(self, at, n):
        tokens = self.pool.page_size
        return torch.arange(at * tokens, (at + n) * tokens)

    def pieces(self, at, n):
        addresses, sizes = self.pool.get_page_buffer_meta(self.indices(at, n))
        each = len(addresses) // n
        pairs = list(zip(addresses, sizes))
        return [pairs[i * each : (i + 1) * each] for i in range(n)]

    def fill(self, names, at=0):
        for name, page in zip(names, self.pieces(at, len(names))):
            data, off = value(name, sum(n for _, n in page), self.rank), 0
            for address, n in page:
                ctypes.memmove(address, data[off : off + n], n)
                off += n

    def blank(self):
        self.pool.kv_buffer.view(torch.uint8).fill_(0xEE)

    def holds(self, names, at=0):
        """Of each page, whether it holds what its name says, True, or what blank left there, None."""
        out = []
        for name, page in zip(names, self.pieces(at, len(names))):
            total = sum(n for _, n in page)
            there = b"".join(ctypes.string_at(a, n) for a, n in page)
            blank = None if there == b"\xee" * total else False
            out.append(True if there == value(name, total, self.rank)[:total] else blank)
        return out

    def set(self, names, prefix=None, at=0):
        self.fill(names, at)
        return self.storage.batch_set_v1(names, self.indices(at, len(names)), info(prefix))

    def get(self, names, prefix=None):
        """Loads pages into a blank pool. What is said to be there is, every byte of it, and the rest is as it was."""
        self.blank()
        landed = self.storage.batch_get_v1(names, self.indices(0, len(names)), info(prefix))
        assert self.holds(names) == [True if there else None for there in landed], self.holds(names)
        return landed

    def exists(self, names, prefix=None):
        return self.storage.batch_exists(names, info(prefix))


def info(prefix):
    return HiCacheStorageExtraInfo(prefix_keys=prefix)


@unittest.skipIf(missing, missing)
class OnServer(unittest.TestCase):
    token, capacity = False, "1GiB"

    def setUp(self):
        logging.getLogger("sglang").setLevel(logging.ERROR)
        self.server = Server(token=self.token, capacity=self.capacity)
        self.addCleanup(self.server.stop)

    def engine(self, *args, **o):
        e = Engine(self.server.url, *args, **o)
        self.addCleanup(e.storage.close)
        return e


class TestPages(OnServer):
    def test_pages_there_and_back(self):
        for layout in ("layer_first", "page_first", "page_first_direct"):
            for prefix in (None, []):
                with self.subTest(layout=layout, chained=prefix is not None):
                    e = self.engine(host_pool(layout=layout))
                    names = chain(10, layout + str(prefix))
                    self.assertEqual((e.exists(names), e.get(names, prefix)), (0, [False] * 10), "a miss")
                    self.assertEqual(e.set(names[:8], prefix), [True] * 8)
                    other = self.engine(host_pool(layout=layout))  # another instance finds what this one stored
                    self.assertEqual(other.exists(names), 8)
                    self.assertEqual(other.get(names, prefix), [True] * 8 + [False] * 2)
                    self.assertEqual(other.set(names, prefix), [True] * 10)
                    c = other.storage.counters()
                    self.assertEqual((c["written"], c["written_there"], c["failed"]), (2, 8, 0))
                    self.assertEqual(e.exists(names), 10)

    def test_a_chain_goes_on_behind_its_prefix(self):
        e, names = self.engine(), chain(12)
        self.assertEqual(e.set(names[:4], []), [True] * 4)
        self.assertEqual(e.set(names[4:8], names[:4]), [True] * 4)
        other = self.engine()
        self.assertEqual(other.exists(names, None), 8, "an empty prefix is left out")
        self.assertEqual(other.exists(names[4:], names[:4]), 4)
        self.assertEqual(other.exists(names[6:], names[:4]), 2, "SGLang leaves pages of a node out of the prefix")
        self.assertEqual(other.exists(names[8:], names[:4]), 0)
        self.assertEqual(other.get(names[4:], names[:4]), [True] * 4 + [False] * 4)
        self.assertEqual(other.get(names[6:], None), [True] * 2 + [False] * 4)
        self.assertEqual(e.set(chain(2, "orphan"), chain(3, "gone")), [True] * 2)
        self.assertEqual(other.exists(chain(2, "orphan"), chain(3, "gone")), 2, "behind a prefix that nobody stored")

    def test_pages_that_are_accepted_are_there_at_once(self):
        e, names = self.engine(accepted=True), chain(12)
        self.assertEqual(e.set(names[:4], []) + e.set(names[4:], names[:4]), [True] * 12)
        self.assertEqual(self.engine().get(names, []), [True] * 12)
        with skepkv.connect(self.server.url) as store:
            store.flush()
        self.assertEqual(e.get(names, []), [True] * 12)
        with self.assertRaisesRegex(ValueError, "accepted"):
            self.engine(accepted="yes")

    def test_a_middle_page_is_missing(self):
        e, names = self.engine(), chain(6)
        self.assertEqual(e.set(names[:2]) + e.set(names[3:]), [True] * 5)
        self.assertEqual(e.exists(names), 2)
        self.assertEqual(e.get(names), [True, True, False, True, True, True], "half a batch")

    def test_copies_are_on_other_drives(self):
        server = Server(devices=2)
        self.addCleanup(server.stop)
        for prefix in (None, []):
            two, one, names = (Engine(server.url, copies=2), Engine(server.url), chain(4, str(prefix)))
            self.addCleanup(two.storage.close)
            self.addCleanup(one.storage.close)
            self.assertEqual(two.set(names, prefix), [True] * 4)
            self.assertEqual(two.get(names, prefix), [True] * 4)
            self.assertEqual(one.exists(names, prefix), 0, "another number is another cache")
            self.assertEqual(two.storage._space("kv", prefix is not None).copies, 2)

    def test_a_miss_between_lookup_and_load(self):
        for prefix in (None, []):
            e, names = self.engine(), chain(4, str(prefix))
            self.assertEqual(e.set(names, prefix), [True] * 4)
            self.assertEqual(e.exists(names, prefix), 4)
            where = e.storage._space("kv", prefix is not None)
            with skepkv.connect(self.server.url) as store:
                shape = {"block_tokens": where.tokens, "bytes": where.bytes}
                space = store.namespace(where.name, model=where.model, chained=True, each=not where.chained, **shape)
                self.assertEqual(space.delete([bytes.fromhex(names[2])]), 1)
            self.assertEqual(e.get(names, prefix)[:3], [True, True, False])
            self.assertEqual(e.exists(names, prefix), 2)

    def test_lengths_that_are_wrong(self):
        e, names = self.engine(), chain(4)
        self.assertEqual(e.set(names), [True] * 4)
        e.blank()
        for indices in (e.indices(0, 3), e.indices(0, 4)[:-1], None):
            self.assertEqual(e.storage.batch_get_v1(names, indices), [False] * 4)
            self.assertEqual(e.storage.batch_set_v1(names, indices), [False] * 4)
        self.assertEqual(e.holds(names), [None] * 4)
        self.assertEqual(self.engine(host_pool(heads=4)).get(names), [False] * 4, "pages of twice the length")
        self.assertEqual(self.engine(host_pool(dtype=torch.float16)).get(names), [False] * 4, "another dtype")
        self.assertEqual(self.engine(host_pool(layout="page_first_direct")).exists(names), 0, "another layout")

    def test_pages_of_2_and_of_32_MiB(self):
        large = Server(capacity="2GiB", block="32MiB")
        self.addCleanup(large.stop)
        for tokens, pages in ((64, 24), (1024, 3)):
            e = Engine(large.url, host_pool(pages=pages, tokens=tokens, layers=8, heads=8, dim=128))
            self.addCleanup(e.storage.close)
            names = chain(pages, str(tokens))
            self.assertEqual(sum(n for _, n in e.pieces(0, 1)[0]), tokens << 15)
            self.assertEqual(e.set(names, []), [True] * pages)
            self.assertEqual(e.exists(names), pages)
            self.assertEqual(e.get(names, []), [True] * pages)

    def test_models_ranks_and_revisions_do_not_meet(self):
        names = chain(3)
        self.assertEqual(self.engine(size=2).set(names), [True] * 3)
        for o in ({"rank": 1, "size": 2}, {"size": 4}, {"model": "org/other", "size": 2}, {"revision": "2", "size": 2}):
            with self.subTest(o):
                other = self.engine(**o)
                self.assertEqual((other.exists(names), other.get(names)), (0, [False] * 3))
        other = self.engine(rank=1, size=2)
        self.assertEqual(other.set(names), [True] * 3)
        self.assertEqual(other.get(names), [True] * 3, "each rank has its own")
        self.assertEqual(self.engine(size=2).get(names), [True] * 3)
        self.assertLessEqual({"revision", "tp_size"}, set().union(*differing(self.server, "sglang", 5)))

    def test_of_an_MLA_model_one_rank_writes_and_all_read(self):
        names = chain(3)
        self.assertEqual(self.engine(rank=1, size=2, mla=True).set(names), [True] * 3)
        first = self.engine(rank=0, size=2, mla=True)
        self.assertEqual(first.exists(names), 0, "another rank writes nothing")
        self.assertEqual(first.set(names), [True] * 3)
        other = self.engine(rank=1, size=2, mla=True)
        other.rank = 0  # whose pages it reads
        self.assertEqual(other.get(names), [True] * 3)

    def test_eight_threads(self):
        e = self.engine(host_pool(pages=8 * 8))
        failed = []

        def work(t):
            try:
                names, indices = chain(8, f"thread {t}"), e.indices(8 * t, 8)
                for part in range(4):
                    e.fill(names, 8 * t)
                    assert e.storage.batch_set_v1(names, indices, info([])) == [True] * 8
                    assert e.storage.batch_exists(names) == 8
                    for page in e.pieces(8 * t, 8):
                        for address, n in page:
                            ctypes.memset(address, 0xEE, n)
                    assert e.storage.batch_get_v1(names, indices, info([])) == [True] * 8
                    assert e.holds(names, 8 * t) == [True] * 8
            except BaseException as x:
                failed.append(x)

        threads = [threading.Thread(target=work, args=(t,)) for t in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(240)
        self.assertFalse(any(t.is_alive() for t in threads))
        self.assertEqual(failed, [])

    def test_in_a_forked_process_all_is_a_miss(self):
        e, names = self.engine(), chain(2)
        self.assertEqual(e.set(names), [True] * 2)
        with e.storage._lock, e.storage._client._lock:  # as another thread of this process may
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    signal.alarm(60)  # it would wait for ever
                    s, indices = e.storage, e.indices(0, 2)
                    missed = s.batch_exists(names) == 0 and s.batch_get_v1(names, indices) == [False] * 2
                    code = 0 if missed and s.batch_set_v1(names, indices) == [False] * 2 else 2
                    e.storage.close()
                finally:
                    os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(e.get(names), [True] * 2)

    def test_configurations_that_are_wrong(self):
        for o, says in (
            ({"url": ""}, "url"),
            ({"get_timeout": 0}, "get_timeout"),
            ({"lease": "long"}, "lease"),
            ({"shared_bytes": -1}, "shared_bytes"),
            ({"copies": 5}, "copies is 5, must be 1 to 4"),
            ({"model": None}, "model"),
        ):
            with self.subTest(o), self.assertLogs("sglang.srt.mem_cache.storage.backend_factory", "ERROR"):
                with self.assertRaisesRegex(ValueError, says):
                    Engine(o.pop("url", self.server.url), **o)


@unittest.skipIf(missing, missing)
class TestObjectStorage(unittest.TestCase):
    def test_pages_outlive_the_drives(self):
        """Of chains, with what they continue: of a store whose drives have nothing, and from their middle."""
        s3, names = ObjectStorage(), chain(12)
        self.addCleanup(s3.stop)

        def begin():
            server = Server(bucket=s3.settings)
            self.addCleanup(server.stop)
            e = Engine(server.url)
            self.addCleanup(e.storage.close)
            return server, e

        server, e = begin()
        self.assertEqual(e.set(names[:4], []) + e.set(names[4:], names[:4]), [True] * 12)
        bytes_of_pages = sum(n for _, n in itertools.chain(*e.pieces(0, 12)))
        eventually(lambda: s3.size() > bytes_of_pages)
        server.stop()
        _, e = begin()
        eventually(lambda: e.exists(names, []) == 12)
        self.assertEqual(e.exists(names[4:], names[:4]), 8)
        self.assertEqual(e.get(names[8:], names[:8]), [True] * 4)
        self.assertEqual(e.get(names, []), [True] * 12)


class TestOlderCalls(OnServer):
    def test_tensors(self):
        e = self.engine(interface_v1=0)
        pages = [torch.arange(5000, dtype=torch.int32).view(torch.bfloat16) + i for i in range(3)]
        names = chain(3)
        self.assertTrue(e.storage.batch_set(names[:2], pages[:2]))
        self.assertTrue(e.storage.set(names[2], pages[2]))
        self.assertEqual((e.storage.exists(names[1]), e.storage.batch_exists(names + chain(1, "b"))), (True, 3))
        into = [torch.zeros_like(p) for p in pages]
        got = e.storage.batch_get(names, into)
        for page, t in zip(pages, got):
            self.assertTrue(torch.equal(page.view(torch.uint8), t.view(torch.uint8)))
        self.assertIsNone(e.storage.get(chain(1, "b")[0], into[0]))
        short = torch.full((4999,), 7, dtype=torch.bfloat16)
        self.assertIsNone(e.storage.get(names[0], short), "another length")
        self.assertTrue(torch.all(short == 7), "and it is as it was")
        self.assertIsNone(e.storage.get(names[0], torch.zeros(10, 10).t()[:5]))
        self.assertEqual(e.storage.batch_get(names, into[:2]), [None] * 3)
        self.assertFalse(e.storage.batch_set(names, pages[:2]))

    def test_clear_and_stats(self):
        e, names = self.engine(), chain(4)
        self.assertEqual(e.set(names), [True] * 4)
        self.assertEqual(e.get(names), [True] * 4)
        m = e.storage.get_stats()
        self.assertEqual((m.backup_pgs, m.prefetch_pgs), ([4], [4]))
        self.assertTrue(m.backup_bandwidth[0] > 0 and m.prefetch_bandwidth[0] > 0)
        self.assertEqual(e.storage.get_stats().backup_pgs, [])
        e.storage.clear()
        self.assertEqual(e.exists(names), 4, "others use them")


class TestPools(OnServer):
    def test_pools_besides(self):
        e, names = self.engine(), chain(6)
        side = host_pool(layers=1)
        e.storage.register_mem_host_pool_v2(side, PoolName.INDEXER)
        e.storage.register_mem_host_pool_v2(side, PoolName.MAMBA)
        self.assertEqual(e.set(names, []), [True] * 6)

        def transfer(pool, names, policy=PoolHitPolicy.ALL_PAGES, indices=True):
            n = len(names)
            return PoolTransfer(
                name=pool, keys=names, hit_policy=policy, host_indices=e.indices(0, n) if indices else None
            )

        self.assertEqual(
            e.storage.batch_set_v2([transfer(PoolName.INDEXER, names[:5]), transfer(PoolName.MAMBA, names[3:4])]),
            {PoolName.INDEXER: [True] * 5, PoolName.MAMBA: [True]},
        )
        all_of = transfer(PoolName.INDEXER, names, indices=False)
        last = transfer(PoolName.MAMBA, names[-1:], PoolHitPolicy.TRAILING_PAGES, indices=False)
        found = e.storage.batch_exists_v2(names, [all_of])
        self.assertEqual((found.kv_hit_pages, found.extra_pool_hit_pages), (5, {"kv": 6, PoolName.INDEXER: 5}))
        found = e.storage.batch_exists_v2(names, [all_of, last])
        self.assertEqual((found.kv_hit_pages, found.restorable_prefix_pages), (4, [4]))
        self.assertEqual(
            e.storage.batch_get_v2([transfer(PoolName.INDEXER, names), transfer(PoolName.SWA, names)]),
            {PoolName.INDEXER: [True] * 5 + [False], PoolName.SWA: [False] * 6},
        )
        self.assertEqual(e.storage.batch_get_v2([transfer(PoolName.KV, names)]), {PoolName.KV: [True] * 6})


    def test_heads_of_a_draft_are_each_ranks_own(self):
        names, pool = chain(2), PoolName.DRAFT
        for rank, there in ((0, False), (1, False), (1, True)):
            e = self.engine(rank=rank, size=2, mla=True)
            e.storage.register_mem_host_pool_v2(e.pool, pool)
            transfer = PoolTransfer(name=pool, keys=names, host_indices=e.indices(0, 2))
            self.assertEqual(e.storage.batch_get_v2([transfer]), {pool: [there] * 2})
            e.fill(names)
            self.assertEqual(e.storage.batch_set_v2([transfer]), {pool: [True] * 2})


class TestTransfers(OnServer):
    """The controller's own transfers, which decide what is called with what."""

    def controller(self, e):
        c = object.__new__(HiCacheController)
        c.storage_backend, c.page_size = e.storage, e.pool.page_size
        c.storage_host_pool = c.mem_pool_host = e.pool
        c.page_get_func, c.page_set_func = c._page_get_zero_copy, c._page_set_zero_copy
        c.prefetch_sync_queue = threading.local()
        c.prefetch_sync_queue.put = lambda ack: None
        return c

    def test_the_configuration_of_the_tutorial(self):
        with open(os.path.join(os.path.dirname(__file__), "../../../docs/tutorials/sglang.md"), encoding="utf-8") as f:
            given = re.search(r"extra-config '(\{.*?\})'", f.read(), re.DOTALL)[1]
        extra, *_, prefix_keys = HybridCacheController.parse_storage_backend_extra_config(given)
        self.assertTrue(prefix_keys)
        self.assertEqual(extra["token_file"], "/etc/skep/engine.token")
        del extra["token_file"], extra["url"]
        with self.assertNoLogs("skepkv.sglang", "WARNING"):
            e, names = self.engine(**extra), chain(2)
        self.assertEqual((e.set(names, []), e.get(names, [])), ([True] * 2, [True] * 2))

    def test_a_prompt_is_backed_up_and_prefetched(self):
        pages = 300  # three batches
        for prefix in (None, []):
            e = self.engine(host_pool(pages=pages, tokens=4))
            tokens = list(range(1000, 1000 + 4 * pages)) if prefix is None else list(range(4 * pages))
            c = self.controller(e)
            asked = PrefetchOperation("r", tokens, None, prefix)
            self.assertEqual(c._storage_hit_query(asked), ([], 0))
            names = asked.all_hash_values
            e.fill(names)
            op = StorageOperation(e.indices(0, pages), tokens, hash_value=names, prefix_keys=prefix)
            c._page_backup(op)
            self.assertEqual(op.completed_tokens, 4 * pages)
            asked = PrefetchOperation("r", tokens, None, prefix)
            asked.hash_value, n = c._storage_hit_query(asked)
            self.assertEqual((n, asked.hash_value), (4 * pages, names))
            e.blank()
            asked.host_indices = e.indices(0, pages)
            self.assertEqual(c._page_transfer(asked), pages)
            self.assertEqual(e.holds(names), [True] * pages)


def regions():
    """How many regions of memory this process shares with servers."""
    with open("/proc/self/maps", encoding="utf-8") as f:
        return sum("memfd" in line for line in f)


class TestTrouble(OnServer):
    def test_the_server_is_killed_and_started_again(self):
        for prefix in (None, []):
            e, names = self.engine(host_pool(pages=24, tokens=64, layers=8, heads=8, dim=128)), chain(24, str(prefix))
            self.assertEqual(e.set(names, prefix), [True] * 24)
            shared = regions()
            began, done = threading.Event(), []

            def read():
                for i in itertools.count():
                    done.append(e.get(names, prefix))  # compares what landed
                    began.set()
                    if not all(done[-1]):
                        return

            reader = threading.Thread(target=read)
            reader.start()
            self.assertTrue(began.wait(240))
            self.server.kill()
            reader.join(240)
            self.assertFalse(reader.is_alive())
            self.assertEqual((e.exists(names, prefix), e.get(names, prefix)), (0, [False] * 24))
            self.assertEqual(e.set(chain(2, "new"), prefix), [False] * 2)
            self.server.start()
            eventually(lambda: e.set(chain(2, "new"), prefix) == [True] * 2, 120)
            self.assertEqual(e.get(chain(2, "new"), prefix), [True] * 2)
            self.assertEqual(regions(), shared, "memory that the dead server had is not there twice")
            there = e.exists(names, prefix)
            self.assertEqual(e.get(names, prefix)[:there], [True] * there)

    def test_a_server_that_is_not_there_yet(self):
        self.server.kill()
        e, names = self.engine(), chain(2)
        self.assertEqual((e.exists(names), e.set(names), e.get(names)), (0, [False] * 2, [False] * 2))
        self.server.start()
        eventually(lambda: e.set(names) == [True] * 2, 120)

    def test_a_server_that_stands_still(self):
        patient, names = self.engine(), chain(2)
        self.assertEqual(patient.set(names), [True] * 2)
        e = self.engine(exists_timeout=0.2, get_timeout=0.2, get_timeout_per_ki_token=0, set_timeout=0.2)
        eventually(lambda: e.get(names) == [True] * 2)
        self.server.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.server.process.pid, os.WUNTRACED)  # until it stands
        try:
            self.assertEqual((e.exists(names), e.get(names)), (0, [False] * 2))
            self.assertEqual(e.set(chain(2, "b")), [False] * 2)
        finally:
            self.server.process.send_signal(signal.SIGCONT)
        eventually(lambda: e.get(names) == [True] * 2)
        self.assertGreaterEqual(e.storage.counters()["failed"], 3)

    def test_over_tcp(self):
        e = Engine(f"127.0.0.1:{self.server.port}")
        self.addCleanup(e.storage.close)
        names = chain(5)
        self.assertEqual((e.set(names, []), e.exists(names), e.get(names, [])), ([True] * 5, 5, [True] * 5))


class TestToken(OnServer):
    token = True

    def test_a_wrong_token_is_a_miss_and_a_right_one_is_not(self):
        names = chain(2)
        with self.assertLogs("skepkv.sglang", "WARNING") as logs:
            e = self.engine(token="another token of the tests")
            self.assertEqual((e.exists(names), e.set(names), e.get(names)), (0, [False] * 2, [False] * 2))
        self.assertEqual(sum("denied" in line for line in logs.output), 1, "said once")
        path = os.path.join(self.server.dir, "token")
        with open(path, "w", encoding="utf-8") as f:
            f.write(TOKEN + "\n")
        e = self.engine(token_file=path)
        self.assertEqual((e.set(names), e.exists(names), e.get(names)), ([True] * 2, 2, [True] * 2))


if __name__ == "__main__":
    unittest.main()
