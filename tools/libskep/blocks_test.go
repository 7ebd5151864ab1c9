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
	"github.com/skepkv/skep/store/storetest"
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
			return o.load(t.Context(), chain, inOne([][]byte{block}), make([]skep.Kind, 1))
		},
		"load to pieces": func(o *opened, sc skep.Scope, block []byte) error {
			chain := skep.Chain{Scope: sc, Keys: make([]skep.Key, 1)}
			return o.load(t.Context(), chain, []place{{block[1:], block[:1]}}, make([]skep.Kind, 1))
		},
		"save of pieces": func(o *opened, sc skep.Scope, block []byte) error {
			put := skep.PutRequest{Scope: sc}
			return o.save(t.Context(), put, make([]skep.Key, 1), []place{{block[1:], block[:1]}}, make([]skep.PutResult, 1))
		},
		"save": func(o *opened, sc skep.Scope, block []byte) error {
			put := skep.PutRequest{Scope: sc}
			return o.save(t.Context(), put, make([]skep.Key, 1), inOne([][]byte{block}), make([]skep.PutResult, 1))
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
			require.Nil(t, o.stage(t.Context(), inOne([][]byte{block})), "a drive may use it")
			c.letGo.Store(true)
			for _, released := range c.puts {
				released()
			}
			for range 2 {
				require.Eventually(t, func() bool { return o.stage(context.Background(), inOne([][]byte{block})) != nil },
					time.Minute, time.Millisecond, "what nobody uses is not lent again")
			}
		})
	}
}

// What lies in shared memory is read and written there, also where it is given in pieces that touch. Pieces that do not
// are copied, through memory of the heap where there is no shared one.
func TestPiecesThatTouchAreNotCopied(t *testing.T) {
	t.Parallel()
	o, block := behindServer(t, memstore.New(memstore.Options{}))
	m, err := o.Alloc(t.Context(), 8<<10)
	require.NoError(t, err)
	defer m.Release()
	in := func(cuts ...int) place {
		var p place
		for i := range len(cuts) - 1 {
			p = p.add(m.Bytes()[cuts[i]:cuts[i+1]])
		}
		return p
	}
	touching := in(0, 100, 4000, 8192)
	require.Equal(t, place{m.Bytes()}, touching)
	require.Nil(t, o.stage(t.Context(), []place{touching}))
	apart := in(0, 100, 4000).add(m.Bytes()[4001:])
	require.Len(t, apart, 2)
	s := o.stage(t.Context(), []place{touching, apart})
	require.NotNil(t, s)
	defer s.release()
	require.True(t, o.client.Shares(s.cut([]place{touching, apart})[1]))
	s = o.stage(t.Context(), []place{{block, block, block}}) // more than the shared memory has
	require.Nil(t, s.mem)
	require.Len(t, s.bytes, 3*len(block))

	alone := &opened{}
	require.Nil(t, alone.stage(t.Context(), []place{{block}}))
	require.Len(t, alone.stage(t.Context(), []place{{block[:1], block[2:]}}).bytes, 4<<20)
}

// A block is copied to its pieces and from them, however either side is cut.
func TestAPlaceInPieces(t *testing.T) {
	t.Parallel()
	room, want := make([]byte, 10), []byte("abcdef")
	p := place{room[7:9], room[0:1], room[3:6]}
	require.Equal(t, int64(6), p.size())
	p.fill(want[:3], nil, want[3:4], want[4:])
	require.Equal(t, "c\x00\x00def\x00ab\x00", string(room))
	again := make([]byte, 6)
	p.gather(again)
	require.Equal(t, want, again)
	for off := range p.size() { // from any byte on
		rest := make([]byte, p.size()-off)
		p.from(off).gather(rest)
		require.Equal(t, want[off:], rest)
	}
}

// Some layers of a block come to where they are in it, by way of shared memory, or of memory of the heap; nothing else
// is copied.
func TestLayersAreCopiedAlone(t *testing.T) {
	t.Parallel()
	o, _ := behindServer(t, memstore.New(memstore.Options{}))
	shape := skep.Shape{Kind: skep.Attention, Layers: 3, KVHeads: 2, HeadDim: 8, Element: skep.BF16, BlockTokens: 4}
	spec := skep.NamespaceSpec{Name: "n", Chained: true, Shape: shape}
	n, err := o.openNamespace(t.Context(), spaceSpec{NamespaceSpec: spec})
	require.NoError(t, err)
	keys, sc := make([]skep.Key, 1), skep.Scope{Namespace: n.ID}
	const size, layer = 768, 256
	block := storetest.Payload(keys[0], skep.PartKV, size)
	put := make([]skep.PutResult, 1)
	require.NoError(t, o.save(t.Context(), skep.PutRequest{Scope: sc}, keys, inOne([][]byte{block}), put))
	load := func(into place, layers skep.Subset) error {
		return o.load(t.Context(), skep.Chain{Scope: sc, Keys: keys, Layers: layers}, []place{into}, make([]skep.Kind, 1))
	}
	for l := range 3 {
		into, want := make([]byte, size), make([]byte, size)
		copy(want[l*layer:(l+1)*layer], block[l*layer:])
		require.NoError(t, load(place{into}, skep.Only(l, l+1)))
		require.Equal(t, want, into)
		apart := make([]byte, size+1)
		require.NoError(t, load(place{apart[:300], apart[301:]}, skep.Only(l, l+1)))
		require.Equal(t, want, append(apart[:300:300], apart[301:]...))
	}
	for _, none := range []skep.Subset{skep.Only(0, 0), skep.Only(2, 4), skep.Only(3, 4)} {
		require.EqualError(t, load(place{make([]byte, size)}, none),
			"skep: libskep: invalid: layers is "+none.String()+", must be in 0 to 3")
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
		inOne([][]byte{block}), make([]skep.Kind, 1)), skep.Unavailable)
}

// What lies elsewhere goes two pieces at a time, every block once. The first error ends it; so does the caller's context,
// and what has had no turn then is an error, too.
func TestPieces(t *testing.T) {
	t.Parallel()
	o, _ := behindServer(t, memstore.New(memstore.Options{}))
	blocks := make([]place, 10)
	for i := range blocks {
		blocks[i] = place{make([]byte, stagedBytes/4)} // two of them are a piece
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

	first := make(chan struct{})
	err := o.pieces(t.Context(), blocks[:4], func(within context.Context, from, _ int) error {
		if from == 0 {
			<-first
			return wrong
		}
		close(first)
		<-within.Done() // of the first
		return &skep.Error{Op: op, Kind: skep.NotReleased}
	})
	require.ErrorIs(t, err, wrong)
	require.Equal(t, skep.NotReleased, skep.KindOf(err), "who may not free its memory is told, whichever error was first")

	ended, end := context.WithCancel(t.Context())
	end()
	require.ErrorIs(t, o.pieces(ended, blocks, calls(nil)), skep.Deadline)
	require.NoError(t, o.pieces(ended, blocks[:2], calls(nil)), "one piece says itself what it does")
	require.NoError(t, o.pieces(t.Context(), nil, nil))
}
