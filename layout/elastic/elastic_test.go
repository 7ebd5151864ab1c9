package elastic

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

func geometry(t testing.TB, layers, heads, dim, tokens int, e skep.ElementType) layout.Geometry {
	g, err := layout.Of(skep.Shape{Kind: skep.Attention, Layers: layers, KVHeads: heads, HeadDim: dim, Element: e, BlockTokens: tokens})
	require.NoError(t, err)
	return g
}

// SwiftCache §3.2: a master of 10 layers and 100 single-layer blocks, workers that can keep
// 9 and 8 blocks: 17 + 8 = 25 blocks, against 10.
func TestWorkedExample(t *testing.T) {
	t.Parallel()
	g := geometry(t, 10, 2, 64, 16, skep.F16)
	b := Borrower{Local: 100 * g.MBlock(), Geometry: g}
	full := g.MBlock() * 10
	require.Equal(t, 100, LayerBlocks(g, b.Local))
	k1, k2 := LentBlocks(g, 9*full), LentBlocks(g, 8*full+full-1)
	require.Equal(t, Capacity{Stream: 17, Regular: 8, Tokens: 25 * 16, Conventional: 10}, b.Capacity(k1, k2))
	require.Equal(t, 17*full, b.DecodeBytes(b.Capacity(k1, k2)))
}

func TestCapacityIsNeverNegative(t *testing.T) {
	t.Parallel()
	g := geometry(t, 10, 2, 64, 16, skep.F16)
	b := Borrower{Local: 100 * g.MBlock(), Geometry: g}
	for _, tt := range []struct {
		lent            []int
		stream, regular int
	}{
		{nil, 0, 10},
		{[]int{-5, 3}, 3, 9},
		{[]int{100}, 100, 0},
		{[]int{1 << 62, 1 << 62}, 100, 0},
		{[]int{95}, 95, 0},
		{[]int{90}, 90, 1},
	} {
		c := b.Capacity(tt.lent...)
		require.Equal(t, tt.stream, c.Stream, "%v", tt.lent)
		require.Equal(t, tt.regular, c.Regular, "%v", tt.lent)
	}
	require.Zero(t, Borrower{Geometry: g}.Capacity(4).Tokens)
	for _, n := range [][2]int{{-1, 10}, {100, 0}, {100, -1}, {0, 1}} {
		stream, regular := Divide(n[0], n[1], 4)
		require.Zero(t, stream+regular, "%v", n)
	}
	require.Zero(t, LentBlocks(g, -1))
}

// Eq. 6 to 9 in elements, and in bytes with K, V, element types and granules.
func TestUnits(t *testing.T) {
	t.Parallel()
	lwm, q8, q14, q32 := Elements(32, 16, 32, 128), Elements(36, 16, 8, 128), Elements(40, 16, 8, 128), Elements(64, 16, 8, 128)
	for _, tt := range []struct {
		name           string
		master, worker int64
		m, w           int64
	}{
		{"LWM and Qwen3-8B", lwm, q8, 9, 32},
		{"LWM and Qwen3-14B", lwm, q14, 5, 16},
		{"Qwen3-32B and Qwen3-8B", q32, q8, 9, 16},
		{"equal", q8, q8, 1, 1},
		{"nothing", 0, q8, 0, 0},
		{"beyond all bounds", 1<<62 - 1, 1<<62 - 3, 0, 0},
	} {
		m, w := MEU(tt.master, tt.worker)
		require.Equal(t, []int64{tt.m, tt.w}, []int64{m, w}, tt.name)
	}

	for _, tt := range []struct {
		name             string
		lender, borrower layout.Geometry
		limit            int64
		want             Unit
	}{
		{"plain least common multiple, Qwen3-8B lends to Qwen3-14B", // 2.25 and 2.5 MiB
			geometry(t, 36, 8, 128, 16, skep.BF16), geometry(t, 40, 8, 128, 16, skep.BF16), 0,
			Unit{Bytes: 90 << 20, LenderBlock: 2304 << 10, BorrowerBlock: 2560 << 10}},
		{"FP8 is half", geometry(t, 32, 8, 128, 16, skep.FP8), geometry(t, 32, 8, 128, 16, skep.BF16), 0,
			Unit{Bytes: 2 << 20, LenderBlock: 1 << 20, BorrowerBlock: 2 << 20, Lender: 2, Borrower: 1}},
		{"unlike shapes are padded", geometry(t, 61, 7, 96, 16, skep.BF16), geometry(t, 32, 8, 128, 16, skep.BF16), 0, Unit{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u, err := UnitFor(tt.lender, tt.borrower, tt.limit)
			require.NoError(t, err)
			require.Zero(t, u.Bytes%Granule)
			require.LessOrEqual(t, u.Bytes, int64(MaxUnit))
			require.Equal(t, u.Bytes, int64(u.Lender)*u.LenderBlock+u.LenderWaste)
			require.Equal(t, u.Bytes, int64(u.Borrower)*u.BorrowerBlock+u.BorrowerWaste)
			require.Less(t, u.LenderWaste, u.LenderBlock)
			require.Less(t, u.BorrowerWaste, u.BorrowerBlock)
			if tt.want.Lender > 0 {
				require.Equal(t, tt.want, u)
				return
			}
			// Nothing up to the limit wastes less.
			for n := u.Bytes - Granule; n >= Granule; n -= Granule {
				if n >= u.LenderBlock && n >= u.BorrowerBlock {
					require.GreaterOrEqual(t, unitOf(n, u.LenderBlock, u.BorrowerBlock).Waste(), u.Waste(), n)
				}
			}
			if tt.want.Bytes > 0 { // the plain one, when the limit allows
				u, err = UnitFor(tt.lender, tt.borrower, 1<<30)
				require.NoError(t, err)
				require.Equal(t, tt.want.Bytes, u.Bytes)
				require.Zero(t, u.LenderWaste+u.BorrowerWaste)
			}
		})
	}
	big := geometry(t, 80, 8, 128, 256, skep.F32)
	_, err := UnitFor(big, big, 0)
	require.ErrorIs(t, err, skep.Invalid)
	_, err = UnitFor(big, big, 1)
	require.ErrorIs(t, err, skep.Invalid)
}

// A layer's room more for each lent block: the first one, resident, or a second buffer.
func TestDivideBy(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ local, layers, room, lent, stream, regular int }{
		{100, 10, 1, 17, 17, 8}, {100, 10, 2, 17, 17, 6}, {100, 10, 0, 17, 17, 8}, {100, 10, 2, 60, 50, 0}, {101, 10, 2, 60, 50, 0}, {99, 10, 3, 40, 33, 0}, {-1, 10, 2, 4, 0, 0},
	} {
		stream, regular := DivideBy(tt.local, tt.layers, tt.room, tt.lent)
		require.Equal(t, []int{tt.stream, tt.regular}, []int{stream, regular}, "%+v", tt)
	}
}

func TestSet(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for _, n := range []int{1, 63, 64, 65, 4096, 4097, 300_000} {
		s, in := newSet(n), map[int]bool{}
		for range 2000 {
			i, on := rng.IntN(n), rng.IntN(3) > 0
			s.put(i, on)
			if in[i] = on; !on {
				delete(in, i)
			}
			from := rng.IntN(n+2) - 1
			first, last := -1, -1
			for m := range in {
				if m >= from && (first < 0 || m < first) {
					first = m
				}
				if m <= from && m > last {
					last = m
				}
			}
			require.Equal(t, first, s.first(from), "n %d first %d", n, from)
			require.Equal(t, last, s.last(from), "n %d last %d", n, from)
			require.Equal(t, in[i], s.has(i))
		}
	}
}

// Lenders allocate lowest first, borrowers highest first, and a move over free blocks
// changes who may allocate and nothing else.
func TestMove(t *testing.T) {
	t.Parallel()
	a, err := New(Unit{Bytes: 6, LenderBlock: 2, BorrowerBlock: 3, Lender: 3, Borrower: 2}, 4, 1)
	require.NoError(t, err)
	require.Equal(t, 12, a.Capacity(Lender))
	_, ok := a.Alloc(ToBorrower)
	require.False(t, ok, "nothing is lent yet")
	require.ErrorIs(t, a.Move(-4), skep.Invalid, "the floor")
	require.ErrorIs(t, a.Move(1), skep.Invalid)
	require.NoError(t, a.Move(-2))
	require.Equal(t, 4, a.Capacity(ToBorrower))

	b, ok := a.Alloc(ToBorrower)
	require.True(t, ok)
	require.Equal(t, 7, b)
	require.EqualValues(t, 21, a.Offset(ToBorrower, b))
	for want := range 6 {
		l, ok := a.Alloc(Lender)
		require.True(t, ok)
		require.Equal(t, want, l)
	}
	_, ok = a.Alloc(Lender)
	require.False(t, ok, "the border")

	// The lender takes all of it back: the free unit at once, the other when it is freed.
	require.NoError(t, a.Move(2))
	l, ok := a.Alloc(Lender)
	require.True(t, ok)
	require.Equal(t, 6, l)
	unit, ok := a.Stranded(ToBorrower)
	require.True(t, ok)
	require.Equal(t, 3, unit)
	require.Equal(t, []int{7}, a.Blocks(nil, ToBorrower, unit))
	for range 2 {
		_, ok = a.Alloc(Lender)
		require.True(t, ok)
	}
	_, ok = a.Alloc(Lender)
	require.False(t, ok, "a block of the borrower is in use there")
	require.NoError(t, a.Free(ToBorrower, 7))
	require.ErrorIs(t, a.Free(ToBorrower, 7), skep.Invalid, "twice")
	_, ok = a.Stranded(ToBorrower)
	require.False(t, ok)
	l, ok = a.Alloc(Lender)
	require.True(t, ok)
	require.Equal(t, 9, l)
	require.EqualValues(t, 2, a.Epoch())
	require.NoError(t, a.Check())
}

// Random allocations, frees and moves against a table of bytes that each block covers.
func TestArenaAgainstBytes(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for round := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, round))
		u := unitOf(12, 1+rng.Int64N(12), 1+rng.Int64N(12))
		n := 1 + rng.IntN(12)
		a, err := New(u, n, rng.IntN(n+1))
		require.NoError(t, err)
		owner := make([]int, int64(n)*u.Bytes) // 0 nobody, else 1 + side
		var live [2][]int
		for range 300 {
			side := Side(rng.IntN(2))
			switch rng.IntN(4) {
			case 0, 1:
				b, ok := a.Alloc(side)
				if !ok {
					continue
				}
				at, size := a.Offset(side, b), a.side[side].block
				require.Equal(t, side == Lender, at+size <= int64(a.Border())*u.Bytes, "never beyond the border")
				for i := at; i < at+size; i++ {
					require.Zero(t, owner[i], "given twice")
					owner[i] = 1 + int(side)
				}
				live[side] = append(live[side], b)
			case 2:
				if len(live[side]) == 0 {
					continue
				}
				i := rng.IntN(len(live[side]))
				b := live[side][i]
				live[side] = append(live[side][:i], live[side][i+1:]...)
				require.NoError(t, a.Free(side, b))
				clear(owner[a.Offset(side, b) : a.Offset(side, b)+a.side[side].block])
			default:
				before := a.Border()
				if err := a.Move(rng.IntN(2*n+1) - n); err != nil {
					require.Equal(t, before, a.Border(), "a refused move changes nothing")
				}
			}
			require.Equal(t, len(live[side]), a.Used(side))
		}
		require.NoError(t, a.Check())
		// Once everything beyond the border is freed, each side gets all its capacity.
		for _, side := range []Side{Lender, ToBorrower} {
			for unit, ok := a.Stranded(side); ok; unit, ok = a.Stranded(side) {
				for _, b := range a.Blocks(nil, side, unit) {
					require.NoError(t, a.Free(side, b))
				}
			}
		}
		for _, side := range []Side{Lender, ToBorrower} {
			for a.Used(side) < a.Capacity(side) {
				_, ok := a.Alloc(side)
				require.True(t, ok)
			}
			_, ok := a.Alloc(side)
			require.False(t, ok)
		}
		require.NoError(t, a.Check())
	}
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	a, err := New(Unit{Bytes: 4, LenderBlock: 1, BorrowerBlock: 2, Lender: 4, Borrower: 2}, 10, 2)
	require.NoError(t, err)
	require.NoError(t, a.Move(-6)) // 16 blocks kept, 6 units lent
	for _, tt := range []struct {
		demand Demand
		up     int
	}{
		{Demand{}, 0}, {Demand{Running: 10, Admitted: 6}, 0}, {Demand{Running: 10, Admitted: 6, Growth: 1}, 1},
		{Demand{Running: 25}, 3}, {Demand{Running: 1000}, 6}, {Demand{Running: -3, Growth: 17}, 1},
	} {
		require.Equal(t, tt.up, a.ScaleUp(tt.demand), "%+v", tt.demand)
	}
	for _, tt := range []struct{ peak, headroom, down int }{{16, 0, 0}, {12, 0, 1}, {12, 1, 0}, {0, 0, 2}, {0, -5, 2}} {
		require.Equal(t, tt.down, a.ScaleDown(tt.peak, tt.headroom), "%+v", tt)
	}
	up := func(n, r int) string {
		l, b := ScaleUpOne(n, 16, 9, 4, r)
		return fmt.Sprint(l, " ", b)
	}
	down := func(n, r int) string {
		l, b := ScaleDownOne(n, 16, 9, 4, r)
		return fmt.Sprint(l, " ", b)
	}
	require.Equal(t, []string{"0 0", "9 4", "18 8"}, []string{up(10, 160), up(10, 161), up(10, 16*20)})
	require.Equal(t, []string{"0 0", "0 0", "9 4"}, []string{down(10, 161), down(10, 16*2), down(10, 16)})
	l, b := ScaleUpOne(1, 0, 0, 0, 9)
	require.Zero(t, l+b)
}

func TestPeak(t *testing.T) {
	t.Parallel()
	p := Peak{Window: 10}
	for at, v := range []int{3, 9, 4, 4, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1} {
		p.See(int64(at), v)
	}
	require.Equal(t, 4, p.At(13)) // of times 3 to 13
	require.Equal(t, 2, p.At(14))
	require.Equal(t, 1, p.At(20))
	require.Zero(t, p.At(100))
}

// What each policy asks for where twenty requests of a few blocks run, and one of 40 tokens comes.
func TestPoliciesCompared(t *testing.T) {
	t.Parallel()
	a, err := New(Unit{Bytes: 4, LenderBlock: 1, BorrowerBlock: 2, Lender: 4, Borrower: 2}, 10, 2)
	require.NoError(t, err)
	require.NoError(t, a.Move(-6)) // 16 blocks kept, 6 units lent
	s := Seen{Demand: Demand{Running: 14, Admitted: 3, Growth: 2}, Peak: 12, BlockTokens: 16, Tokens: 40, Longest: 40}
	require.Equal(t, []int{1, 0}, []int{AllRequests.Up(a, s), OneRequest.Up(a, s)}, "19 blocks are needed, and 3 for the one")
	require.Equal(t, []int{1, 2}, []int{AllRequests.Down(a, s), OneRequest.Down(a, s)}, "to the floor, whatever runs")
	s.Tokens, s.Longest, s.Demand.Running = 1<<20, 1<<20, 1<<20
	require.Equal(t, []int{6, 6}, []int{AllRequests.Up(a, s), OneRequest.Up(a, s)}, "no more than is lent")
	require.Zero(t, OneRequest.Down(a, s))
	require.Equal(t, []string{"all-requests", "algorithm-1"}, []string{AllRequests.String(), OneRequest.String()})
}

func BenchmarkMove(b *testing.B) {
	for _, n := range []int{10, 1000, 100_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			a, err := New(Unit{Bytes: 1, LenderBlock: 1, BorrowerBlock: 1, Lender: 1, Borrower: 1}, n, 0)
			require.NoError(b, err)
			require.NoError(b, a.Move(-n/2))
			for b.Loop() {
				_ = a.Move(1)
				_ = a.Move(-1)
			}
		})
	}
}
