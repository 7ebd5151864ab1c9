package coact

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/skepkv/skep"
)

// Limits of a profile and what is built from it.
const (
	MaxEntries = 1 << 22
	MaxSteps   = 1 << 20
)

// Bits says which entries which steps activated: a matrix of entries × steps, a bit each.
type Bits struct {
	entries, steps, words int
	rows                  []uint64  // [entries][words]
	count                 []int32   // f_i
	inv                   []float64 // 1/√f_i, 0 where f_i is 0
}

// NewBits makes a matrix without a bit set. Invalid beyond MaxEntries or MaxSteps.
func NewBits(entries, steps int) (*Bits, error) {
	if entries < 1 || entries > MaxEntries {
		return nil, skep.Invalidf("co-activation", "entries", entries, fmt.Sprintf("1 to %d", MaxEntries))
	}
	if steps < 0 || steps > MaxSteps {
		return nil, skep.Invalidf("co-activation", "steps", steps, fmt.Sprintf("0 to %d", MaxSteps))
	}
	w := (steps + 63) / 64
	return &Bits{entries: entries, steps: steps, words: w, rows: make([]uint64, entries*w),
		count: make([]int32, entries), inv: make([]float64, entries)}, nil
}

// Entries is the number of entries.
func (b *Bits) Entries() int { return b.entries }

// Steps is the number of steps.
func (b *Bits) Steps() int { return b.steps }

// Count is f_e: how many steps activated e.
func (b *Bits) Count(e int) int { return int(b.count[e]) }

// Add says that step activated the entries. What lies outside the matrix is left out.
func (b *Bits) Add(step int, entries []uint32) {
	if step < 0 || step >= b.steps {
		return
	}
	for _, e := range entries {
		if int(e) >= b.entries {
			continue
		}
		w := &b.rows[int(e)*b.words+step/64]
		if m := uint64(1) << (step % 64); *w&m == 0 {
			*w |= m
			b.setCount(int(e), b.count[e]+1)
		}
	}
}

func (b *Bits) setCount(e int, n int32) {
	b.count[e], b.inv[e] = n, 0
	if n > 0 {
		b.inv[e] = 1 / math.Sqrt(float64(n))
	}
}

// Active reports whether step activated e.
func (b *Bits) Active(e, step int) bool {
	return b.rows[e*b.words+step/64]>>(step%64)&1 == 1
}

func (b *Bits) row(e int) []uint64 { return b.rows[e*b.words : (e+1)*b.words] }

// Both is f_ij: how many steps activated both.
func (b *Bits) Both(i, j int) int {
	x, y := b.row(i), b.row(j)
	n := 0
	for k, v := range x {
		n += bits.OnesCount64(v & y[k])
	}
	return n
}

// Without is a copy in which the entries for which drop is true are never activated:
// sinks, which are active in nearly every step, would else be the first medoids.
func (b *Bits) Without(drop func(entry int) bool) *Bits {
	c := *b
	c.rows, c.count, c.inv = append([]uint64(nil), b.rows...), append([]int32(nil), b.count...), append([]float64(nil), b.inv...)
	for e := range b.entries {
		if drop(e) {
			clear(c.row(e))
			c.setCount(e, 0)
		}
	}
	return &c
}

// Resize is the matrix with another number of entries: those beyond b's were never activated. It may be b itself.
func (b *Bits) Resize(entries int) (*Bits, error) {
	if entries == b.entries {
		return b, nil
	}
	c, err := NewBits(entries, b.steps)
	if err != nil {
		return nil, err
	}
	copy(c.rows, b.rows)
	copy(c.count, b.count)
	copy(c.inv, b.inv)
	return c, nil
}

// Sinks are the entries active in more than half of the steps.
func (b *Bits) Sinks() []uint32 {
	var s []uint32
	for e, n := range b.count {
		if 2*int(n) > b.steps {
			s = append(s, uint32(e))
		}
	}
	return s
}

// each calls f for the steps of a row, in order.
func each(row []uint64, f func(step int)) {
	for k, v := range row {
		for ; v != 0; v &= v - 1 {
			f(k*64 + bits.TrailingZeros64(v))
		}
	}
}

// Activated lists what step activated, in order.
func (b *Bits) Activated(step int) []uint32 {
	var out []uint32
	for e := range b.entries {
		if b.Active(e, step) {
			out = append(out, uint32(e))
		}
	}
	return out
}
