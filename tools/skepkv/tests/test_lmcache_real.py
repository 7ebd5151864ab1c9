"""The connector under LMCache's own classes: its command line, its factory, its adapter and its memory objects."""

import argparse
import json
import mmap
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import threading
import unittest
import unittest.mock

import skepkv
import skepkv.lmcache
from serving import TOKEN, Server, eventually

try:
    import torch
    from lmcache.cli.commands.server import ServerCommand
    from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, ObjectKey, PrefetchTaskSpec
    from lmcache.v1.distributed.config import parse_args
    from lmcache.v1.distributed.internal_api import L1MemoryDesc
    from lmcache.v1.distributed.l2_adapters import create_l2_adapter
    from lmcache.v1.distributed.l2_adapters.config import add_l2_adapters_args, parse_args_to_l2_adapters_config
    from lmcache.v1.distributed.storage_manager import StorageManager
    from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

    missing = ""
except (ImportError, OSError) as e:
    missing = f"LMCache is not installed here: {e}"

CHUNKS, SIZE = 64, 4 << 20


def key(i, salt="", model="org/model-7b", rank=1, group=0):
    return ObjectKey(
        chunk_hash=i.to_bytes(32, "big"), model_name=model, kv_rank=rank, object_group_id=group, cache_salt=salt
    )


def chunk(i, fill=True, size=SIZE):
    n = size // 2
    raw = (
        (torch.arange(n, dtype=torch.int32) * 31 + i * 7919).to(torch.int16)
        if fill
        else torch.zeros(n, dtype=torch.int16)
    )
    shape = torch.Size([2, 1, n // 2 // 128, 128])
    meta = MemoryObjMetadata(
        shape=shape, dtype=torch.bfloat16, address=0, phy_size=size, ref_count=1, fmt=MemoryFormat.KV_2LTD
    )
    return TensorMemoryObj(raw.view(torch.uint8), meta, None)


def objects(places):
    """LMCache's objects over memory that is there."""
    n = places[0].numel() // 2
    shape = torch.Size([2, 1, n // 2 // 128, 128])
    return [
        TensorMemoryObj(
            place,
            MemoryObjMetadata(
                shape=shape,
                dtype=torch.bfloat16,
                address=0,
                phy_size=place.numel(),
                ref_count=1,
                fmt=MemoryFormat.KV_2LTD,
            ),
            None,
        )
        for place in places
    ]


def spec(form, **params):
    name = {"plugin": "Adapter", "native_plugin": "Connector"}[form]
    return {"type": form, "module_path": "skepkv.lmcache", "class_name": name, "adapter_params": {**PATIENT, **params}}


PATIENT = {what + "_timeout": 120 for what in ("get", "set", "exists", "delete")}


def create(given, memory=None):
    """What LMCache makes of --l2-adapter, and of its own memory."""
    parser = add_l2_adapters_args(argparse.ArgumentParser())
    config = parse_args_to_l2_adapters_config(parser.parse_args(["--l2-adapter", json.dumps(given)]))
    return create_l2_adapter(config.adapters[0], l1_memory_desc=memory)


def adapter(form, **params):
    return create(spec(form, **params))


def space_of(store, fields):
    """The namespace of a model, a rank and a group."""
    model = skepkv.lmcache.hashlib.sha256(fields[0].encode()).hexdigest()
    return store.namespace("lmcache/2/" + "@".join(fields), model=model, chained=True, each=True)


def tiers(store, numbers, model):
    """Where the server has chunks: 0 nowhere, 1 on drives, 2 in memory."""
    fields = (model, "00000001", "0")
    space = space_of(store, fields)
    return space.exists([skepkv.key(*(f.encode() for f in ("", *fields, f"{i:064x}"))) for i in numbers])


class Engine:
    """Calls an adapter as LMCache's controllers do, of chunks that are numbers. of is what their keys have besides."""

    def __init__(self, adapter, size=SIZE, **of):
        self.adapter, self.size, self.of = adapter, size, of

    def keys(self, numbers):
        return [key(i, **self.of) for i in numbers]

    def wait(self, fd, ask):
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while True:
            assert poll.poll(240000), "nothing completed"
            answer = ask()
            if answer is not None:
                return answer

    def store(self, numbers):
        a, chunks = self.adapter, [chunk(i, size=self.size) for i in numbers]  # whose memory the adapter does not keep
        task = a.submit_store_task(self.keys(numbers), chunks)
        return self.wait(a.get_store_event_fd(), lambda: a.pop_completed_store_tasks().get(task))

    def lock(self, numbers):
        a = self.adapter
        task = a.submit_lookup_and_lock_task(self.keys(numbers), {})
        found = self.wait(a.get_lookup_and_lock_event_fd(), lambda: a.query_lookup_and_lock_result(task))
        assert a.query_lookup_and_lock_result(task) is None, "it answers once"
        return [found.test(j) for j in range(len(numbers))]

    def unlock(self, numbers):
        self.adapter.submit_unlock(self.keys(numbers))

    def lookup(self, numbers):
        found = self.lock(numbers)
        self.unlock([i for i, there in zip(numbers, found) if there])
        return found

    def load(self, numbers, size=None):
        """Loads chunks, compares every byte of those that came, and says which did."""
        a, into = self.adapter, [chunk(i, fill=False, size=size or self.size) for i in numbers]
        task = a.submit_load_task(self.keys(numbers), into)
        loaded = self.wait(a.get_load_event_fd(), lambda: a.query_load_result(task))
        for j, i in enumerate(numbers):
            if loaded.test(j):
                assert torch.equal(into[j].raw_data, chunk(i, size=self.size).raw_data), f"chunk {i}"
        return [loaded.test(j) for j in range(len(numbers))]


class OnServer(unittest.TestCase):
    form, token, capacity = "plugin", False, "1GiB"

    def setUp(self):
        self.server = Server(token=self.token, capacity=self.capacity)
        self.addCleanup(self.server.stop)

    def engine(self, form=None, size=SIZE, of=None, **params):
        params.setdefault("url", self.server.url)
        a = adapter(form or self.form, **params)
        self.addCleanup(a.close)
        return Engine(a, size, **(of or {}))


@unittest.skipIf(missing, missing)
class TestNativePlugin(OnServer):
    form = "native_plugin"

    def test_chunks_there_and_back_and_after_a_restart(self):
        e = self.engine()
        self.assertTrue(e.store(range(CHUNKS)).is_successful())
        self.assertEqual(e.lookup(range(CHUNKS)), [True] * CHUNKS)
        self.assertEqual(e.load(range(CHUNKS)), [True] * CHUNKS)
        self.assertEqual(e.lookup([1000]), [False])
        self.assertEqual(e.load([0, 1000, 1, 1001, 2]), [True, False, True, False, True])
        self.assertEqual(self.engine().load(range(16)), [True] * 16, "another instance finds what this one has stored")
        e.adapter.delete([key(0)])
        self.assertEqual(e.lookup([0, 1]), [False, True])

        self.server.kill()
        self.assertEqual(e.lookup([1, 2]), [False, False])
        self.assertEqual(e.load([1, 2]), [False, False])
        self.assertFalse(e.store([2000]).is_successful())
        self.server.start()
        eventually(lambda: e.store([2000, 2001]).is_successful())
        self.assertEqual(e.load([2000, 2001]), [True, True])
        there = e.lookup(range(1, 16))
        self.assertEqual(e.load(range(1, 16)), there)


@unittest.skipIf(missing, missing)
class TestPlugin(TestNativePlugin):
    form = "plugin"

    def test_the_configuration_of_the_tutorial(self):
        with open(os.path.join(os.path.dirname(__file__), "../../../docs/tutorials/lmcache.md"), encoding="utf-8") as f:
            command = re.search(r"^lmcache server (.*?\}')$", f.read(), re.DOTALL | re.MULTILINE)[1]
        args = shlex.split(command.replace("\\\n", " "))
        parser = argparse.ArgumentParser()
        ServerCommand().add_arguments(parser)
        server = parser.parse_args(args)
        self.assertEqual((server.port, server.chunk_size), (5555, 256), "as the page says")
        given = json.loads(args[-1])
        given["adapter_params"]["url"] = self.server.url
        self.assertEqual(given["adapter_params"].pop("token_file"), "/etc/skep/engine.token")
        a = create(given)
        self.addCleanup(a.close)
        e = Engine(a, SIZE)
        self.assertTrue(e.store([0, 1]).is_successful())
        self.assertEqual((e.lookup([0, 1, 2]), e.load([0, 1])), ([True, True, False], [True, True]))

    def test_drives_read_into_lmcaches_own_memory(self):
        n, size = 8, 1 << 20
        with open(f"/dev/shm/skepkv-test-{os.getpid()}-l1", "x+b") as f:
            os.unlink(f.name)
            f.truncate(n * size)
            shared = mmap.mmap(f.fileno(), 0)
        for memory, straight in ((shared, True), (mmap.mmap(-1, n * size, flags=mmap.MAP_PRIVATE), False)):
            raw = torch.frombuffer(memory, dtype=torch.uint8)
            desc = L1MemoryDesc(ptr=raw.data_ptr(), size=n * size, align_bytes=4096)
            a = create(spec("plugin", url=self.server.url, shared_bytes=4 << 20), desc)
            self.addCleanup(a.close)
            e, numbers = Engine(a, size), range(100 * straight, 100 * straight + n)
            places = [raw[i * size : (i + 1) * size] for i in range(n)]
            for i, place in zip(numbers, places):
                place.copy_(chunk(i, size=size).raw_data)
            for again in range(2):
                task = a.submit_store_task(e.keys(numbers), objects(places))
                stored = e.wait(a.get_store_event_fd(), lambda: a.pop_completed_store_tasks().get(task))
                self.assertTrue(stored.is_successful())
                raw.zero_()
                task = a.submit_load_task(e.keys(numbers), objects(places))
                loaded = e.wait(a.get_load_event_fd(), lambda: a.query_load_result(task))
                self.assertEqual([loaded.test(j) for j in range(n)], [True] * n)
                for i, place in zip(numbers, places):
                    self.assertTrue(torch.equal(place, chunk(i, size=size).raw_data), f"chunk {i}")
                self.assertEqual(a._skep._region.shared, straight)
                if straight and not again:  # another server has the memory next
                    self.server.kill()
                    self.assertEqual(e.lookup(numbers), [False] * n)
                    self.server.start()
                    eventually(lambda: e.store([999]).is_successful())
                    eventually(lambda: e.store(numbers).is_successful() and a._skep._region.shared)

    def test_both_adapters_share_a_cache(self):
        e, native = self.engine(), self.engine("native_plugin")
        self.assertTrue(e.store([1, 2]).is_successful())
        self.assertTrue(native.store([3]).is_successful())
        self.assertEqual(native.load([1, 2, 3]), [True] * 3)
        self.assertEqual(e.load([1, 2, 3]), [True] * 3)

    def test_a_wrong_length_is_a_miss_of_its_chunk(self):
        e = self.engine()
        e.store([1])
        self.engine(size=SIZE // 2).store([2])
        self.assertEqual(e.lookup([1, 2]), [True, True])
        self.assertEqual(e.load([1, 2]), [True, False])
        self.assertEqual(e.load([1], size=SIZE + 4096), [False])

    def test_ranks_groups_models_and_salts_share_nothing(self):
        self.assertTrue(self.engine().store([1]).is_successful())
        for of in ({"rank": 2}, {"group": 1}, {"model": "org/other"}, {"salt": "user"}):
            other = self.engine(of=of)
            self.assertEqual((other.lock([1]), other.load([1])), ([False], [False]), of)
        other = self.engine(fingerprint="fp8")
        self.assertEqual((other.lock([1]), other.load([1])), ([False], [False]))

    def test_keys_of_several_groups_in_one_lookup(self):
        e = self.engine()
        a, keys = e.adapter, [key(i, group=g) for g in range(3) for i in range(4)]
        for g in range(3):
            Engine(a, group=g).store([0, 1, 3][: 3 - g])
        task = a.submit_lookup_and_lock_task(keys, {})
        found = e.wait(a.get_lookup_and_lock_event_fd(), lambda: a.query_lookup_and_lock_result(task))
        there = [found.test(j) for j in range(len(keys))]
        self.assertEqual(there, [True, True, False, True, True, True, False, False, True, False, False, False])
        self.assertEqual(a.report_status()["locked_keys"], 6)
        a.submit_unlock([k for k, ok in zip(keys, there) if ok])
        self.assertEqual(a.report_status()["locked_keys"], 0)

    def test_what_lmcache_counts(self):
        e = self.engine()
        self.assertEqual(e.store([1, 2]).bytes_transferred(), 2 * SIZE)
        self.assertEqual(e.store([1, 3]).bytes_transferred(), SIZE, "one was there")
        self.assertEqual(e.adapter.get_usage().total_bytes_used, 3 * SIZE)
        e.adapter.delete(e.keys([1]))
        self.assertEqual(e.adapter.get_usage().total_bytes_used, 2 * SIZE)
        self.engine().adapter.delete(e.keys([2]))
        self.assertEqual(e.lookup([2]), [False])
        self.assertEqual(e.adapter.get_usage().total_bytes_used, SIZE, "what is gone comes out with a lookup")

    def test_the_server_is_killed_in_the_middle(self):
        e = self.engine()
        e.store(range(8))
        self.assertEqual(e.lock(range(8)), [True] * 8)
        a, into = e.adapter, [[chunk(i, fill=False) for i in range(8)] for _ in range(8)]
        tasks = [a.submit_load_task(e.keys(range(8)), to) for to in into]
        self.server.kill()
        for task, to in zip(tasks, into):
            loaded = e.wait(a.get_load_event_fd(), lambda: a.query_load_result(task))
            for i in range(8):
                self.assertTrue(not loaded.test(i) or torch.equal(to[i].raw_data, chunk(i).raw_data))
        self.assertEqual(e.lock(range(8)), [False] * 8)
        self.assertFalse(a.report_status()["is_healthy"])
        e.unlock(range(8))  # of leases that nobody has any more
        self.assertEqual(a.report_status()["locked_keys"], 0)
        self.server.start()
        eventually(lambda: e.store(range(8)).is_successful())
        self.assertEqual(e.lock(range(8)), [True] * 8)
        self.assertEqual(e.load(range(8)), [True] * 8)
        e.unlock(range(8))
        self.assertTrue(a.report_status()["is_healthy"])

    def test_eight_threads(self):
        e = self.engine(size=64 << 10, readers=4, writers=2)
        a, results, lock, failed = e.adapter, {}, threading.Lock(), []

        def ask(kind, query, task):
            """LMCache's controllers have one thread for an eventfd; here whoever looks keeps what is others'."""

            def look():
                with lock:
                    if kind == "store":
                        results.update(((kind, t), r) for t, r in a.pop_completed_store_tasks().items())
                        return results.pop((kind, task), None)
                    return query(task)

            return eventually(lambda: (r := look()) is not None and [r])[0]

        def one(t):
            try:
                for i in range(t * 100, t * 100 + 10):
                    numbers = [i, 7]
                    keys, chunks = e.keys(numbers), [chunk(n, size=e.size) for n in numbers]
                    assert ask("store", None, a.submit_store_task(keys, chunks)).is_successful()
                    keys = e.keys([i, 5000 + i, 7])
                    found = ask("lookup", a.query_lookup_and_lock_result, a.submit_lookup_and_lock_task(keys, {}))
                    assert [found.test(j) for j in range(3)] == [True, False, True]
                    into = [chunk(n, fill=False, size=e.size) for n in numbers]
                    loaded = ask("load", a.query_load_result, a.submit_load_task(e.keys(numbers), into))
                    assert loaded.test(0) and loaded.test(1)
                    assert all(torch.equal(to.raw_data, c.raw_data) for to, c in zip(into, chunks))
                    e.unlock(numbers)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=one, args=(t,)) for t in range(1, 9)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failed, [])
        self.assertEqual(a.report_status()["locked_keys"], 0)

    def test_options_that_are_wrong(self):
        for o in ({"lease": 0}, {"lease": "10"}, {"lease": 601}, {"lock_timeout": -1}, {"url": ""}):
            with self.assertRaises(ValueError):
                self.engine(**o)
        with self.assertRaises(TypeError):
            self.engine(urls="unix:/x")

    def test_in_a_forked_process_all_is_a_miss(self):
        e = self.engine()
        e.store([1])
        self.assertEqual(e.lock([1]), [True])
        a, data, into = e.adapter, [chunk(2)], [chunk(1, fill=False)]  # PyTorch does not work in a forked process
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(60)  # it would wait for ever
                task = a.submit_load_task(e.keys([1]), into)
                loaded = e.wait(a.get_load_event_fd(), lambda: a.query_load_result(task))
                task = a.submit_store_task(e.keys([2]), data)
                stored = e.wait(a.get_store_event_fd(), lambda: a.pop_completed_store_tasks().get(task))
                if e.lock([1]) == [False] and not loaded.test(0) and not stored.is_successful():
                    e.unlock([1])
                    a.close()
                    code = 0
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(e.load([1]), [True])
        self.assertEqual(e.adapter.report_status()["locked_keys"], 1)


@unittest.skipIf(missing, missing)
class TestManager(OnServer):
    """LMCache's own storage manager, whose controllers store, look up, lock, load and unlock."""

    def manager(self):
        args = ["--l1-size-gb", "0.25", "--eviction-policy", "LRU", "--no-l1-use-lazy"]
        m = StorageManager(parse_args([*args, "--l2-adapter", json.dumps(spec("plugin", url=self.server.url))]))
        self.addCleanup(m.close)
        return m, m.l2_adapters()[0][1]

    def prefetch(self, m, numbers):
        layout = MemoryLayoutDesc([chunk(0).metadata.shape], [torch.bfloat16])
        keys = [key(i) for i in numbers]
        handle = m.submit_prefetch_task(PrefetchTaskSpec([GroupedObjectKeys(keys, 0, layout)]))
        result = eventually(lambda: m.query_prefetch_status(handle))
        hits = [result.l2_hit_cells[0].test(j) for j in range(len(keys))]
        there = [k for j, k in enumerate(keys) if result.hit_cells[0].test(j)]
        with m.read_prefetched_results(there) as objects:
            for k, o in zip(there, objects):
                want = chunk(int.from_bytes(k.chunk_hash, "big"))
                self.assertTrue(torch.equal(o.raw_data.view(torch.uint8), want.raw_data))
        m.finish_read_prefetched(there)
        return hits

    def forget(self, m):
        """Empties LMCache's own memory, once nothing of it is locked."""

        def empty():
            m.delete_l1_keys([key(i) for i in range(8)])
            return m.get_l1_usage()[0] == 0

        eventually(empty)

    def test_its_controllers_lock_and_unlock(self):
        m, a = self.manager()
        layout = MemoryLayoutDesc([chunk(0).metadata.shape], [torch.bfloat16])
        for k, o in m.reserve_write([key(i) for i in range(8)], layout).items():
            o.raw_data.view(torch.uint8).copy_(chunk(int.from_bytes(k.chunk_hash, "big")).raw_data)
        m.finish_write([key(i) for i in range(8)])
        other = self.engine()
        eventually(lambda: other.lookup(range(8)) == [True] * 8)
        self.forget(m)
        with unittest.mock.patch.object(a._skep.locks, "add", wraps=a._skep.locks.add) as locked:
            self.assertEqual(self.prefetch(m, [*range(8), 100]), [True] * 8 + [False])
            self.assertEqual(len(locked.call_args.args[1]), 8, "what was found was leased")
        eventually(lambda: a.report_status()["locked_keys"] == 0)

        self.forget(m)
        self.server.kill()
        self.assertEqual(self.prefetch(m, range(8)), [False] * 8)
        self.server.start()
        eventually(lambda: other.store(range(8)).is_successful())

        def again():
            self.forget(m)
            return self.prefetch(m, range(8)) == [True] * 8

        eventually(again)
        eventually(lambda: a.report_status()["locked_keys"] == 0)


@unittest.skipIf(missing, missing)
class TestToken(OnServer):
    token = True

    def test_a_wrong_token_is_a_miss_and_a_right_one_is_not(self):
        e = self.engine(token="another token of the tests")
        self.assertFalse(e.store([1]).is_successful())
        self.assertEqual(e.adapter.report_status()["trouble"], "denied")
        self.assertEqual((e.lock([1]), e.load([1])), ([False], [False]))
        e = self.engine(token=TOKEN)
        self.assertTrue(e.store([1]).is_successful())
        self.assertEqual((e.lock([1]), e.load([1])), ([True], [True]))


# A process that locks chunks and tells of it, and then waits to be killed.
_HOLDER = """
import sys
from test_lmcache_real import Engine, adapter
e = Engine(adapter("plugin", url=sys.argv[1], lease=1, lock_timeout=3600), size=int(sys.argv[2]))
found = e.lock(range(8))
print(sum(found), e.adapter.report_status()["locked_keys"], flush=True)
sys.stdin.read()
"""


@unittest.skipIf(missing, missing)
class TestEviction(OnServer):
    """In a store that is too small for all that is put."""

    capacity, size = "256MiB", 1 << 20

    def setUp(self):
        super().setUp()
        self.churner, self.next = self.engine("native_plugin", size=self.size), 10000
        self.store = skepkv.connect(self.server.url, shared_bytes=0)
        self.addCleanup(self.store.close)

    def there(self, numbers):
        """Which chunks the server has, asked without a lease."""
        fields = ("org/model-7b", "00000001", "0")
        space = space_of(self.store, fields)
        names = [skepkv.key(*(f.encode() for f in ("", *fields, f"{i:064x}"))) for i in numbers]
        return space.lookup_each(names)[0]

    def churn(self, until):
        """Puts other chunks, and loads them, until something is so. What is never loaded would be evicted first."""
        for _ in range(100):
            numbers = range(self.next, self.next + 64)
            self.churner.store(numbers)
            self.churner.load(numbers)
            self.next += 64
            if until():
                return
        self.fail("it did not come about with 6,400 chunks")

    def test_what_is_locked_stays_and_what_is_not_is_a_miss(self):
        e, native = self.engine(size=self.size, lease=600), self.engine("native_plugin", size=self.size)
        self.assertTrue(e.store(range(16)).is_successful())
        self.assertEqual(e.lock(range(8)), [True] * 8)
        self.assertEqual(native.lookup(range(8, 16)), [True] * 8)  # its locks are LMCache's own, and keep nothing
        self.churn(lambda: not any(self.there(range(8, 16))))
        self.assertEqual(native.load(range(8, 16)), [False] * 8)
        self.assertEqual(e.load(range(8)), [True] * 8)

        self.assertEqual(e.lock([0, 1]), [True, True])  # a second request's
        e.unlock(range(8))
        self.assertEqual(e.adapter.report_status()["locked_keys"], 2)
        e.unlock([0, 1])
        self.assertEqual(e.adapter.report_status()["locked_keys"], 0)
        self.churn(lambda: not any(self.there(range(8))))
        self.assertEqual((e.load(range(8)), e.lock(range(8))), ([False] * 8, [False] * 8))

    def test_leases_of_a_process_that_dies_end(self):
        self.churner.store(range(8))
        path = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "")])
        holder = subprocess.Popen(
            [sys.executable, "-B", "-W", "ignore", "-c", _HOLDER, self.server.url, str(self.size)],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        told = next((line for line in holder.stdout if line == "8 8\n"), "")
        holder.kill()
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
        self.assertEqual(told, "8 8\n", "it has not locked them")
        self.churn(lambda: not any(self.there(range(8))))

    def test_a_lease_is_renewed_until_its_time_is_over(self):
        e = self.engine(size=self.size, lease=60, lock_timeout=200)
        now, locks, renewed = [0.0], e.adapter._skep.locks, []
        locks._clock = lambda: now[0]
        renew = skepkv.Lease.renew

        def noted(lease, seconds):
            renew(lease, seconds)
            renewed.append(seconds)

        with unittest.mock.patch.object(skepkv.Lease, "renew", noted):
            e.store([1])
            self.assertEqual(e.lock([1]), [True])
            for n, at in enumerate((21, 42, 190), 1):
                now[0] = float(at)
                with locks._cond:
                    if at == 190:  # as if it had been renewed meanwhile
                        next(iter(locks._held)).lasts = 1000.0
                    locks._cond.notify()
                eventually(lambda: len(renewed) == n)
            self.assertEqual(renewed, [60, 60, 10])
            number = next(iter(locks._held)).lease.number
            now[0] = 201.0
            with locks._cond:
                locks._cond.notify()
            eventually(lambda: e.adapter.report_status()["locked_keys"] == 0)

            def over():
                store = e.adapter._skep._store
                try:
                    renew(skepkv.Lease(store, number), 5)
                except skepkv.SkepError as error:
                    return error.code == 10
                return False

            eventually(over)
            e.unlock([1])  # nobody knows of it any more

    def test_more_locks_than_may_be(self):
        e = self.engine(size=self.size)
        e.store(range(4))
        with unittest.mock.patch("skepkv._lmcache._MOST_LOCKS", 3):
            self.assertEqual(e.lock(range(4)), [True] * 4, "they are found, and not leased")
            self.assertEqual(e.adapter.report_status()["locked_keys"], 0)
            self.assertEqual(e.lock(range(3)), [True] * 3)
            self.assertEqual(e.adapter.report_status()["locked_keys"], 3)


if __name__ == "__main__":
    unittest.main()
