package storm

import (
	"bytes"
	"context"
	"sync"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
)

// contestBlocks is two groups and the beginning of a third.
const contestBlocks = 9

// contest has all clients put other bytes under the keys of one new chain, at once, while all is well. Each node lets
// the first win: with one replica one client stored a block, the others are told that it differs, and everybody reads
// the same bytes; with two, nodes may have let different clients win, and what is read is all of one's.
func (b *books) contest() {
	b.contests++
	keys := newChain(spaces[0], 1000+b.contests, 0).keys[:contestBlocks]
	res := make([][]skep.PutResult, len(b.w.clients))
	var wait sync.WaitGroup
	for i := range b.w.clients {
		wait.Go(func() { res[i] = b.contends(i, keys) })
	}
	wait.Wait()
	again := b.contends(0, keys)
	if b.w.isBroken() {
		return
	}
	for at, k := range keys {
		winner, stored := 0, 0
		for i := range res {
			if res[i][at].Outcome == skep.Committed {
				winner, stored = i, stored+1
			}
		}
		if b.w.first.Replicas > 1 {
			winner = -1
		} else if stored != 1 {
			b.w.broken("block %d was put by three at once, and %d of them stored it: %v", at, stored, res)
			return
		}
		if x := again[at]; x.Outcome != skep.Exists || winner >= 0 && x.Differs != (winner != 0) {
			b.w.broken("block %d is %d's, and c0 puts it again: %v", at, winner, x)
		}
		for _, c := range b.w.clients {
			b.reads(c, keys, at, k, winner)
		}
	}
}

func contended(k skep.Key, client int) []byte {
	return storetest.Payload(k, skep.PartKV, 200)[client:][:100]
}

func (b *books) contends(i int, keys []skep.Key) []skep.PutResult {
	c := b.w.clients[i]
	q := &skep.PutRequest{Scope: c.scopes[spaces[0]]}
	for _, k := range keys {
		q.Blocks = append(q.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: contended(k, i)}}})
	}
	res, err := c.st.Put(context.Background(), q)
	if err != nil {
		b.w.broken("%s: a put while all is well: %v", c.m.name, err)
	}
	return res
}

// reads looks whether a client reads a block that the winner put; -1: that any of them put.
func (b *books) reads(c *client, keys []skep.Key, at int, k skep.Key, winner int) {
	part := skep.Chain{Scope: c.scopes[spaces[0]], Keys: keys[:at+1], Blocks: skep.Only(at, at+1)}
	err := skep.Load(context.Background(), c.st, &skep.RestoreRequest{Chains: []skep.Chain{part}}, func(ch *skep.Chunk) error {
		if ch.Err != nil {
			return ch.Err
		}
		text, whose := ch.AppendTo(nil), -1
		for i := range b.w.clients {
			if bytes.Equal(text, contended(k, i)) {
				whose = i
			}
		}
		if whose < 0 || winner >= 0 && whose != winner {
			b.w.broken("%s: block %d is read as put by %d, and it is %d's", c.m.name, at, whose, winner)
		}
		return nil
	})
	if err != nil {
		b.w.broken("%s: block %d, which three have put, is not read: %v", c.m.name, at, err)
	}
}
