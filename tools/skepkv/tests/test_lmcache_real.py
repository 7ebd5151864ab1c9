"""The connector under LMCache's own classes: its command line, its factory, its adapter and its memory objects."""

import argparse
import json
import select
import unittest

from serving import Server, eventually

try:
    import torch
    from lmcache.v1.distributed.api import ObjectKey
    from lmcache.v1.distributed.l2_adapters import create_l2_adapter
    from lmcache.v1.distributed.l2_adapters.config import add_l2_adapters_args, parse_args_to_l2_adapters_config
    from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

    missing = ""
except (ImportError, OSError) as e:
    missing = f"LMCache is not installed here: {e}"

CHUNKS, SIZE = 64, 4 << 20


def key(i, salt=""):
    return ObjectKey(
        chunk_hash=i.to_bytes(32, "big"), model_name="org/model-7b", kv_rank=1, object_group_id=0, cache_salt=salt
    )


def chunk(i, fill=True):
    n = SIZE // 2
    raw = (
        (torch.arange(n, dtype=torch.int32) * 31 + i * 7919).to(torch.int16)
        if fill
        else torch.zeros(n, dtype=torch.int16)
    )
    shape = torch.Size([2, 1, n // 2 // 128, 128])
    meta = MemoryObjMetadata(
        shape=shape, dtype=torch.bfloat16, address=0, phy_size=SIZE, ref_count=1, fmt=MemoryFormat.KV_2LTD
    )
    return TensorMemoryObj(raw.view(torch.uint8), meta, None)


@unittest.skipIf(missing, missing)
class TestNativePlugin(unittest.TestCase):
    def setUp(self):
        self.server = Server(capacity="1GiB")
        self.addCleanup(self.server.stop)
        self.adapter = self.adapt()

    def adapt(self):
        spec = {
            "type": "native_plugin",
            "module_path": "skepkv.lmcache",
            "class_name": "Connector",
            "adapter_params": {"url": self.server.url, "get_timeout": 120, "set_timeout": 120, "exists_timeout": 120},
        }
        parser = add_l2_adapters_args(argparse.ArgumentParser())
        config = parse_args_to_l2_adapters_config(parser.parse_args(["--l2-adapter", json.dumps(spec)]))
        adapter = create_l2_adapter(config.adapters[0])
        self.addCleanup(adapter.close)
        return adapter

    def wait(self, fd, ask):
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while True:
            self.assertTrue(poll.poll(240000), "nothing completed")
            answer = ask()
            if answer is not None:
                return answer

    def store(self, numbers):
        a, chunks = self.adapter, [chunk(i) for i in numbers]  # whose memory the adapter does not keep
        task = a.submit_store_task([key(i) for i in numbers], chunks)
        return self.wait(a.get_store_event_fd(), lambda: a.pop_completed_store_tasks().get(task))

    def lookup(self, numbers):
        a = self.adapter
        task = a.submit_lookup_and_lock_task([key(i) for i in numbers], {})
        found = self.wait(a.get_lookup_and_lock_event_fd(), lambda: a.query_lookup_and_lock_result(task))
        a.submit_unlock([key(i) for i in numbers])
        return [found.test(j) for j in range(len(numbers))]

    def load(self, numbers):
        """Loads chunks, compares every byte of those that came, and says which did."""
        a, into = self.adapter, [chunk(i, fill=False) for i in numbers]
        task = a.submit_load_task([key(i) for i in numbers], into)
        loaded = self.wait(a.get_load_event_fd(), lambda: a.query_load_result(task))
        for j, i in enumerate(numbers):
            if loaded.test(j):
                self.assertTrue(torch.equal(into[j].raw_data, chunk(i).raw_data), f"chunk {i}")
        return [loaded.test(j) for j in range(len(numbers))]

    def test_chunks_there_and_back_and_after_a_restart(self):
        self.assertTrue(self.store(range(CHUNKS)).is_successful())
        self.assertEqual(self.lookup(range(CHUNKS)), [True] * CHUNKS)
        self.assertEqual(self.load(range(CHUNKS)), [True] * CHUNKS)
        self.assertEqual(self.lookup([1000]), [False])
        self.assertEqual(self.load([0, 1000, 1, 1001, 2]), [True, False, True, False, True])
        other = self.adapt()  # another instance finds what this one has stored
        self.adapter, first = other, self.adapter
        self.assertEqual(self.load(range(16)), [True] * 16)
        self.adapter = first
        self.adapter.delete([key(0)])
        self.assertEqual(self.lookup([0, 1]), [False, True])

        self.server.kill()
        self.assertEqual(self.lookup([1, 2]), [False, False])
        self.assertEqual(self.load([1, 2]), [False, False])
        self.assertFalse(self.store([2000]).is_successful())
        self.server.start()
        eventually(lambda: self.store([2000, 2001]).is_successful())
        self.assertEqual(self.load([2000, 2001]), [True, True])
        there = self.lookup(range(1, 16))
        self.assertEqual(self.load(range(1, 16)), there)


if __name__ == "__main__":
    unittest.main()
