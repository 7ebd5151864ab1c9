package main

import (
	"bytes"
	"context"
	"slices"
	"sync/atomic"
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
	require.NoError(t, o.save(t.Context(), skep.PutRequest{Scope: sc}, put, inOne(bytesOf), results))
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
	require.NoError(t, o.load(t.Context(), skep.Chain{Scope: sc, Keys: keys}, inOne(into), said))
	for i, k := range said {
		if i%2 == 0 {
			require.Zero(t, k)
			require.Equal(t, blocks[i], into[i])
		} else {
			require.Equal(t, skep.NotFound, k)
		}
	}
	other, last := [][]byte{{9}, {9}, {9}}, make([]skep.PutResult, 3)
	require.NoError(t, o.save(t.Context(), skep.PutRequest{Scope: sc}, put, inOne(other), last))
	for _, r := range last {
		require.Equal(t, skep.PutResult{Outcome: skep.Exists, Differs: true}, r, "the first writer wins")
	}
	err := o.save(t.Context(), skep.PutRequest{Scope: sc, Parent: &keys[1], Depth: 1}, put, inOne(other), last)
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

// putsOf counts the puts that come to a Store, and declines the block of one key.
type putsOf struct {
	skep.Store
	full skep.Key
	n    atomic.Int64
}

func (p *putsOf) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	p.n.Add(1)
	q := *r
	q.Blocks = slices.DeleteFunc(slices.Clone(r.Blocks), func(b skep.Block) bool { return b.Key == p.full })
	list, err := p.Store.Put(ctx, &q)
	if at := slices.IndexFunc(r.Blocks, func(b skep.Block) bool { return b.Key == p.full }); at >= 0 && err == nil {
		list = slices.Insert(list, at, skep.PutResult{Reason: skep.Full})
	}
	return list, err
}

// Keys that are chains of their own go in one put, and each has its own outcome.
func TestChainsOfOneGoInOnePut(t *testing.T) {
	t.Parallel()
	const n = 64
	keys := keysFrom(1, n)
	st := &putsOf{Store: memstore.New(memstore.Options{}), full: keys[9]}
	o, _ := behindServer(t, st)
	sc := openEach(t, o)
	blocks, results := make([][]byte, n), make([]skep.PutResult, n)
	for i := range blocks {
		blocks[i] = bytes.Repeat([]byte{byte(i)}, 4096)
	}
	require.NoError(t, o.save(t.Context(), skep.PutRequest{Scope: sc}, keys[7:8], inOne([][]byte{{9}}), results[:1]))
	st.n.Store(0)
	require.NoError(t, o.save(t.Context(), skep.PutRequest{Scope: sc}, keys, inOne(blocks), results))
	require.EqualValues(t, 1, st.n.Load())
	for i, r := range results {
		switch i {
		case 7:
			require.Equal(t, skep.PutResult{Outcome: skep.Exists, Differs: true}, r)
		case 9:
			require.Equal(t, skep.PutResult{Reason: skep.Full}, r)
		default:
			require.Equal(t, skep.PutResult{Outcome: skep.Committed}, r, "block %d", i)
		}
	}
}
