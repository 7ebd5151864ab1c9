package main

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// openEach opens a namespace in which each key is a chain of its own.
func openEach(t *testing.T, o *opened) skep.Scope {
	t.Helper()
	n, err := o.openNamespace(t.Context(), spaceSpec{
		NamespaceSpec: skep.NamespaceSpec{Name: "n", Shape: skep.Shape{BlockTokens: 1}, Chained: true}, Each: true})
	require.NoError(t, err)
	return skep.Scope{Namespace: n.ID}
}

func keysFrom(first byte, n int) []skep.Key {
	out := make([]skep.Key, n)
	for i := range out {
		out[i] = skep.Key{first, byte(i)}
	}
	return out
}

// withoutRuns is a server that knows no lookup of runs.
type withoutRuns struct{ skep.Store }

func (withoutRuns) LookupRuns(context.Context, *skep.RunsRequest) (skep.RunsResult, error) {
	return skep.RunsResult{}, &skep.Error{Op: "lookup of runs", Kind: skep.Unsupported}
}

// Keys that are chains of their own are found each by itself, with one call, and by a server that knows no such call,
// too.
func TestEachKeyIsAChainOfItsOwn(t *testing.T) {
	t.Parallel()
	o, _ := behindServer(t, memstore.New(memstore.Options{}))
	sc, keys := openEach(t, o), keysFrom(1, 5)
	blocks := make([][]byte, len(keys))
	for i := range blocks {
		blocks[i] = bytes.Repeat([]byte{byte(i)}, 100+i)
	}
	results := make([]skep.PutResult, 3)
	some := func(i ...int) (k []skep.Key, b [][]byte) {
		for _, at := range i {
			k, b = append(k, keys[at]), append(b, blocks[at])
		}
		return k, b
	}
	put, bytesOf := some(0, 2, 4)
	require.NoError(t, o.save(t.Context(), skep.PutRequest{Scope: sc}, put, bytesOf, results))
	for _, r := range results {
		require.Equal(t, skep.PutResult{Outcome: skep.Committed}, r)
	}
	st := o.Store
	for _, o.Store = range []skep.Store{st, withoutRuns{st}} {
		found, tiers := make([]byte, 5), make([]skep.Tier, 5)
		lease, err := o.lookupEach(t.Context(), sc, keys, time.Minute, found)
		require.NoError(t, err)
		require.Equal(t, []byte{1, 0, 1, 0, 1}, found)
		require.Equal(t, o.Store == st, lease != 0, "a server that knows no such call leases nothing")
		require.NoError(t, o.exists(t.Context(), sc, keys, tiers))
		for i, at := range tiers {
			require.Equal(t, i%2 == 0, at != skep.TierNone)
		}
		f, err := o.lookup(t.Context(), &skep.LookupRequest{Scope: sc, Keys: keys, Lease: skep.NoLease})
		require.NoError(t, err)
		require.Equal(t, 1, f.Blocks)
	}
	o.Store = st
	into, said := make([][]byte, 5), make([]skep.Kind, 5)
	for i := range into {
		into[i] = make([]byte, len(blocks[i]))
	}
	require.NoError(t, o.load(t.Context(), skep.Chain{Scope: sc, Keys: keys}, into, said))
	for i, k := range said {
		if i%2 == 0 {
			require.Zero(t, k)
			require.Equal(t, blocks[i], into[i])
		} else {
			require.Equal(t, skep.NotFound, k)
		}
	}
	other, last := [][]byte{{9}, {9}, {9}}, make([]skep.PutResult, 3)
	require.NoError(t, o.save(t.Context(), skep.PutRequest{Scope: sc}, put, other, last))
	for _, r := range last {
		require.Equal(t, skep.PutResult{Outcome: skep.Exists, Differs: true}, r, "the first writer wins")
	}
	err := o.save(t.Context(), skep.PutRequest{Scope: sc, Parent: &keys[1], Depth: 1}, put, other, last)
	require.ErrorIs(t, err, skep.Invalid)
}

// How a namespace's keys are given is said once: one store cannot have it open both ways.
func TestANamespaceHasEachKeyAChainOrNot(t *testing.T) {
	t.Parallel()
	o, _ := behindServer(t, memstore.New(memstore.Options{}))
	sc := openEach(t, o)
	require.Equal(t, sc, openEach(t, o))
	spec := skep.NamespaceSpec{Name: "n", Shape: skep.Shape{BlockTokens: 1}, Chained: true}
	_, err := o.openNamespace(t.Context(), spaceSpec{NamespaceSpec: spec})
	require.ErrorIs(t, err, skep.Conflict)
	require.ErrorContains(t, err, "each")
	spec.Name, spec.Chained = "alone", false
	_, err = o.openNamespace(t.Context(), spaceSpec{NamespaceSpec: spec, Each: true})
	require.ErrorIs(t, err, skep.Invalid)
}

// someCling is a Store that lets go of some puts' memory late, and refuses some.
type someCling struct {
	skep.Store
	mu   sync.Mutex
	late []func()
}

func (c *someCling) Put(_ context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	switch r.Blocks[0].Key[1] % 3 {
	case 0:
		return []skep.PutResult{{Outcome: skep.Committed}}, nil
	case 1:
		return nil, &skep.Error{Op: op, Kind: skep.Overloaded}
	}
	c.mu.Lock()
	c.late = append(c.late, r.Released)
	c.mu.Unlock()
	return []skep.PutResult{{Outcome: skep.Committed}}, &skep.Error{Op: op, Kind: skep.NotReleased}
}

// Of puts that go side by side each block has its own result, and the memory is the caller's when the last has let go.
func TestPutsOfEachFailAlone(t *testing.T) {
	t.Parallel()
	o, _ := behindServer(t, memstore.New(memstore.Options{}))
	sc := openEach(t, o)
	c := &someCling{Store: o.Store}
	o.Store = c
	released := 0
	r := &skep.PutRequest{Scope: sc, Released: func() { released++ }}
	for _, k := range keysFrom(1, 6) {
		r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: []byte{1}}}})
	}
	results, err := o.put(t.Context(), r)
	require.ErrorIs(t, err, skep.NotReleased)
	rest, held := skep.Held(err)
	require.True(t, held)
	require.ErrorIs(t, rest, skep.Overloaded)
	for i, x := range results {
		require.Equal(t, i%3 == 1, x.Outcome == unheard, "block %d", i)
	}
	require.Len(t, c.late, 2)
	c.late[0]()
	require.Zero(t, released)
	c.late[1]()
	require.Equal(t, 1, released)
}
