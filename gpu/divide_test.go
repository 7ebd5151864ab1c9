package gpu_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/sim"
	"github.com/skepkv/skep/layout/elastic"
	"github.com/skepkv/skep/store/memstore"
)

// The paper's example (§3.2), by moves: ten layers, local memory for 100 single-layer blocks, lenders
// of 9 and 8 blocks. Each move divides local memory anew, and blocks keep to their part of it.
func TestLocalMemoryIsDividedAtEachMove(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	so := sim.H20()
	so.Devices, so.MemoryBytes = 3, 16<<20
	w, err := sim.New(so)
	require.NoError(t, err)
	const block = 40 << 10
	unit := elastic.Unit{Bytes: block, LenderBlock: block, BorrowerBlock: block, Lender: 1, Borrower: 1}
	arenas := [2]gpu.Memory{}
	for i, n := range []int64{9, 8} {
		arenas[i], err = w.Device(1 + i).Alloc(n * block)
		require.NoError(t, err)
	}
	s, err := gpu.New(memstore.New(memstore.Options{}), gpu.Options{Device: w.Device(0), Local: 10, BlockBytes: block, Layers: 10,
		Lenders: []gpu.Lender{{Device: w.Device(1), Unit: unit, Units: 9, Keep: 6, Memory: arenas[0]}}})
	require.NoError(t, err)
	sc, keys := chains(t, s, 27) // of smaller blocks
	room := func(local, layers, lent int) {
		t.Helper()
		u := s.Usage()
		require.LessOrEqual(t, u.Local, local, "blocks beyond go at once")
		load(t, s, sc, keys)
		u = s.Usage()
		require.Equal(t, []int{local, layers, lent}, []int{u.LocalRoom, u.LayerRoom, u.LentRoom})
		require.Equal(t, local, u.Local, "all of it is used, and no more")
		require.Equal(t, lent, u.Lent)
	}
	room(9, 3, 3)
	require.NoError(t, s.Reclaim(0, 3))
	room(10, 0, 0)
	require.NoError(t, s.Reclaim(0, -9))
	room(9, 9, 9)
	id, err := s.Attach(gpu.Lender{Device: w.Device(2), Unit: unit, Units: 8, Memory: arenas[1]})
	require.NoError(t, err)
	room(8, 17, 17)
	load(t, s, sc, keys[:25])
	require.Equal(t, 25, count(load(t, s, sc, keys[:25])), "25 blocks, against 10")

	// Who holds the room for layers keeps it, whatever is lent less meanwhile.
	at, blocks, release, err := s.LayerRoom()
	require.NoError(t, err)
	require.Equal(t, 17, blocks)
	require.EqualValues(t, 8*block, at.Offset)
	require.NoError(t, s.Detach(id))
	room(8, 9, 9)
	require.NoError(t, s.Reclaim(0, 9))
	room(8, 0, 0)
	release()
	release()
	room(10, 0, 0)

	// Whatever moves: what layout says.
	lent := [2]int{}
	for range 60 {
		i := rng.IntN(2)
		switch n := rng.IntN([]int{10, 9}[i]) - lent[i]; {
		case i == 0:
			require.NoError(t, s.Reclaim(0, -n))
			lent[0] += n
		case lent[1] == 0:
			_, err := s.Attach(gpu.Lender{Device: w.Device(2), Unit: unit, Units: 8, Keep: 8 - n, Memory: arenas[1]})
			require.NoError(t, err)
			if lent[1] = n; n == 0 {
				require.NoError(t, s.Detach(1))
			}
		case n == -lent[1]:
			require.NoError(t, s.Detach(1))
			lent[1] = 0
		default:
			require.NoError(t, s.Reclaim(1, -n))
			lent[1] += n
		}
		stream, regular := elastic.Divide(100, 10, lent[:]...)
		room(regular, stream, lent[0]+lent[1])
	}
	require.NoError(t, s.Close())
	for _, a := range arenas {
		require.NoError(t, a.Free())
	}

	plain, err := gpu.New(memstore.New(memstore.Options{}), gpu.Options{Device: w.Device(0), Local: 10, BlockBytes: block})
	require.NoError(t, err)
	_, _, _, err = plain.LayerRoom()
	require.ErrorIs(t, err, skep.Unsupported)
	require.NoError(t, plain.Close())
}
