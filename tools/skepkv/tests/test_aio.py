"""The awaited face, against a real server and in this process."""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import threading
import unittest
from unittest import mock

import skepkv
from serving import Server, cut, laid
from skepkv import aio
from skepkv._library import library


def key(i):
    return skepkv.key(b"aio", i.to_bytes(4, "little"))


def block(i, n=64 << 10):
    return bytes([i & 255, i >> 8 & 255, 3]) * (n // 3) + bytes(n % 3)


def code_of(done):
    """The code of the error that a gather gives back."""
    return done.code if isinstance(done, skepkv.SkepError) else None


async def turns(n=100):
    """Lets tasks get as far as they do without an answer."""
    for _ in range(n):
        await asyncio.sleep(0)


class Stopping(unittest.TestCase):
    def setUp(self):
        self.server = Server()
        self.addCleanup(self.server.stop)

    def stand_still(self):
        self.server.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.server.process.pid, os.WUNTRACED)  # until it stands
        self.addCleanup(self.go_on)

    def go_on(self):
        self.server.process.send_signal(signal.SIGCONT)


class OnServer(Stopping, unittest.IsolatedAsyncioTestCase):
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
            await lease.renew()
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
        self.assertEqual(await space.hint(keys + [key(9)], next_use=60, program="p"), 4)
        with self.assertRaises(skepkv.Invalid):
            await space.hint(keys, steps=-1)
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
        await turns()
        self.assertFalse(any(c.done() for c in calls))
        await asyncio.sleep(0.02)
        self.go_on()
        self.assertEqual([(await c)[0] != 0 for c in calls], [True] * 2)
        with self.assertRaises(skepkv.SkepError) as e:
            await queued
        self.assertEqual(e.exception.code, skepkv.errors.DEADLINE)

    async def test_a_task_that_is_cancelled_has_its_buffers_back_when_it_ends(self):
        _, space = await self.connect()
        into = bytearray(64 << 10)
        await space.put([key(0)], [block(0)])
        self.stand_still()
        task = asyncio.create_task(space.restore([key(0)], [into]))
        await turns()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        self.assertFalse(task.done(), "the call may write there")
        self.go_on()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.assertEqual(into, block(0))
        into.extend(b"x")  # nobody holds it

    async def test_calls_under_way_have_no_threads(self):
        store, space = await self.connect(depth=32)
        await space.put([key(0)], [block(0)])
        self.stand_still()
        before = threading.active_count()
        calls = [asyncio.create_task(space.exists([key(0)], timeout=60)) for _ in range(40)]
        await turns()
        (lane,) = store._calls._lanes.values()
        self.assertEqual((len(lane._under), len(lane._waiting)), (32, 8))
        self.assertEqual(threading.active_count(), before)
        self.go_on()
        self.assertNotIn(b"\0", await asyncio.gather(*calls))

    async def test_calls_wait_for_room_in_order(self):
        _, space = await self.connect(depth=1)
        self.stand_still()
        ended = []

        async def one(i):
            await space.exists([key(0)], timeout=60)
            ended.append(i)

        tasks = [asyncio.create_task(one(i)) for i in range(6)]
        await turns()
        with self.assertRaises(skepkv.SkepError) as e:
            await space.exists([key(0)], timeout=0.01)
        self.assertEqual((e.exception.code, e.exception.text), (skepkv.errors.DEADLINE, "the queue was full"))
        tasks[2].cancel()
        with self.assertRaises(asyncio.CancelledError):
            await tasks[2]  # at once: it is not under way
        self.assertEqual(ended, [])
        self.go_on()
        await asyncio.gather(*(tasks[i] for i in (0, 1, 3, 4, 5)))
        self.assertEqual(ended, [0, 1, 3, 4, 5])

    async def test_room_that_a_cancelled_task_was_given_goes_to_the_next(self):
        _, space = await self.connect(depth=1)
        self.stand_still()

        async def first():
            await space.exists([key(0)], timeout=60)
            return second.cancel()  # it has the room, and has not run yet

        one = asyncio.create_task(first())
        await turns()
        second = asyncio.create_task(space.exists([key(0)]))
        third = asyncio.create_task(space.exists([key(0)]))
        await turns()
        self.go_on()
        self.assertTrue(await one)
        with self.assertRaises(asyncio.CancelledError):
            await second
        self.assertEqual(await third, b"\0")

    async def in_pieces(self):
        """Tasks put and restore blocks in pieces; some of what they restore was never stored."""
        _, space = await self.connect(depth=4)
        lengths = (3000, 1, 60000, 2535)

        async def one(i):
            keys = [key(10 * i + j) for j in range(3)]
            data = [block(10 * i + j) for j in range(3)]
            memory = [bytearray(laid(b, *lengths)) for b in data]
            stored = await space.put(keys[::2], [cut(m, *lengths) for m in memory[::2]])
            memory = [bytearray((64 << 10) + 3) for _ in keys]
            restored = await space.restore(keys, [cut(m, *lengths) for m in memory])
            data[1] = None
            want = [laid(b, *lengths) if b else bytes((64 << 10) + 3) for b in data]
            return bool(stored) and restored.landed == [True, False, True] and memory == want

        self.assertEqual(await asyncio.gather(*(one(i) for i in range(12))), [True] * 12)

    async def test_blocks_in_pieces(self):
        with mock.patch.object(skepkv.Space, "restore", None), mock.patch.object(skepkv.Space, "put", None):
            await self.in_pieces()  # by a queue

    async def test_blocks_in_pieces_with_a_library_before_version_10(self):
        with mock.patch.object(library(), "version", 9):
            await self.in_pieces()

    async def test_a_restore_in_pieces_that_is_cancelled_or_late(self):
        _, space = await self.connect()
        await space.put([key(0)], [block(0)])
        memory, late = bytearray((64 << 10) + 1), bytearray((64 << 10) + 1)
        self.stand_still()
        before = threading.active_count()
        task = asyncio.create_task(space.restore([key(0)], [cut(memory, 6, (64 << 10) - 6)], timeout=60))
        await turns()
        self.assertEqual(threading.active_count(), before)
        task.cancel()
        await turns()
        self.assertFalse(task.done(), "the call may write there")
        with self.assertRaises(skepkv.SkepError) as e:
            await space.restore([key(0)], [cut(late, 6, (64 << 10) - 6)], timeout=0.01)
        self.assertEqual(e.exception.code, skepkv.errors.DEADLINE)
        late.extend(b"x")  # the server may write to a copy's memory only
        self.go_on()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.assertEqual(memory, laid(block(0), 6, (64 << 10) - 6))
        memory.extend(b"x")  # nobody holds it

    async def test_a_timeout_ends_what_is_under_way(self):
        _, space = await self.connect()
        self.stand_still()
        with self.assertRaises(skepkv.SkepError) as e:
            await space.exists([key(0)], timeout=0.01)
        self.assertEqual(e.exception.code, skepkv.errors.DEADLINE)

    async def test_a_timeout_ends_the_begin_of_a_block_of_parts(self):
        """One that did not heed it would take 30 seconds."""
        _, space = await self.connect()
        self.stand_still()
        begin = asyncio.create_task(space.begin(key(0), {"kv": 10}, timeout=0.01))
        other = asyncio.create_task(space.exists([key(0)], timeout=10))
        over, _ = await asyncio.wait([begin, other], return_when=asyncio.FIRST_COMPLETED)
        self.assertEqual(over, {begin})
        self.assertEqual(begin.exception().code, skepkv.errors.DEADLINE)
        self.go_on()
        await other

    async def test_a_timeout_ends_the_wait_for_a_thread(self):
        store, space = await self.connect(workers=1)
        free = threading.Event()
        self.addCleanup(free.set)
        busy = asyncio.create_task(store._calls.threads.run(free.wait, 30))
        begin = asyncio.create_task(space.begin(key(0), {"kv": 10}, timeout=0.01))
        over, _ = await asyncio.wait([begin, busy], return_when=asyncio.FIRST_COMPLETED)
        self.assertEqual(over, {begin})
        self.assertEqual(code_of(begin.exception()), skepkv.errors.DEADLINE)
        begin = asyncio.create_task(space.begin(key(0), {"kv": 10}, timeout=0.01))
        await asyncio.sleep(0)  # it waits, and its time cannot be over before it is cancelled
        begin.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await begin
        free.set()
        await busy
        async with await space.begin(key(0), {"kv": 10}, timeout=60):
            pass  # the thread goes on

    async def test_a_closed_store_ends_what_is_under_way_and_what_waits(self):
        store, space = await self.connect(depth=1)
        self.stand_still()
        tasks = [asyncio.create_task(space.exists([key(0)], timeout=60)) for _ in range(3)]
        await turns()
        await store.close()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        self.assertEqual([code_of(e) for e in ended], [skepkv.errors.CLOSED] * 3)

    async def test_a_store_that_others_close_ends_what_is_under_way(self):
        for close in (lambda store: store.blocking.close(), lambda store: asyncio.to_thread(store.blocking.close)):
            store, space = await self.connect(depth=1)
            self.stand_still()
            tasks = [asyncio.create_task(space.exists([key(0)], timeout=60)) for _ in range(3)]
            await turns()
            ending = close(store)
            if ending is not None:
                await ending
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            self.assertEqual([code_of(e) for e in ended], [skepkv.errors.CLOSED] * 3)
            with self.assertRaises(skepkv.SkepError):
                await space.exists([key(0)])
            self.go_on()

    async def test_memory_that_a_server_may_write_to_is_held_when_the_store_is_closed(self):
        store, space = await self.connect()
        into = bytearray(64 << 10)
        await space.put([key(0)], [block(0)])
        self.stand_still()
        task = asyncio.create_task(space.restore([key(0)], [into], timeout=60))
        await turns()
        with self.assertRaises(skepkv.NotReleased):
            await store.close()
        with self.assertRaises(skepkv.NotReleased):
            await task
        with self.assertRaises(BufferError):
            into.extend(b"x")

    async def test_more_under_way_than_shared_memory_has(self):
        _, space = await self.connect(shared_bytes=1 << 20)
        keys, data = [key(i) for i in range(32)], [block(i, 256 << 10) for i in range(32)]
        await space.put(keys, data)
        into = [bytearray(256 << 10) for _ in keys]
        self.assertTrue(all(await asyncio.gather(*(space.restore([k], [i]) for k, i in zip(keys, into)))))
        self.assertEqual(into, data)

    async def test_a_namespace_is_opened_anew_on_another_store(self):
        _, space = await self.connect()
        await space.put([key(0)], [block(0)])
        self.server.kill()
        shutil.rmtree(os.path.join(self.server.dir, "store"))
        self.server.start()
        there = None
        while there is None:
            try:
                there = await space.exists([key(0)], timeout=20)
            except skepkv.SkepError as e:
                self.assertEqual(e.code, skepkv.errors.UNAVAILABLE)
        self.assertEqual(there, b"\0")
        self.assertTrue(await space.put([key(0)], [block(0)]))

    async def test_a_server_that_is_not_there(self):
        with self.assertRaises(skepkv.SkepError):
            await aio.connect("unix:/nowhere/s")

    async def test_what_is_wrong(self):
        for wrong in (0, 5000, "4", True):
            for name in ("workers", "depth"):
                with self.assertRaisesRegex(ValueError, name):
                    await aio.connect(self.server.url, **{name: wrong})
        store, space = await self.connect()
        with self.assertRaises(ValueError):
            await space.exists([key(0)], timeout=-1)
        with self.assertRaisesRegex(BufferError, "writable"):
            await space.restore([key(0)], [b"x"])
        await store.close()
        with self.assertRaises(skepkv.SkepError) as e:
            await space.exists([key(0)])
        self.assertEqual(e.exception.code, skepkv.errors.CLOSED)

    async def test_a_forked_process_is_refused(self):
        store, space = await self.connect()
        await space.put([key(0)], [block(0)])
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(60)  # it would wait for ever
                for call in (space.exists([key(0)]), store.close()):  # the parent's loop goes on
                    try:
                        call.send(None)
                    except skepkv.Forked:
                        code += 1
                code = 0 if code == 3 else 1
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertNotEqual(await space.exists([key(0)]), b"\0")


class Loops(Stopping):
    """One event loop after the other."""

    def new(self):
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # tasks that are dropped
        self.addCleanup(loop.close)
        return loop

    def connect(self, loop):
        store = loop.run_until_complete(aio.connect(self.server.url))

        def shut():
            with contextlib.closing(asyncio.new_event_loop()) as last:
                last.run_until_complete(store.close())

        self.addCleanup(shut)
        return store, loop.run_until_complete(store.namespace("n"))

    def test_a_loop_takes_over_from_one_that_was_closed(self):
        first, second = self.new(), self.new()
        store, space = self.connect(first)
        self.assertTrue(first.run_until_complete(space.put([key(0)], [block(0)])))
        first.close()
        self.assertNotEqual(second.run_until_complete(space.exists([key(0)])), b"\0")
        self.assertEqual(list(store._calls._lanes), [second])

    def test_a_loop_is_closed_with_a_call_under_way(self):
        first, second = self.new(), self.new()
        _, space = self.connect(first)
        first.run_until_complete(space.put([key(0)], [block(0)]))
        self.stand_still()
        into = bytearray(64 << 10)
        task = first.create_task(space.restore([key(0)], [into]))
        first.run_until_complete(turns())
        first.close()
        del task
        with self.assertRaises(skepkv.SkepError):
            second.run_until_complete(space.exists([key(0)], timeout=0.01))
        with self.assertRaises(BufferError):
            into.extend(b"x")  # the first loop's call may write there
        self.go_on()
        free = False
        while not free:
            self.assertNotEqual(second.run_until_complete(space.exists([key(0)])), b"\0")
            try:
                into.extend(b"x")
                free = True
            except BufferError:
                pass
        self.assertEqual(into, block(0) + b"x")

    def test_a_store_is_closed_after_its_loop(self):
        first = self.new()
        store, space = self.connect(first)
        self.stand_still()
        task = first.create_task(space.exists([key(0)], timeout=60))
        first.run_until_complete(turns())
        first.close()
        del task
        self.new().run_until_complete(store.close())
        with self.assertRaises(skepkv.SkepError) as e:
            self.new().run_until_complete(space.exists([key(0)]))
        self.assertEqual(e.exception.code, skepkv.errors.CLOSED)


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
