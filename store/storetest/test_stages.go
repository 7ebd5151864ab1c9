package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// testStages checks what stages of a pipeline and shards of a tensor put and restore: boundary
// activations of one recorded split, a stage's layers, a shard's heads.
func testStages(t *testing.T, open Open) {
	e := start(t, open, Config{})
	split := skep.Split{1, 2}
	const activations = 64
	request := func(c *chain, split skep.Split) *skep.PutRequest {
		r := c.request(0, len(c.keys))
		for i := range r.Blocks {
			for stage := 1; stage < split.Stages(); stage++ {
				name := split.BoundaryPart(stage)
				r.Blocks[i].Parts = append(r.Blocks[i].Parts, skep.Part{Name: name, Bytes: Payload(c.seed(i), name, activations)})
			}
		}
		return r
	}
	e.run("a stage's layers, a shard's heads and what enters the stage", func(e *env) {
		c := e.chain(e.space(hnd), 3)
		e.put(request(c, split))
		require.EqualValues(e, 3*(c.size()+2*activations), c.lookup().Bytes, "boundary activations are counted")
		for stage := range split.Stages() {
			layers := split.Layers(stage, hnd.Layers)
			for head := range hnd.KVHeads {
				heads := skep.Only(head, head+1)
				chains := []skep.Chain{{Scope: c.scope, Keys: c.keys, Direction: skep.TailFirst, Layers: layers.Subset(), Heads: heads}}
				if stage > 0 {
					chains = append(chains, skep.Chain{Scope: c.scope, Keys: c.keys, Part: split.BoundaryPart(stage)})
				}
				got := e.restore(chains...)
				require.Len(e, got, len(chains)*len(c.keys))
				for at, p := range got {
					require.NoError(e, p.Err)
					want := Payload(c.seed(at.block), split.BoundaryPart(stage), activations)
					if at.chain == 0 {
						want = pick(c.payload(at.block), asked(hnd, layers, heads))
					}
					require.Equal(e, want, bytesOf(p), "stage %d, head %d, block %d of chain %d", stage, head, at.block, at.chain)
					require.EqualValues(e, len(want), p.Bytes, "nothing of other stages and shards is counted")
				}
			}
		}
	})
	e.run("stages put their share of a block", func(e *env) {
		c := e.chain(e.space(hnd), 1)
		r := request(c, split)
		var m skep.Manifest
		for _, p := range r.Blocks[0].Parts {
			name := p.Name
			if name == "" {
				name = skep.PartKV
			}
			m = append(m, skep.PartSpec{Name: name, Size: int64(len(p.Bytes))})
		}
		w, err := e.st.Begin(e.ctx, &skep.BeginRequest{Scope: c.scope, Key: c.keys[0], Manifest: m})
		require.NoError(e, err)
		for i, p := range r.Blocks[0].Parts {
			require.NoError(e, w.Write(e.ctx, m[i].Name, 0, p.Bytes))
		}
		res, err := w.Commit(e.ctx, skep.AckCommitted)
		require.NoError(e, err)
		require.True(e, isStored(res))
		c.check(0, 1)
		for _, p := range e.restore(skep.Chain{Scope: c.scope, Keys: c.keys, Part: split.BoundaryPart(2)}) {
			require.Equal(e, r.Blocks[0].Parts[2].Bytes, bytesOf(p))
		}
	})
	e.run("another split's boundary activations are refused", func(e *env) {
		c := e.chain(e.space(hnd), 2)
		e.put(request(c, split))
		for part, kind := range map[string]skep.Kind{
			skep.Split{2}.BoundaryPart(1): skep.Conflict, // though they enter the same layer as stage 2's
			skep.Split{1}.BoundaryPart(1): skep.Conflict,
			"boundary.1":                  skep.NotFound,
		} {
			for _, p := range e.restore(skep.Chain{Scope: c.scope, Keys: c.keys, Part: part}) {
				requireKind(e, kind, p.Err, part)
				require.Empty(e, p.bytes)
			}
		}
		c.check(0, 2) // KV is of any split
	})
	e.run("boundary parts that cannot be", func(e *env) {
		for name, parts := range map[string][]string{
			"of two splits":              {split.BoundaryPart(1), skep.Split{2}.BoundaryPart(1)},
			"of more layers than it has": {skep.Split{3}.BoundaryPart(1)},
			"of no split":                {"boundary.1"},
		} {
			c := e.chain(e.space(hnd), 1)
			r := c.request(0, 1)
			for _, part := range parts {
				r.Blocks[0].Parts = append(r.Blocks[0].Parts, skep.Part{Name: part, Bytes: []byte("x")})
			}
			_, err := e.st.Put(e.ctx, r)
			requireKind(e, skep.Invalid, err, name)
			require.Zero(e, c.found())
		}
	})
}
