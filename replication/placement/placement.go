package placement

import (
	"cmp"
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

// Table is the nodes of each slot of one map.
type Table struct {
	k0, k1 uint64
	copies int
	owners []uint16 // copies of each slot, the first one first
}

// New computes the table of a map that is valid. A slot has as many nodes as the map says replicas, or all that are up:
// first the node with the lowest draw, then the one with the lowest of those that share the fewest domains with the
// nodes before it.
func New(m *clustermap.Map) *Table {
	t := empty(m)
	draws := make([]uint64, len(m.Nodes))
	for slot := range Slots {
		t.fill(m.Nodes, uint16(slot), draws)
	}
	return t
}

// empty is a table whose slots have no nodes yet.
func empty(m *clustermap.Map) *Table {
	t := &Table{k0: binary.LittleEndian.Uint64(m.Seed[:8]), k1: binary.LittleEndian.Uint64(m.Seed[8:])}
	up := 0
	for i := range m.Nodes {
		if m.Nodes[i].State == clustermap.Up {
			up++
		}
	}
	t.copies = min(max(m.Replicas, 1), up)
	t.owners = make([]uint16, Slots*t.copies)
	return t
}

// fill computes the nodes of one slot. draws is room for what each node draws.
func (t *Table) fill(nodes []clustermap.Node, slot uint16, draws []uint64) {
	mine := t.Nodes(slot)
	best, found := ^uint64(0), false
	for i := range nodes {
		if nodes[i].State != clustermap.Up {
			continue
		}
		d := drawOf(slot, &nodes[i])
		draws[i] = d
		if !found || d < best || d == best && nodes[i].ID < nodes[mine[0]].ID {
			best, mine[0], found = d, uint16(i), true
		}
	}
	for k := 1; k < len(mine); k++ {
		mine[k] = apart(nodes, draws, mine[:k])
	}
}

func drawOf(slot uint16, n *clustermap.Node) uint64 {
	return draw(slot, n.ID, uint64(n.Weight)*weightUnit)
}

// apart is the next node of a slot that has those of before.
func apart(nodes []clustermap.Node, draws []uint64, before []uint16) uint16 {
	best, fewest := -1, 0
	for i := range nodes {
		if nodes[i].State != clustermap.Up {
			continue
		}
		common, has := 0, false
		for _, b := range before {
			has = has || int(b) == i
			common = max(common, shared(nodes[i].Domain, nodes[b].Domain))
		}
		if has {
			continue
		}
		if best < 0 || cmp.Or(cmp.Compare(common, fewest), cmp.Compare(draws[i], draws[best]),
			cmp.Compare(nodes[i].ID, nodes[best].ID)) < 0 {
			best, fewest = i, common
		}
	}
	return uint16(best)
}

// shared is how many domains two nodes are both in, from the widest on.
func shared(a, b []string) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// Copies is how many nodes each slot has.
func (t *Table) Copies() int { return t.copies }

// Node is the index in the map's Nodes of the first node that has a slot.
func (t *Table) Node(slot uint16) int { return int(t.owners[int(slot)*t.copies]) }

// Nodes is the indices of all of a slot's nodes, the first one first. They are the table's.
func (t *Table) Nodes(slot uint16) []uint16 {
	at := int(slot) * t.copies
	return t.owners[at : at+t.copies : at+t.copies]
}

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
