package owed

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/drawn"
)

// What becomes of 100 bytes that node 0 is to give, and who owes what then.
func TestWhoOwesWhat(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do   func(b *Book)
		owed [3]int64
	}{
		"planned":                      {func(*Book) {}, [3]int64{100}},
		"some came":                    {func(b *Book) { b.Paid(0, 30) }, [3]int64{70}},
		"all came":                     {func(b *Book) { b.Paid(0, 30); b.Paid(0, 70); b.Done() }, [3]int64{}},
		"begun at another node":        {func(b *Book) { b.Moves(0, 1, 100) }, [3]int64{0, 100}},
		"some of it is":                {func(b *Book) { b.Moves(0, 1, 40); b.Paid(1, 10) }, [3]int64{60, 30}},
		"and comes from there":         {func(b *Book) { b.Moves(0, 1, 100); b.Paid(1, 100); b.Done() }, [3]int64{}},
		"failed there, and at a third": {func(b *Book) { b.Moves(0, 1, 100); b.Moves(1, 2, 100) }, [3]int64{0, 0, 100}},
		"back at the first":            {func(b *Book) { b.Moves(0, 1, 100); b.Moves(1, 0, 100) }, [3]int64{100}},
		"moved to where it was":        {func(b *Book) { b.Moves(0, 0, 100) }, [3]int64{100}},
		"cancelled":                    {func(b *Book) { b.Moves(0, 1, 40); b.Settle() }, [3]int64{}},
		"told of after it was settled": {func(b *Book) { b.Settle(); b.Paid(0, 10); b.Moves(0, 1, 10) }, [3]int64{}},
	} {
		totals, books := clientOf(3, 2)
		books[1].Owes(1, 7) // another session's
		books[0].Owes(0, 100)
		c.do(&books[0])
		c.owed[1] += 7
		require.Equal(t, c.owed, [3]int64{totals[0].Load(), totals[1].Load(), totals[2].Load()}, name)
		books[0].Settle()
		books[1].Paid(1, 7)
		books[1].Done()
		for i := range totals {
			require.Zero(t, totals[i].Load(), "%s: node %d", name, i)
		}
	}
}

// clientOf is a client of so many nodes, with so many sessions.
func clientOf(nodes, sessions int) (totals []*Total, books []Book) {
	for range nodes {
		totals = append(totals, new(Total))
	}
	for range sessions {
		books = append(books, New(totals))
	}
	return totals, books
}

// The tag invariants has nobody pay what it does not owe, nor leave anything when nothing is on its way.
func TestABookThatIsWrongPanics(t *testing.T) {
	t.Parallel()
	if !invariants {
		t.Skip("needs the build tag invariants")
	}
	for name, wrong := range map[string]func(b *Book){
		"paid twice":           func(b *Book) { b.Paid(0, 100); b.Paid(0, 1) },
		"paid by another node": func(b *Book) { b.Paid(1, 100) },
		"moved from another":   func(b *Book) { b.Moves(1, 0, 100) },
		"left":                 func(b *Book) { b.Paid(0, 99); b.Done() },
	} {
		_, books := clientOf(2, 1)
		books[0].Owes(0, 100)
		require.Panics(t, func() { wrong(&books[0]) }, name)
	}
}

// Chunks of several sessions go from node to node, and end in any way: the totals are always the sum of where they are.
func TestBooksAreWhereTheChunksAre(t *testing.T) {
	t.Parallel()
	const nodes, sessions = 4, 3
	rng := rand.New(rand.NewPCG(drawn.Seed(t), 1))
	type chunk struct{ session, node, bytes int }
	for range 200 {
		totals, books := clientOf(nodes, sessions)
		var under []chunk
		for range 100 {
			s := rng.IntN(sessions)
			k := 0
			if len(under) > 0 {
				k = rng.IntN(len(under))
			}
			switch do := rng.IntN(10); {
			case do < 4 || len(under) == 0:
				c := chunk{s, rng.IntN(nodes), rng.IntN(1 << 20)}
				books[s].Owes(c.node, int64(c.bytes))
				under = append(under, c)
			case do < 7:
				c, to := &under[k], rng.IntN(nodes)
				books[c.session].Moves(c.node, to, int64(c.bytes))
				c.node = to
			default:
				books[under[k].session].Paid(under[k].node, int64(under[k].bytes))
				under = append(under[:k], under[k+1:]...)
			}
			var want [nodes]int64
			for _, c := range under {
				want[c.node] += int64(c.bytes)
			}
			for i := range want {
				require.Equal(t, want[i], totals[i].Load(), "node %d", i)
			}
		}
		for s := range books {
			books[s].Settle()
		}
		for i := range totals {
			require.Zero(t, totals[i].Load())
		}
	}
}
