package main

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire/server"
)

// behindServer is a store behind a server of this process, with shared memory for two stagings of a block.
func behindServer(t *testing.T, st skep.Store) (o *opened, block []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l, st, server.Options{}) }()
	t.Cleanup(func() {
		stop()
		<-ended
		require.NoError(t, st.Close())
	})
	o, err = open(t.Context(), `{"connect": "unix:`+path+`", "shared_bytes": 8388608}`)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, o.close()) })
	return o, make([]byte, 4<<20)
}

// alone is a namespace of keys that stand alone.
var alone = spaceSpec{NamespaceSpec: skep.NamespaceSpec{Name: "n", Shape: skep.Shape{BlockTokens: 1}}}

// clinging is a Store that lets go of no memory before it is told to.
type clinging struct {
	skep.Store
	letGo atomic.Bool
	puts  []func() // Released of puts
}

type clingingSession struct {
	skep.Session
	c *clinging
}

func (c *clinging) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	s, err := c.Store.Restore(ctx, r)
	return &clingingSession{s, c}, err
}

func (s *clingingSession) Close(ctx context.Context) error {
	if !s.c.letGo.Load() {
		return &skep.Error{Op: op, Kind: skep.NotReleased}
	}
	return s.Session.Close(ctx)
}

func (c *clinging) Put(_ context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	c.puts = append(c.puts, r.Released)
	return nil, &skep.Error{Op: op, Kind: skep.NotReleased}
}

// Shared memory that a call could not tell to be released is lent again once it is, and not before.
func TestStagingOfACallThatWasCutOffIsLentAgain(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(o *opened, sc skep.Scope, block []byte) error{
		"load": func(o *opened, sc skep.Scope, block []byte) error {
			chain := skep.Chain{Scope: sc, Keys: make([]skep.Key, 1)}
			return o.load(t.Context(), chain, [][]byte{block}, make([]skep.Kind, 1))
		},
		"save": func(o *opened, sc skep.Scope, block []byte) error {
			put := skep.PutRequest{Scope: sc}
			return o.save(t.Context(), put, make([]skep.Key, 1), [][]byte{block}, make([]skep.PutResult, 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, block := behindServer(t, memstore.New(memstore.Options{}))
			n, err := o.openNamespace(t.Context(), alone)
			require.NoError(t, err)
			c := &clinging{Store: o.Store}
			o.Store = c
			for range 2 {
				require.ErrorIs(t, use(o, skep.Scope{Namespace: n.ID}, block), skep.Unavailable)
			}
			require.Nil(t, o.stage(t.Context(), [][]byte{block}), "a drive may use it")
			c.letGo.Store(true)
			for _, released := range c.puts {
				released()
			}
			for range 2 {
				require.Eventually(t, func() bool { return o.stage(context.Background(), [][]byte{block}) != nil },
					time.Minute, time.Millisecond, "what nobody uses is not lent again")
			}
		})
	}
}

// A store is closed though a drive never lets go of what a call was into.
func TestAStoreIsClosedThoughADriveClings(t *testing.T) {
	t.Parallel()
	o, block := behindServer(t, memstore.New(memstore.Options{}))
	n, err := o.openNamespace(t.Context(), alone)
	require.NoError(t, err)
	o.Store = &clinging{Store: o.Store}
	require.ErrorIs(t, o.load(t.Context(), skep.Chain{Scope: skep.Scope{Namespace: n.ID}, Keys: make([]skep.Key, 1)},
		[][]byte{block}, make([]skep.Kind, 1)), skep.Unavailable)
}

// What lies elsewhere goes two pieces at a time, every block once. The first error ends it; so does the caller's context,
// and what has had no turn then is an error, too.
func TestPieces(t *testing.T) {
	t.Parallel()
	o, _ := behindServer(t, memstore.New(memstore.Options{}))
	blocks := make([][]byte, 10)
	for i := range blocks {
		blocks[i] = make([]byte, stagedBytes/4) // two of them are a piece
	}
	var mu sync.Mutex
	seen, now, most := make([]int, len(blocks)), 0, 0
	calls := func(err error) func(context.Context, int, int) error {
		return func(_ context.Context, from, to int) error {
			mu.Lock()
			for i := from; i < to; i++ {
				seen[i]++
			}
			now++
			most = max(most, now, to-from)
			mu.Unlock()
			mu.Lock()
			now--
			mu.Unlock()
			return err
		}
	}
	require.NoError(t, o.pieces(t.Context(), blocks, calls(nil)))
	require.Equal(t, []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, seen)
	require.LessOrEqual(t, most, 2)

	wrong := errors.New("wrong")
	seen = make([]int, len(blocks))
	require.ErrorIs(t, o.pieces(t.Context(), blocks, calls(wrong)), wrong)
	require.Zero(t, seen[9], "nothing is begun after that")

	ended, end := context.WithCancel(t.Context())
	end()
	require.ErrorIs(t, o.pieces(ended, blocks, calls(nil)), skep.Deadline)
	require.NoError(t, o.pieces(ended, blocks[:2], calls(nil)), "one piece says itself what it does")
	require.NoError(t, o.pieces(t.Context(), nil, nil))
}
