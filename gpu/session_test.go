package gpu_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu/gputest"
	"github.com/skepkv/skep/store/memstore"
)

// drainAll reads a session to its end, and gives what it read back at once.
func drainAll(t *testing.T, ses skep.Session) (blocks, fromGPU int) {
	for into := make([]skep.Chunk, 4); ; {
		n, err := ses.Next(t.Context(), into)
		for _, c := range into[:n] {
			require.NoError(t, c.Err)
			if blocks++; c.Tier == skep.TierGPU {
				fromGPU++
			}
			c.Release()
		}
		if errors.Is(err, io.EOF) {
			return blocks, fromGPU
		}
		require.NoError(t, err)
	}
}

// What is in GPU memory is lent as far as the session's window, and no further until some of it is given back.
func TestBlocksOutOfGPUMemoryKeepToTheWindow(t *testing.T) {
	t.Parallel()
	s, _ := front(t, memstore.Options{})
	defer func() { require.NoError(t, s.Close()) }()
	sc, keys := chains(t, s, 12)
	load(t, s, sc, keys)
	ses, err := s.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys}}, Window: 2 * gputest.BlockBytes})
	require.NoError(t, err)
	var held []skep.Chunk
	into := make([]skep.Chunk, 16)
	for len(held) < 2 {
		n, err := ses.Next(t.Context(), into)
		require.NoError(t, err)
		held = append(held, into[:n]...)
		require.LessOrEqual(t, len(held), 2)
	}
	over, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = ses.Next(over, into)
	require.ErrorIs(t, err, skep.Deadline, "the window is full, and so it waits")
	held[0].Release()
	soon, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n, err := ses.Next(soon, into)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	into[0].Release()
	held[1].Release()
	blocks, gpus := drainAll(t, ses)
	require.Equal(t, []int{9, 9}, []int{blocks, gpus})
	require.NoError(t, ses.Close(t.Context()))
}

// Restore copies nothing: blocks that leave GPU memory before they are asked for come from behind, and those of a chain that is
// stopped do not come.
func TestBlocksAreCopiedWhenTheyAreAskedFor(t *testing.T) {
	t.Parallel()
	s, _ := front(t, memstore.Options{})
	defer func() { require.NoError(t, s.Close()) }()
	sc, keys := chains(t, s, 12)
	load(t, s, sc, keys)
	ses, err := s.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys}}})
	require.NoError(t, err)
	require.NoError(t, s.Reclaim(0, 4))
	require.NoError(t, s.Reclaim(1, 4))
	blocks, gpus := drainAll(t, ses)
	require.Equal(t, 12, blocks)
	require.Less(t, gpus, 12)
	require.NoError(t, ses.Close(t.Context()))
	require.NoError(t, s.Reclaim(0, -4))
	require.NoError(t, s.Reclaim(1, -4))
	load(t, s, sc, keys)

	ses, err = s.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys}}})
	require.NoError(t, err)
	require.NoError(t, ses.Stop(t.Context(), 0))
	into := make([]skep.Chunk, 16)
	n, err := ses.Next(t.Context(), into)
	require.NoError(t, err)
	require.Equal(t, 12, n)
	for _, c := range into[:n] {
		require.ErrorIs(t, c.Err, skep.Stopped)
	}
	require.NoError(t, ses.Close(t.Context()))
}

// Pages of either order, single heads and layers are served out of GPU memory as blocks are: with the bytes that the Store behind
// would give.
func TestPagesAndHeadsComeOutOfGPUMemory(t *testing.T) {
	t.Parallel()
	behind := memstore.New(memstore.Options{})
	s := frontOf(t, behind)
	defer func() { require.NoError(t, s.Close()) }()
	sc, keys := chains(t, s, 8)
	load(t, s, sc, keys)
	shape := gputest.ChainShape
	page := int(gputest.BlockBytes) / shape.Layers / 2
	pages := func(order skep.AxisOrder) *skep.Paged {
		p := &skep.Paged{Order: order, PageStride: int64(page + 16), Planes: make([][2][]byte, shape.Layers)}
		for l := range p.Planes {
			p.Planes[l] = [2][]byte{make([]byte, 9*(page+16)), make([]byte, 9*(page+16))}
		}
		for i := range keys {
			p.Pages = append(p.Pages, (3*i+1)%8)
		}
		return p
	}
	for _, tt := range []struct {
		name  string
		order skep.AxisOrder
		chain skep.Chain
	}{
		{"pages", skep.HND, skep.Chain{}},
		{"pages of the other order", skep.NHD, skep.Chain{}},
		{"pages, by layer", skep.NHD, skep.Chain{Direction: skep.LayersDown, Layers: skep.Only(1, 3)}},
		{"pages, one head", skep.HND, skep.Chain{Heads: skep.Only(1, 2)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			restore := func(st skep.Store) (p *skep.Paged, fromGPU int) {
				c := tt.chain
				p = pages(tt.order)
				c.Scope, c.Keys, c.Dest = sc, keys, skep.Destination{Paged: p}
				err := skep.Load(t.Context(), st, &skep.RestoreRequest{Chains: []skep.Chain{c}}, func(ch *skep.Chunk) error {
					if ch.Tier == skep.TierGPU {
						fromGPU++
					}
					return ch.Err
				})
				require.NoError(t, err)
				return p, fromGPU
			}
			want, none := restore(behind)
			require.Zero(t, none)
			got, fromGPU := restore(s)
			require.Positive(t, fromGPU)
			require.Equal(t, want, got)
		})
	}
}

// What lands in pinned memory is a part of the window: blocks out of GPU memory and the Store behind share the rest.
func TestLandingIsAPartOfTheWindow(t *testing.T) {
	t.Parallel()
	g := newGate()
	s := frontOf(t, g)
	defer func() { require.NoError(t, s.Close()) }()
	sc, keys := chains(t, s, 6)
	load(t, s, sc, keys[:3])
	g.asked = nil
	ses, err := s.Restore(t.Context(), &skep.RestoreRequest{Window: 4 * gputest.BlockBytes, Chains: []skep.Chain{{Scope: sc, Keys: keys}}})
	require.NoError(t, err)
	require.EqualValues(t, 3*gputest.BlockBytes, s.Usage().Landing)
	require.EqualValues(t, 4*gputest.BlockBytes, g.asked[0].Window, "all that is read behind has a place")
	var into [1]skep.Chunk
	_, err = ses.Next(t.Context(), into[:])
	require.NoError(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var more [1]skep.Chunk
	_, err = ses.Next(ended, more[:])
	require.ErrorIs(t, err, skep.Deadline, "one more is more than the window")
	into[0].Release()
	require.NoError(t, ses.Close(t.Context()))
}

// A block that is put does not keep others from being kept, which a restore reads meanwhile.
func TestAPutLeavesOtherBlocksOfARestore(t *testing.T) {
	t.Parallel()
	s := frontOf(t, memstore.New(memstore.Options{}))
	defer func() { require.NoError(t, s.Close()) }()
	sc, keys := chains(t, s, 2)
	ses, err := s.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: keys}}})
	require.NoError(t, err)
	block := skep.Block{Key: skep.KeyOf([]byte("another")), Parts: []skep.Part{{Bytes: make([]byte, gputest.BlockBytes)}}}
	res, err := s.Put(t.Context(), &skep.PutRequest{Scope: sc, Blocks: []skep.Block{block}})
	require.NoError(t, err)
	require.Equal(t, skep.Committed, res[0].Outcome)
	drainAll(t, ses)
	require.NoError(t, ses.Close(t.Context()))
	require.Equal(t, 2, s.Usage().Local)
}
