"""Tenants of LMCache, which are salts in its keys: what one stored never comes to another, under LMCache's own classes.
Every tenant stores bytes of its own under the same hashes, so what came of another one would not compare."""

import unittest

import skepkv
from serving import eventually

try:
    import test_lmcache_real as real
    import test_lmcache_resp_real as resp
    import torch
    from lmcache.v1.distributed.api import ipc_key_to_object_keys
    from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey

    missing = real.missing
except (ImportError, OSError) as e:
    missing = f"LMCache is not installed here: {e}"

# Beginnings and spellings of each other, and the longest that LMCache takes, which are more bytes than skep's may have.
SALTS = ["", "a", "aa", "A", "a ", "%61", "61", "0", "\u00e4", "a\u0308", "x" * 128, "x" * 127 + "y"]
SALTS += ["\u8a9e" * 128, "\u8a9e" * 127 + "\u8a00", "\U0001f511" * 128]
CHUNKS, SIZE, EACH = 3, 64 << 10, 1000


if not missing:

    class Tenant(real.Engine):
        """Calls an adapter with a salt. Its chunk i is the number i of its thousand, which says what the bytes are; the
        key has i alone."""

        def __init__(self, adapter, tenant):
            super().__init__(adapter, SIZE, salt=SALTS[tenant])
            self.chunks = range(tenant * EACH, tenant * EACH + CHUNKS)

        def keys(self, numbers):
            return [real.key(i % EACH, **self.of) for i in numbers]


class Apart:
    """Of any adapter. engine opens one."""

    def tenants(self, adapter):
        return [Tenant(adapter, i) for i in range(len(SALTS))]

    def test_no_salt_meets_another(self):
        e = self.engine(size=SIZE)
        tenants = self.tenants(e.adapter)
        self.assertTrue(tenants[0].store(tenants[0].chunks).is_successful())
        for t in tenants[1:]:
            self.assertEqual(t.lookup(t.chunks), [False] * CHUNKS, f"{t.of} finds what others stored")
            self.assertEqual(t.load(t.chunks), [False] * CHUNKS, t.of)
            self.assertTrue(t.store(t.chunks).is_successful(), t.of)
        for t in tenants:
            self.assertEqual(t.lookup(t.chunks), [True] * CHUNKS, t.of)
            self.assertEqual(t.load(t.chunks), [True] * CHUNKS, t.of)
        if not self.deletes:
            return
        gone = tenants[::2]
        for t in gone:
            e.adapter.delete(t.keys(t.chunks))
        for t in tenants:
            self.assertEqual(t.load(t.chunks), [t not in gone] * CHUNKS, f"{t.of}: another one deleted its own")

    def test_all_salts_in_one_batch(self):
        e = self.engine(size=SIZE)
        tenants = self.tenants(e.adapter)
        for t in tenants[1:]:
            self.assertTrue(t.store(t.chunks).is_successful())
        mixed = Tenant(e.adapter, 0)
        mixed.keys = lambda numbers: [real.key(i % EACH, salt=SALTS[i // EACH]) for i in numbers]
        numbers = [i for at in zip(*(t.chunks for t in tenants)) for i in at]
        there = [i >= EACH for i in numbers]  # the one without a salt has stored nothing
        self.assertEqual(mixed.lookup(numbers), there)
        self.assertEqual(mixed.load(numbers), there)


@unittest.skipIf(missing, missing)
class TestNativePlugin(Apart, real.OnServer if not missing else unittest.TestCase):
    form, deletes = "native_plugin", True

    def test_salts_stay_apart_after_a_restart_and_a_purge(self):
        for t in self.tenants(self.engine(size=SIZE).adapter):
            self.assertTrue(t.store(t.chunks).is_successful())
        with skepkv.connect(self.server.url) as store:
            store.flush()
        self.server.stop_and_keep()
        self.server.start()
        for form in ("plugin", "native_plugin"):  # which have one cache
            for t in self.tenants(self.engine(form, size=SIZE).adapter):
                self.assertEqual(t.lookup(t.chunks), [True] * CHUNKS, t.of)
                self.assertEqual(t.load(t.chunks), [True] * CHUNKS, t.of)
        with skepkv.connect(self.server.url) as store:
            real.space_of(store, ("org/model-7b", "00000001", "0")).salted(b"a").purge()
        for t in self.tenants(self.engine(size=SIZE).adapter):
            self.assertEqual(t.lookup(t.chunks), [t.of["salt"] != "a"] * CHUNKS, t.of)


@unittest.skipIf(missing, missing)
class TestPlugin(TestNativePlugin):
    form = "plugin"

    def test_a_lock_is_its_salts_alone(self):
        a = self.engine(size=SIZE).adapter
        one, other = Tenant(a, 1), Tenant(a, 2)
        for t in (one, other):
            self.assertTrue(t.store(t.chunks).is_successful())
            self.assertEqual(t.lock(t.chunks), [True] * CHUNKS)
        self.assertEqual(a.report_status()["locked_keys"], 2 * CHUNKS)
        one.unlock(one.chunks)
        one.unlock(one.chunks)
        self.assertEqual(a.report_status()["locked_keys"], CHUNKS)
        other.unlock(other.chunks)
        self.assertEqual(a.report_status()["locked_keys"], 0)


@unittest.skipIf(missing, missing)
class TestResp(Apart, resp.OnLockstep if not missing else unittest.TestCase):
    """LMCache's own client, to whom the salt is a part of the key."""

    deletes = False  # it has no such call


@unittest.skipIf(missing, missing)
class TestManager(real.OnServer if not missing else unittest.TestCase):
    """What LMCache's server makes of a client's key, by its own storage manager and controllers."""

    def keys(self, salt):
        asked = IPCCacheServerKey(
            model_name="org/model-7b",
            world_size=1,
            worker_id=0,
            token_ids=tuple(range(256)),
            start=0,
            end=256,
            request_id=f"of {salt}",
            cache_salt=salt,
        )
        (out,) = ipc_key_to_object_keys(asked, [b"7" * 32], [0])
        return out

    def prefetch(self, m, keys, layout):
        """The bytes that come of the first key; None: it is a miss."""
        handle = m.submit_prefetch_task(real.PrefetchTaskSpec([real.GroupedObjectKeys(keys, 0, layout)]))
        result, out = eventually(lambda: m.query_prefetch_status(handle)), None
        if result.hit_cells[0].test(0):
            with m.read_prefetched_results(keys) as objects:
                out = objects[0].raw_data.view(torch.uint8).clone()
            m.finish_read_prefetched(keys)
        return out

    def test_a_clients_salt_reaches_skep(self):
        m, a = real.TestManager.manager(self)
        layout = real.MemoryLayoutDesc([real.chunk(0).metadata.shape], [torch.bfloat16])
        for i, salt in enumerate(SALTS[:4]):
            keys = self.keys(salt)
            self.assertEqual([k.cache_salt for k in keys], [salt])
            self.assertIsNone(self.prefetch(m, keys, layout), f"{salt!r} finds what others stored")
            (o,) = m.reserve_write(keys, layout).values()
            o.raw_data.view(torch.uint8).copy_(real.chunk(i).raw_data)
            m.finish_write(keys)
            eventually(lambda: a.report_status()["locked_keys"] == 0 and a.get_usage().total_bytes_used > i * real.SIZE)
            eventually(lambda: (m.delete_l1_keys(keys), m.get_l1_usage()[0] == 0)[1])
        for i, salt in enumerate(SALTS[:4]):
            self.assertTrue(torch.equal(self.prefetch(m, self.keys(salt), layout), real.chunk(i).raw_data), salt)
        self.assertIsNone(self.prefetch(m, self.keys("b"), layout))
