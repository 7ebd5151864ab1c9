package index

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/drawn"
)

func TestAdmit(t *testing.T) {
	t.Parallel()
	used, not := Leaving{Bytes: 10, Used: true}, Leaving{Bytes: 10}
	tail, lost := Leaving{Bytes: 10, Partial: true}, Leaving{Bytes: 10, ParentAway: true}
	const burst = 100.0
	for _, c := range []struct {
		name  string
		run   []Leaving
		level float64
		want  []Refusal
	}{
		{"without a budget everything is written", []Leaving{not, tail}, 2, []Refusal{Admitted, Admitted}},
		{"used while there is budget", []Leaving{used}, .01, []Refusal{Admitted}},
		{"used, and none", []Leaving{used}, 0, []Refusal{RefusedBudget}},
		{"not used, and budget to spare", []Leaving{not}, .6, []Refusal{Admitted}},
		{"not used, and little", []Leaving{not}, .5, []Refusal{RefusedUnused}},
		{"a use is one of the ancestors", []Leaving{not, not, used, not}, .4, []Refusal{Admitted, Admitted, Admitted, RefusedUnused}},
		{"after a refused block nothing could be found", []Leaving{not, not}, .1, []Refusal{RefusedUnused, RefusedParent}},
		{"nor behind a parent that is away", []Leaving{lost, used}, 2, []Refusal{RefusedParent, RefusedParent}},
		{"tails only when there is everything", []Leaving{not, tail}, .9, []Refusal{Admitted, RefusedTail}},
		{"a used tail is used", []Leaving{{Bytes: 10, Partial: true, Used: true}}, .1, []Refusal{Admitted}},
		{"each block takes its part of the budget", []Leaving{not, not, not}, .65, []Refusal{Admitted, Admitted, RefusedUnused}},
		{"used ones down to nothing", []Leaving{not, not, used}, .15, []Refusal{Admitted, Admitted, RefusedBudget}},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, Admit(c.run, c.level, burst, nil)) })
	}
}

// Whatever the run, what is written is a prefix of it, and every refusal has a reason.
func TestAdmitWritesPrefixes(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 2000 {
		run := make([]Leaving, 1+rng.IntN(20))
		for i := range run {
			run[i] = Leaving{Bytes: 1 + rng.Int64N(50), Used: rng.IntN(6) == 0, Partial: rng.IntN(10) == 0, ParentAway: rng.IntN(20) == 0}
		}
		got := Admit(run, 2*rng.Float64()-.5, 100, nil)
		require.Len(t, got, len(run))
		for i := 1; i < len(got); i++ {
			if got[i-1] != Admitted {
				require.Equal(t, RefusedParent, got[i])
			}
		}
	}
}

func TestWearBudget(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	b := NewWearBudget(86_400_000, 1, start, 500) // 1000 bytes a second
	require.Zero(t, b.Level(), "nothing is there at once")
	b.Update(start.Add(100*time.Second), 500)
	require.EqualValues(t, 100_000, b.Left())
	b.Promise(60_000)
	require.EqualValues(t, 40_000, b.Left())
	b.Done(60_000)
	b.Update(start.Add(100*time.Second), 500+70_000)
	require.EqualValues(t, 30_000, b.Left(), "the devices wrote more than was promised")
	b.Update(start.Add(time.Hour), 70_500)
	require.InDelta(t, 1, b.Level(), 1e-9, "no more than a quarter of an hour is saved up")
	require.EqualValues(t, 900_000, b.Left())
	b.Update(start.Add(time.Hour), 70_500+10_000_000)
	require.InDelta(t, -1, b.Level(), 1e-9, "nor more owed")
	b.Update(start.Add(time.Minute), 70_500+10_000_000)
	require.InDelta(t, -1, b.Level(), 1e-9, "a clock that goes back earns nothing")

	b.Allow(2 * 86_400_000) // another device
	b.Update(start.Add(time.Hour), b.written)
	before := b.Left()
	b.Update(start.Add(time.Hour-time.Second), b.written+10_000)
	b.Update(start.Add(time.Hour+time.Second), b.written)
	require.Equal(t, before-10_000+2000, b.Left())
	none := NewWearBudget(0, 1, start, 0)
	none.Update(start.Add(time.Second), 1e12)
	require.Greater(t, none.Level(), 1.0)
	require.True(t, math.IsInf(none.Burst(), 1))
}

func ghostly(n uint64) (fp Fingerprint) {
	n *= 0x9e3779b97f4a7c15
	binary.LittleEndian.PutUint64(fp[:8], n^n>>29)
	binary.LittleEndian.PutUint32(fp[8:], uint32(n*0xbf58476d1ce4e5b9^n>>13))
	return fp
}

func TestGhosts(t *testing.T) {
	t.Parallel()
	g, err := NewGhosts(1000)
	require.NoError(t, err)
	require.EqualValues(t, 1024*8, g.Bytes())
	require.False(t, g.Take(ghostly(1)))
	g.Add(ghostly(1))
	g.Add(ghostly(1))
	require.True(t, g.Take(ghostly(1)))
	require.False(t, g.Take(ghostly(1)), "taken once")
	for i := range uint64(5000) {
		g.Add(ghostly(i))
	}
	old, young := 0, 0
	for i := range uint64(1000) {
		if g.Take(ghostly(i)) {
			old++
		}
		if g.Take(ghostly(4500 + i/2)) {
			young++
		}
	}
	require.Zero(t, old, "the oldest went")
	require.Greater(t, young, 400, "of 500 most are remembered")
	_, err = NewGhosts(0)
	require.Error(t, err)
}

func TestWaiting(t *testing.T) {
	t.Parallel()
	w := NewWaiting()
	chain := func(from, n uint64, tail bool) {
		for i := range n {
			b := WaitingBlock{FP: ghostly(from + i), Bytes: 10, HasParent: i > 0, Partial: tail && i == n-1}
			if i > 0 {
				b.Parent = ghostly(from + i - 1)
			}
			w.Add(b)
		}
	}
	names := func(list []WaitingBlock) (out []uint64) {
		for _, b := range list {
			for n := range uint64(400) {
				if ghostly(n) == b.FP {
					out = append(out, n)
				}
			}
		}
		return out
	}
	chain(100, 4, true)
	chain(200, 3, false)
	chain(300, 2, true)
	require.EqualValues(t, 90, w.Bytes())

	require.True(t, w.Use(ghostly(201)))
	require.False(t, w.Use(ghostly(200)), "its child's use was one of it")
	require.False(t, w.Use(ghostly(7)))
	require.Equal(t, []uint64{200, 201}, names(w.Proven(10, 1000, nil)), "ancestors first")

	require.Equal(t, []uint64{103}, names(w.Next(10, true, nil)), "tails first, the oldest")
	require.Equal(t, []uint64{100, 101, 102}, names(w.Next(10, false, nil)), "then a run of a chain")
	w.Remove(ghostly(301))
	require.Equal(t, []uint64{202}, names(w.Next(10, true, nil)))
	chain(300, 2, false) // the same keys anew
	require.Equal(t, 2, w.Len())
	require.Equal(t, []uint64{300}, names(w.Next(1, true, nil)), "no more than asked for")
	require.Equal(t, []uint64{301}, names(w.Next(1, true, nil)))
	require.Empty(t, w.Next(1, true, nil))
	require.Zero(t, w.Bytes())
}

// No honest chain is a circle; one must not hang whoever uses it.
func TestWaitingInACircle(t *testing.T) {
	t.Parallel()
	w := NewWaiting()
	w.Add(WaitingBlock{FP: ghostly(1), Parent: ghostly(2), HasParent: true, Bytes: 10})
	w.Add(WaitingBlock{FP: ghostly(2), Parent: ghostly(1), HasParent: true, Bytes: 10})
	w.Add(WaitingBlock{FP: ghostly(3), Parent: ghostly(3), HasParent: true, Bytes: 10, Used: true})
	require.True(t, w.Use(ghostly(1)))
	require.False(t, w.Use(ghostly(2)))
	require.Len(t, w.Proven(10, 1000, nil), 3)
	require.Zero(t, w.Len())
}

// However long it runs, what has left is not remembered.
func TestWaitingForgets(t *testing.T) {
	t.Parallel()
	w := NewWaiting()
	for i := range uint64(10_000) {
		w.Add(WaitingBlock{FP: ghostly(i), Bytes: 1, Partial: true})
		if w.Len() > 10 {
			w.Next(1, false, nil)
		}
	}
	require.LessOrEqual(t, len(w.tails), 64)
}
