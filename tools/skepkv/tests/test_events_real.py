"""What routers are told: a server's KV events under vLLM's own classes, and libzmq's sockets."""

import os
import tempfile
import time
import unittest

import skepkv
from serving import Server, eventually

try:
    import msgspec
    import zmq
    from vllm_engine import Engine, chain
    from vllm.distributed import kv_events
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils

    from sglang.srt.disaggregation import kv_events as sglang_events

    missing = ""
except (ImportError, OSError) as e:
    missing = f"vLLM or SGLang is not installed here: {e}"


class Router:
    """A subscriber as vLLM's example has it: what is stored, and the number of the last batch."""

    def __init__(self, test, publish, replay, topic=b""):
        self.decoder = msgspec.msgpack.Decoder(kv_events.KVEventBatch)
        self.context = zmq.Context()
        self.events, self.asks = self.context.socket(zmq.SUB), self.context.socket(zmq.DEALER)
        test.addCleanup(self.context.destroy, linger=0)
        self.events.setsockopt(zmq.HEARTBEAT_IVL, 50)  # PINGs, which want PONGs: here within a minute
        self.events.setsockopt(zmq.HEARTBEAT_TIMEOUT, 60_000)
        self.events.setsockopt(zmq.RECONNECT_IVL, 10)
        self.publish, self.topic = publish, topic
        self.asks.connect(replay)
        self.events.subscribe(topic)
        self.events.connect(publish)
        self.stored, self.last, self.heard = {}, None, []

    def take(self, topic, number, payload):
        """A batch changes the picture of what is stored."""
        batch = self.decoder.decode(payload)
        self.last = int.from_bytes(number, "big")
        self.heard.append((topic, self.last, batch))
        there = self.stored.setdefault(topic, set())
        for e in batch.events:
            if isinstance(e, kv_events.AllBlocksCleared):
                there.clear()
            elif isinstance(e, kv_events.BlockStored):
                there.update(e.block_hashes)
            else:
                there.difference_update(e.block_hashes)
        return batch

    def next(self):
        """The next message that is published; None while there is none."""
        return self.events.recv_multipart() if self.events.poll(10) else None

    def hear(self, want):
        """Takes what is published until the blocks of each of these topics are these."""

        def same():
            while message := self.next():
                self.take(*message)
            return all(self.stored.get(topic) == blocks for topic, blocks in want.items())

        eventually(same)

    def replay(self, start):
        """Takes what was published from start on; what that was."""
        self.asks.send_multipart([b"", start.to_bytes(8, "big")])
        out = []
        while True:
            assert self.asks.poll(60_000), "no answer within a minute"
            empty, topic, number, payload = self.asks.recv_multipart()
            assert empty == b""
            if not payload:
                assert number == kv_events.ZmqEventPublisher.END_SEQ
                return out
            out.append((topic, int.from_bytes(number, "big"), self.take(topic, number, payload)))


def number(key):
    """A block's hash as vLLM tells it."""
    return kv_cache_utils.maybe_convert_block_hash(kv_cache_utils.BlockHash(key))


@unittest.skipIf(missing, missing)
class TestEvents(unittest.TestCase):
    def setUp(self):
        self.server = Server(events=True, capacity="512MiB")
        self.addCleanup(self.server.stop)

    def router(self, topic=b""):
        return Router(self, f"tcp://127.0.0.1:{self.server.zmq}", f"tcp://127.0.0.1:{self.server.replay}", topic)

    def started(self, topic=b"", probe="probe"):
        """A router that has all that there is, and hears what comes."""
        r = self.router(topic)

        def subscribed():
            with skepkv.connect(self.server.url) as store:
                space = store.namespace(probe)
                key = skepkv.key(b"probe", os.urandom(8))
                space.put([key], [b"x"])
                space.delete([key])
            return r.next()

        eventually(subscribed)
        r.replay(0)
        return r

    def test_the_router_here_hears_vllm(self):
        """What this file takes for a router does hear vLLM's publisher."""
        kv_cache_utils.init_none_hash(sha256)
        directory = tempfile.mkdtemp()
        publish, replay = (f"ipc://{directory}/{name}" for name in ("events", "replay"))
        p = kv_events.ZmqEventPublisher(0, publish, replay, topic="kv@pod@model")
        self.addCleanup(p.shutdown)
        stored = kv_events.BlockStored([7], None, [], 0, None, kv_events.MEDIUM_STORAGE, None)
        p.publish(kv_events.KVEventBatch(ts=1.0, events=[stored]))
        r = Router(self, publish, replay)
        eventually(lambda: r.replay(0))
        self.assertEqual(r.stored, {b"kv@pod@model": {7}})

    def test_vllms_blocks_have_vllms_hashes(self):
        kv_cache_utils.init_none_hash(sha256)
        e = Engine(self.server.url)
        self.addCleanup(e.close)
        keys, r = chain(5), self.started()
        e.store(keys)
        topic = f"kv@node-1@default/{e.tier._space(0).name}".encode()
        r.hear({topic: {number(k[:32]) for k in keys}})
        told = [v for t, _, b in r.heard if t == topic for v in b.events if isinstance(v, kv_events.BlockStored)]
        self.assertEqual({v.medium for v in told}, {kv_events.MEDIUM_STORAGE})
        self.assertEqual({(v.block_size, v.parent_block_hash, tuple(v.token_ids)) for v in told}, {(0, None, ())})
        with skepkv.connect(self.server.url) as store:
            where = e.tier._space(0)
            space = store.namespace(where.name, model=where.model, bytes=where.bytes, chained=True, each=True)
            self.assertEqual(space.delete([k[:32] for k in keys[1:3]]), 2)
        r.hear({topic: {number(k[:32]) for k in keys[:1] + keys[3:]}})
        late = self.router()
        late.replay(0)
        self.assertEqual(late.stored[topic], r.stored[topic])

    def test_sglang_reads_the_same(self):
        r, keys = self.started(), [skepkv.key(b"sglang", bytes([i])) for i in range(2)]
        r.decoder = msgspec.msgpack.Decoder(sglang_events.KVEventBatch)
        with skepkv.connect(self.server.url) as store:
            store.namespace("sglang").put(keys, [b"x"] * 2)
            seen = []

            def both():
                if message := r.next():
                    seen.extend(e for e in r.decoder.decode(message[2]).events if message[0].endswith(b"/sglang"))
                return sum(len(e.block_hashes) for e in seen) == 2

            eventually(both)
        self.assertEqual({type(e) for e in seen}, {sglang_events.BlockStored})
        self.assertEqual({h for e in seen for h in e.block_hashes}, {number(k) for k in keys})

    def test_a_chain_has_parents(self):
        keys, r = [skepkv.key(b"chain", bytes([i])) for i in range(4)], self.started()
        with skepkv.connect(self.server.url) as store:
            store.namespace("chain", chained=True).put(keys, [b"block"] * 4)
        r.hear({b"kv@node-1@default/chain": {number(k) for k in keys}})
        parent = {}
        for topic, _, batch in r.heard:
            for e in batch.events if topic.endswith(b"/chain") else []:
                if isinstance(e, kv_events.BlockStored):
                    for h, before in zip(e.block_hashes, [e.parent_block_hash, *e.block_hashes]):
                        parent[h] = before
        self.assertEqual(parent, {number(k): number(p) if p else None for k, p in zip(keys, [None, *keys])})

    def test_a_gap_is_filled(self):
        r, keys = self.started(), [skepkv.key(b"gap", bytes([i])) for i in range(6)]
        topic = b"kv@node-1@default/gap"
        with skepkv.connect(self.server.url) as store:
            space = store.namespace("gap")
            space.put(keys[:1], [b"x"])
            r.hear({topic: {number(keys[0])}})
            last = r.last
            r.events.disconnect(r.publish)
            for k in keys[1:4]:
                space.put([k], [b"x"])
            space.delete(keys[:1])
            r.events.connect(r.publish)

            def again():
                space.put(keys[5:], [b"x"])
                space.delete(keys[5:])
                return r.next()

            _, number_, _ = eventually(again)
            self.assertGreater(int.from_bytes(number_, "big"), last + 1, "the gap is seen")
        missed = r.replay(last + 1)
        self.assertEqual([n for _, n, _ in missed], list(range(last + 1, last + 1 + len(missed))))
        self.assertEqual(r.stored[topic], {number(k) for k in keys[1:4]})
        self.assertEqual(r.replay(r.last + 1), [])

    def test_a_restart_is_seen(self):
        r, keys = self.started(), [skepkv.key(b"restart", bytes([i])) for i in range(4)]
        topic = b"kv@node-1@default/restart"
        with skepkv.connect(self.server.url) as store:
            space = store.namespace("restart", durable=True)
            space.put(keys[:3], [b"x"] * 3)
            r.hear({topic: {number(k) for k in keys[:3]}})
            space.delete(keys[:1])
            r.hear({topic: {number(k) for k in keys[1:3]}})
        last = r.last
        self.server.kill()
        self.server.start()
        with skepkv.connect(self.server.url) as store:
            space = store.namespace("restart", durable=True)

            def heard():
                space.put(keys[3:], [os.urandom(1)])
                return r.next()

            def beyond():
                message = heard()
                now = int.from_bytes(message[1], "big") if message else 0
                return now > last + 1 and now

            now = eventually(beyond)
        self.assertLess(abs(now / 1e6 - time.time()), 3600, "numbers begin at the clock")
        filled = r.replay(last + 1)
        self.assertIsInstance(filled[0][2].events[0], kv_events.AllBlocksCleared)
        r.hear({topic: {number(k) for k in keys[1:]}})

    def test_one_topic(self):
        topic, keys = b"kv@node-1@default/two", [skepkv.key(b"t", bytes([i])) for i in range(2)]
        r = self.started(topic, "two")
        r.heard.clear()  # the replay's, which is of all topics
        with skepkv.connect(self.server.url) as store:
            for name, k in zip(("one", "two"), keys):
                store.namespace(name).put([k], [b"x"])
        r.hear({topic: {number(keys[1])}})
        self.assertEqual({t for t, _, _ in r.heard}, {topic})
