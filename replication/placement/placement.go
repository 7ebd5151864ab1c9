package placement

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"math/bits"

	"github.com/dchest/siphash"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
)

// Slots is how many slots there are.
const Slots = 1 << 16

// weightUnit is one of a map's weights as a draw is divided by it.
const weightUnit = 1 << 16

// Table is the node of each slot of one map.
type Table struct {
	k0, k1 uint64
	owner  []uint16
}

// New computes the table of a map that is valid.
func New(m *clustermap.Map) *Table {
	t := &Table{
		k0:    binary.LittleEndian.Uint64(m.Seed[:8]),
		k1:    binary.LittleEndian.Uint64(m.Seed[8:]),
		owner: make([]uint16, Slots),
	}
	for slot := range t.owner {
		best, found := ^uint64(0), false
		for i := range m.Nodes {
			if m.Nodes[i].State == clustermap.Out {
				continue
			}
			d := draw(uint16(slot), m.Nodes[i].ID, uint64(m.Nodes[i].Weight)*weightUnit)
			if !found || d < best || d == best && m.Nodes[i].ID < m.Nodes[t.owner[slot]].ID {
				best, t.owner[slot], found = d, uint16(i), true
			}
		}
	}
	return t
}

// Node is the index in the map's Nodes of the node that has a slot.
func (t *Table) Node(slot uint16) int { return int(t.owner[slot]) }

// Space is what slots are computed from besides a key: a namespace, by the tenant and name that all nodes know it by.
type Space uint64

// Space is the namespace of that tenant and name.
func (t *Table) Space(tenant, name string) Space {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(tenant)))
	b = append(append(b, tenant...), name...)
	return Space(siphash.Hash(t.k0, t.k1, b))
}

// Slot is where a group goes whose anchor has this stored key.
func (t *Table) Slot(s Space, anchor skep.Key) uint16 {
	var b [8 + skep.KeySize]byte
	binary.LittleEndian.PutUint64(b[:8], uint64(s))
	copy(b[8:], anchor[:])
	return uint16(siphash.Hash(t.k0, t.k1, b[:]) >> 48)
}

// Stored is a key mixed with its salt, as it is placed by: who sees where blocks are does not see whose they are.
func Stored(salt skep.Salt, k skep.Key) skep.Key {
	if salt == "" {
		return k
	}
	m := hmac.New(sha256.New, []byte(salt))
	m.Write(k[:])
	var out skep.Key
	m.Sum(out[:0])
	return out
}

// Anchor is the index of the first block of the group that block i of a chain is in, where groups have g blocks.
func Anchor(i, g int) int { return i - i%g }

// draw is what a node draws for a slot: the lowest has it. tuned is its weight in units of 2⁻¹⁶, 2¹⁶ or more.
func draw(slot uint16, id, tuned uint64) uint64 {
	hi, lo := bits.Mul64(nlog2(mix(uint64(slot)^id)), 1<<24)
	d, _ := bits.Div64(hi, lo, tuned) // hi is below 2⁷: nlog2 is at most 2⁴⁶
	return d
}

// mix is the finisher of SplitMix64: each bit of the result depends on each of x.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

const (
	fraction = 40   // bits after the point of nlog2
	steps    = 1024 // of the table of logarithms
)

// logs is log₂(1 + i/steps) in units of 2⁻⁴⁰, rounded down.
var logs = func() (t [steps + 1]uint64) {
	for i := range steps {
		// The square of a number in [1, 2) says the next binary digit of its logarithm.
		x := uint64(steps+i) << (63 - 10) // 1.63 fixed point
		for bit := fraction - 1; bit >= 0; bit-- {
			hi, lo := bits.Mul64(x, x) // 2.126
			if hi>>63 == 1 {
				t[i] |= 1 << bit
				x = hi
			} else {
				x = hi<<1 | lo>>63
			}
		}
	}
	t[steps] = 1 << fraction
	return t
}()

// nlog2 is −log₂(h / 2⁶⁴) in units of 2⁻⁴⁰, between two entries of the table by a straight line. 0 counts as 1.
func nlog2(h uint64) uint64 {
	if h == 0 {
		h = 1
	}
	n := bits.LeadingZeros64(h)
	m := h << n // 1.63 fixed point, in [1, 2)
	i := m >> (63 - 10) & (steps - 1)
	rest := m << 11 // of the way to the next entry, in units of 2⁻⁶⁴
	between, _ := bits.Mul64(logs[i+1]-logs[i], rest)
	return uint64(n+1)<<fraction - (logs[i] + between)
}
