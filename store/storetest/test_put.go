package storetest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

func testNamespaces(t *testing.T, open Open) {
	e := start(t, open, Config{})
	e.run("a namespace is made once and found again", func(e *env) {
		spec := specOf(hnd)
		a, b := e.open(spec), e.open(spec)
		require.Equal(e, a.ID, b.ID)
		require.NotZero(e, a.ID)
		require.Equal(e, spec, b.NamespaceSpec)
	})
	e.run("no copies means one", func(e *env) {
		spec := specOf(hnd)
		spec.Copies = 0
		a := e.open(spec)
		require.Equal(e, 1, a.Copies)
		spec.Copies = 1
		require.Equal(e, a.ID, e.open(spec).ID)
	})
	e.run("tenants have names of their own", func(e *env) {
		require.NotEqual(e, e.space(hnd).ID, e.space(hnd).ID)
	})
	e.run("one that exists with other properties is a conflict and stays as it is", func(e *env) {
		spec := specOf(hnd)
		was := e.open(spec)
		for name, change := range map[string]func(*skep.NamespaceSpec){
			"model":   func(s *skep.NamespaceSpec) { s.Model += "x" },
			"shape":   func(s *skep.NamespaceSpec) { s.Shape.Layers++ },
			"order":   func(s *skep.NamespaceSpec) { s.Shape.Order = skep.NHD },
			"class":   func(s *skep.NamespaceSpec) { s.Class = skep.Durable },
			"copies":  func(s *skep.NamespaceSpec) { s.Copies = 2 },
			"chained": func(s *skep.NamespaceSpec) { s.Chained = false },
		} {
			other := spec
			change(&other)
			_, err := e.st.OpenNamespace(e.ctx, other)
			requireKind(e, skep.Conflict, err, name)
		}
		require.Equal(e, was.NamespaceSpec, e.open(spec).NamespaceSpec)
	})
	e.run("all are listed, by number", func(e *env) {
		a, b := e.space(hnd), e.space(latent)
		list, err := e.st.Namespaces(e.ctx)
		require.NoError(e, err)
		byID := map[skep.NamespaceID]skep.NamespaceSpec{}
		for i, n := range list {
			if i > 0 {
				require.Greater(e, n.ID, list[i-1].ID)
			}
			byID[n.ID] = n.NamespaceSpec
		}
		require.Equal(e, a.NamespaceSpec, byID[a.ID])
		require.Equal(e, b.NamespaceSpec, byID[b.ID])
	})
}

func testPut(t *testing.T, open Open) {
	e := start(t, open, Config{})
	for _, s := range shapes {
		for _, class := range []skep.Class{skep.Cache, skep.Durable} {
			e.run(fmt.Sprintf("what was put is found and given back, %s, %v", s.name, class), func(e *env) {
				spec := specOf(s.shape)
				spec.Class = class
				c := e.chain(e.open(spec), 5).put(0, 5)
				require.Equal(e, 5, c.found())
				c.check(0, 5)
			})
		}
	}
	e.run("one result a block, in order", func(e *env) {
		c := e.chain(e.space(hnd), 3).put(0, 2)
		res, err := e.st.Put(e.ctx, c.request(0, 3))
		require.NoError(e, err)
		require.Len(e, res, 3)
		require.Equal(e, skep.PutResult{Outcome: skep.Exists}, res[0])
		require.Equal(e, skep.PutResult{Outcome: skep.Exists}, res[1])
		require.Equal(e, skep.PutResult{Outcome: skep.Committed}, res[2])
	})
	e.run("the bytes are the caller's again on return", func(e *env) {
		for _, ack := range []skep.Ack{skep.AckCommitted, skep.AckAccepted} {
			c := e.chain(e.space(pages4K), 4)
			r := c.request(0, 4)
			r.Ack = ack
			e.put(r)
			for _, b := range r.Blocks {
				copy(b.Parts[0].Bytes, poison(len(b.Parts[0].Bytes)))
			}
			c.check(0, 4)
			require.NoError(e, e.st.Flush(e.ctx))
			c.check(0, 4)
		}
	})
	e.run("the bytes are never written to", func(e *env) {
		c := e.chain(e.space(hnd), 3)
		r := c.request(0, 3)
		e.put(r)
		for i, b := range r.Blocks {
			require.Equal(e, c.payload(i), b.Parts[0].Bytes)
		}
	})
	e.run("accepted blocks are readable at once and committed by a flush", func(e *env) {
		c := e.chain(e.space(hnd), 6)
		r := c.request(0, 6)
		r.Ack = skep.AckAccepted
		e.put(r)
		require.Equal(e, 6, c.found())
		c.check(0, 6)
		require.NoError(e, e.st.Flush(e.ctx))
		require.Equal(e, 6, c.found())
		c.check(0, 6)
	})
	e.run("in a chained namespace the first writer wins and the second is told", func(e *env) {
		c := e.chain(e.space(hnd), 2).put(0, 2)
		r := c.request(0, 2)
		r.Blocks[1].Parts[0].Bytes[7] ^= 1
		res, err := e.st.Put(e.ctx, r)
		require.NoError(e, err)
		require.Equal(e, []skep.PutResult{{Outcome: skep.Exists}, {Outcome: skep.Exists, Differs: true}}, res)
		c.check(0, 2)
	})
	e.run("blocks that each begin a chain have each its own outcome and life", func(e *env) {
		c := e.chain(e.space(hnd), 4)
		r := c.request(0, 4)
		r.Each = true
		e.put(&skep.PutRequest{Scope: c.scope, Each: true, Blocks: r.Blocks[1:3]})
		r.Blocks[2].Parts[0].Bytes[7] ^= 1
		res, err := e.st.Put(e.ctx, r)
		require.NoError(e, err)
		require.Equal(e, []skep.PutResult{{Outcome: skep.Committed}, {Outcome: skep.Exists},
			{Outcome: skep.Exists, Differs: true}, {Outcome: skep.Committed}}, res)
		_, err = e.st.Delete(e.ctx, c.scope, c.keys[1:2])
		require.NoError(e, err)
		got := e.runs(&skep.RunsRequest{Scope: c.scope, Runs: [][]skep.Key{c.keys[:1], c.keys[1:2], c.keys[2:3], c.keys[3:]}})
		require.Equal(e, []int{1, 0, 1, 1}, foundOf(got))
	})
	e.run("a block becomes visible with all of its parts", func(e *env) {
		c := e.chain(e.space(hnd), 1)
		r := c.request(0, 1)
		state := Payload(c.keys[0], "state", 777)
		r.Blocks[0].Parts = append(r.Blocks[0].Parts, skep.Part{Name: "state", Bytes: state}, skep.Part{Name: "empty"})
		e.put(r)
		require.EqualValues(e, c.size()+777, c.lookup().Bytes, "of all parts")
		c.check(0, 1)
		for part, want := range map[string][]byte{"kv": c.payload(0), "state": state, "empty": {}} {
			for _, p := range e.restore(skep.Chain{Scope: c.scope, Keys: c.keys, Part: part}) {
				require.NoError(e, p.Err, part)
				require.Equal(e, want, bytesOf(p), part)
			}
		}
		for _, p := range e.restore(skep.Chain{Scope: c.scope, Keys: c.keys, Part: "boundary"}) {
			requireKind(e, skep.NotFound, p.Err)
		}
	})
	e.run("a block of other parts has other bytes", func(e *env) {
		c := e.chain(e.space(hnd), 1).put(0, 1)
		r := c.request(0, 1)
		r.Blocks[0].Parts = append(r.Blocks[0].Parts, skep.Part{Name: "state", Bytes: []byte("x")})
		res, err := e.st.Put(e.ctx, r)
		require.NoError(e, err)
		require.Equal(e, []skep.PutResult{{Outcome: skep.Exists, Differs: true}}, res)
	})
	e.run("sizes from nothing to megabytes", func(e *env) {
		n := e.space(free)
		for _, size := range []int{0, 1, 511, 512, 513, 4095, 4096, 4097, 65536, 1<<20 + 3} {
			c := e.chain(n, 2)
			c.free = size
			c.put(0, 2)
			require.EqualValues(e, 2*size, c.lookup().Bytes)
			c.check(0, 2)
		}
	})
	e.run("names as long as they may be", func(e *env) {
		c := e.chain(e.space(hnd), 1)
		r := c.request(0, 1)
		r.Blocks[0].Name = make([]byte, skep.MaxBlockNameSize)
		e.put(r)
		c.check(0, 1)
	})
}

func testChains(t *testing.T, open Open) {
	e := start(t, open, Config{})
	e.run("the longest stored prefix is found, whatever its length", func(e *env) {
		n := e.space(hnd)
		for _, stored := range []int{0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33} {
			c := e.chain(n, 33).put(0, stored)
			require.Equal(e, stored, c.found())
			c.check(0, stored)
		}
	})
	e.run("a put that returned is seen by every lookup that begins after it", func(e *env) {
		c := e.chain(e.space(hnd), 20)
		for i := range c.keys {
			c.put(i, i+1)
			require.Equal(e, i+1, c.found())
		}
	})
	e.run("chains that share a prefix share its blocks", func(e *env) {
		n := e.space(hnd)
		a, b := e.chain(n, 8), e.chain(n, 8)
		copy(b.keys, a.keys[:5])
		a.put(0, 8)
		require.Equal(e, 5, b.found())
		b.put(5, 7)
		require.Equal(e, 7, b.found())
		require.Equal(e, 8, a.found())
	})
	e.run("a lookup does not start in the middle of a chain", func(e *env) {
		c := e.chain(e.space(hnd), 4).put(0, 4)
		c.keys = c.keys[1:]
		require.Zero(e, c.found())
	})
	e.run("orphans are hidden until their parents arrive", func(e *env) {
		c := e.chain(e.space(hnd), 6).put(2, 4)
		require.Zero(e, c.found())
		c.miss(2)
		c.put(5, 6)
		c.put(0, 1)
		require.Equal(e, 1, c.found())
		c.miss(3)
		c.put(1, 2)
		require.Equal(e, 4, c.found())
		c.miss(5)
		c.put(4, 5)
		require.Equal(e, 6, c.found())
		c.check(0, 6)
	})
	e.run("a chain may be put from its tail", func(e *env) {
		c := e.chain(e.space(hnd), 12)
		for i := len(c.keys) - 1; i >= 0; i-- {
			require.Zero(e, c.found())
			c.put(i, i+1)
		}
		require.Equal(e, 12, c.found())
		c.check(0, 12)
	})
	e.run("a partial tail counts its valid tokens", func(e *env) {
		c := e.chain(e.space(hnd), 3)
		r := c.request(0, 3)
		r.Blocks[2].ValidTokens = 3
		e.put(r)
		got := c.lookup()
		require.Equal(e, 3, got.Blocks)
		require.Equal(e, 2*hnd.BlockTokens+3, got.Tokens)
		c.check(0, 3)
	})
	e.run("a partial tail is the last block a lookup finds", func(e *env) {
		c := e.chain(e.space(hnd), 3).put(0, 1)
		r := c.request(1, 2)
		r.Blocks[0].ValidTokens = 3
		e.put(r)
		// A Store may refuse what follows a partial tail, or keep it and not show it.
		if _, err := e.st.Put(e.ctx, c.request(2, 3)); err != nil {
			requireInvalid(e, err)
		}
		got := c.lookup()
		require.Equal(e, 2, got.Blocks)
		require.Equal(e, hnd.BlockTokens+3, got.Tokens)
	})
	e.run("B valid tokens are a whole block", func(e *env) {
		c := e.chain(e.space(hnd), 2)
		r := c.request(0, 1)
		r.Blocks[0].ValidTokens = hnd.BlockTokens
		e.put(r)
		c.put(1, 2)
		require.Equal(e, 2*hnd.BlockTokens, c.lookup().Tokens)
	})
	e.run("a block drops the partial tail it replaces", func(e *env) {
		n := e.space(hnd)
		c, tail := e.chain(n, 3).put(0, 2), e.chain(n, 3)
		copy(tail.keys, c.keys[:2])
		r := tail.request(2, 3)
		r.Blocks[0].ValidTokens = 1
		e.put(r)
		require.Equal(e, 3, tail.found())
		r = c.request(2, 3)
		r.Blocks[0].Replaces = &tail.keys[2]
		e.put(r)
		require.Equal(e, 3, c.found())
		require.Equal(e, 2, tail.found())
		tail.miss(2)
	})
	e.run("a whole block is not replaced", func(e *env) {
		n := e.space(hnd)
		c, other := e.chain(n, 3).put(0, 2), e.chain(n, 3)
		copy(other.keys, c.keys[:2])
		e.put(other.request(2, 3))
		r := c.request(2, 3)
		r.Blocks[0].Replaces = &other.keys[2]
		e.put(r)
		require.Equal(e, 3, c.found())
		require.Equal(e, 3, other.found())
		other.check(2, 3)
	})
	e.run("a block is not its own parent", func(e *env) {
		c := e.chain(e.space(hnd), 2).put(0, 1)
		r := c.request(1, 2)
		r.Blocks[0].Key = c.keys[0]
		_, err := e.st.Put(e.ctx, r)
		requireKind(e, skep.Invalid, err)
		_, err = e.st.Put(e.ctx, func() *skep.PutRequest {
			r := c.request(0, 2)
			r.Blocks[1].Key = r.Blocks[0].Key
			return r
		}())
		requireKind(e, skep.Invalid, err)
		require.Equal(e, 1, c.found())
	})
	e.run("replacing what is not there is not an error", func(e *env) {
		c := e.chain(e.space(hnd), 2)
		r := c.request(0, 1)
		r.Blocks[0].Replaces = &c.keys[1]
		e.put(r)
		require.Equal(e, 1, c.found())
	})
	e.run("a thousand blocks deep", func(e *env) {
		c := e.chain(e.space(hnd), 1000).put(0, 1000)
		require.Equal(e, 1000, c.found())
		c.check(990, 1000)
	})
}

func testUnchained(t *testing.T, open Open) {
	e := start(t, open, Config{})
	unchained := func(e *env) skep.NamespaceInfo {
		spec := specOf(free)
		spec.Chained = false
		return e.open(spec)
	}
	e.run("blocks stand alone", func(e *env) {
		c := e.chain(unchained(e), 4).put(2, 3)
		require.Zero(e, c.found(), "the leading keys are what counts")
		c.check(2, 3)
		c.put(0, 2)
		require.Equal(e, 3, c.found())
		c.keys = c.keys[2:]
		require.Equal(e, 1, c.found())
	})
	e.run("the last writer wins", func(e *env) {
		c := e.chain(unchained(e), 1)
		for _, size := range []int{10, 10, 5000, 100_000, 0, 7} {
			c.free = size
			res, err := e.st.Put(e.ctx, c.request(0, 1))
			require.NoError(e, err)
			require.Equal(e, []skep.PutResult{{Outcome: skep.Committed}}, res)
			require.EqualValues(e, size, c.lookup().Bytes)
			c.check(0, 1)
		}
		require.EqualValues(e, 1, e.lookup(&skep.LookupRequest{Scope: c.scope, Keys: c.keys, Lease: skep.NoLease}).Blocks)
	})
	e.run("deleting one hides no other", func(e *env) {
		c := e.chain(unchained(e), 3).put(0, 3)
		n, err := e.st.Delete(e.ctx, c.scope, c.keys[:1])
		require.NoError(e, err)
		require.Equal(e, 1, n)
		c.miss(0)
		c.check(1, 3)
	})
}

func testIsolation(t *testing.T, open Open) {
	e := start(t, open, Config{})
	e.run("salts do not see each other", func(e *env) {
		common := e.chain(e.space(hnd), 3)
		anna, bert := common.salted("anna"), common.salted("bert")
		anna.put(0, 3)
		require.Zero(e, common.found())
		require.Zero(e, bert.found())
		bert.miss(0)
		bert.put(0, 2)
		common.put(0, 1)
		require.Equal(e, []int{1, 3, 2}, []int{common.found(), anna.found(), bert.found()})
		anna.check(0, 3)
		bert.check(0, 2)
		common.check(0, 1)
		n, err := e.st.Delete(e.ctx, bert.scope, bert.keys)
		require.NoError(e, err)
		require.Equal(e, 2, n)
		require.Equal(e, []int{1, 3, 0}, []int{common.found(), anna.found(), bert.found()})
	})
	e.run("namespaces do not see each other", func(e *env) {
		a := e.chain(e.space(hnd), 3)
		spec := a.n.NamespaceSpec
		spec.Name = "another of the same tenant and model"
		b := a.in(e.open(spec))
		a.put(0, 3)
		require.Zero(e, b.found())
		b.put(0, 2)
		a.check(0, 3)
		b.check(0, 2)
	})
	e.run("a salt as long as it may be", func(e *env) {
		long := make([]byte, skep.MaxSaltSize)
		c := e.chain(e.space(hnd), 1).salted(skep.Salt(long)).put(0, 1)
		require.Equal(e, 1, c.found())
		require.Zero(e, c.salted(skep.Salt(long[1:])).found())
	})
	e.run("an orphan of one salt does not wait for a parent of another", func(e *env) {
		c := e.chain(e.space(hnd), 2)
		c.salted("anna").put(1, 2)
		c.put(0, 1)
		require.Equal(e, 1, c.found())
		require.Zero(e, c.salted("anna").found())
	})
}
