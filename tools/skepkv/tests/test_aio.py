"""The awaited face, against a real server and in this process."""

import asyncio
import os
import signal
import tempfile
import threading
import unittest

import skepkv
from serving import Server
from skepkv import aio


def key(i):
    return skepkv.key(b"aio", i.to_bytes(4, "little"))


def block(i, n=64 << 10):
    return bytes([i & 255, i >> 8 & 255, 3]) * (n // 3) + bytes(n % 3)


class OnServer(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.server = Server()
        self.addCleanup(self.server.stop)

    def stand_still(self):
        self.server.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.server.process.pid, os.WUNTRACED)  # until it stands
        self.addCleanup(self.server.process.send_signal, signal.SIGCONT)

    async def connect(self, **o):
        store = await aio.connect(self.server.url, **o)
        self.addAsyncCleanup(store.close)
        return store, await store.namespace("n")

    async def test_all_of_its_calls(self):
        store, space = await self.connect()
        keys, blocks = [key(i) for i in range(4)], [block(i) for i in range(4)]
        self.assertEqual(await space.want(keys), b"\xff" * 4)
        self.assertEqual((await space.put(keys, blocks)).outcomes, b"\1" * 4)
        found = await space.lookup(keys + [key(9)], lease=10)
        self.assertEqual((found.blocks, bool(found.lease)), (4, True))
        async with found.lease as lease:
            await lease.renew(20)
            into = [bytearray(64 << 10) for _ in range(4)]
            self.assertTrue(await space.restore(keys, into, lease))
            self.assertEqual(into, blocks)
        self.assertFalse(found.lease)
        there, held = await space.lookup_each([key(9), key(1)], lease=10)
        self.assertEqual(there, [False, True])
        await held.release()
        self.assertEqual((await space.salted(b"u").exists(keys)), bytes(4))
        self.assertIsNone(await store.direct())
        memory = await store.alloc(64 << 10)
        self.assertTrue(await space.restore(keys[:1], [memory.view]))
        self.assertEqual(memory.view, blocks[0])
        memory.free()
        await store.flush()
        self.assertEqual(await space.delete(keys), 4)
        self.assertFalse(await space.restore(keys, into), "a miss is no exception")

    async def test_many_tasks(self):
        _, space = await self.connect(workers=4)

        async def one(i):
            keys = [key(100 * i + j) for j in range(3)]
            into = [bytearray(5000 + i) for _ in keys]
            await space.put(keys, [block(100 * i + j, 5000 + i) for j in range(3)])
            landed = await space.restore(keys, into)
            return bool(landed) and into == [block(100 * i + j, 5000 + i) for j in range(3)]

        self.assertEqual(await asyncio.gather(*(one(i) for i in range(40))), [True] * 40)

    async def test_the_loop_goes_on_while_a_server_says_nothing(self):
        _, space = await self.connect(workers=1)
        await space.put([key(0)], [block(0)])
        self.stand_still()
        calls = [asyncio.create_task(space.exists([key(0)], timeout=60)) for _ in range(2)]
        queued = asyncio.create_task(space.exists([key(0)], timeout=0.01))  # behind them
        for _ in range(100):
            await asyncio.sleep(0)
        self.assertFalse(any(c.done() for c in calls))
        await asyncio.sleep(0.02)
        self.server.process.send_signal(signal.SIGCONT)
        self.assertEqual([(await c)[0] != 0 for c in calls], [True] * 2)
        with self.assertRaises(skepkv.SkepError) as e:
            await queued
        self.assertEqual(e.exception.code, skepkv.errors.DEADLINE)

    async def test_a_task_that_is_cancelled_has_its_buffers_back_when_it_ends(self):
        store, space = await self.connect()
        into, began, go = bytearray(64 << 10), threading.Event(), threading.Event()
        await space.put([key(0)], [block(0)])
        restore = space._space.restore

        def slow(*args):
            began.set()
            go.wait(60)
            return restore(*args)

        space._space.restore = slow
        task = asyncio.create_task(space.restore([key(0)], [into]))
        while not began.is_set():
            await asyncio.sleep(0)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        self.assertFalse(task.done(), "the call may write there")
        go.set()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.assertEqual(into, block(0))

    async def test_a_server_that_is_not_there(self):
        with self.assertRaises(skepkv.SkepError):
            await aio.connect("unix:/nowhere/s")

    async def test_what_is_wrong(self):
        for workers in (0, 1000, "4", True):
            with self.assertRaisesRegex(ValueError, "workers"):
                await aio.connect(self.server.url, workers=workers)
        store, space = await self.connect()
        with self.assertRaises(ValueError):
            await space.exists([key(0)], timeout=-1)
        await store.close()
        with self.assertRaises(skepkv.SkepError) as e:
            await space.exists([key(0)])
        self.assertEqual(e.exception.code, skepkv.errors.CLOSED)

    async def test_a_forked_process_is_refused(self):
        _, space = await self.connect()
        await space.put([key(0)], [block(0)])
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(60)  # it would wait for ever
                try:
                    space.exists([key(0)]).send(None)
                except skepkv.Forked:
                    code = 0
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertNotEqual(await space.exists([key(0)]), b"\0")


class Embedded(unittest.IsolatedAsyncioTestCase):
    async def test_a_store_in_this_process(self):
        with tempfile.TemporaryDirectory() as dir:
            async with await aio.embed(dir, devices=1, capacity_bytes=64 << 20) as store:
                space = await store.namespace("n")
                self.assertTrue(await space.put([key(0)], [block(0)]))
                into = bytearray(64 << 10)
                self.assertTrue(await space.restore([key(0)], [into]))
                self.assertEqual(into, block(0))


if __name__ == "__main__":
    unittest.main()
