package rebuild

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/skepkv/skep/store/internal/locks"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/namespaces"
)

// What a rebuild knows of blocks: of every record some 60 bytes, found by the block's
// fingerprint.

// candidate is one record of a block.
type candidate struct {
	fp      index.Fingerprint
	seq     uint64
	loc     uint64 // packed; its row in the new catalog
	bytes   int64  // of payload
	version uint32
	ordinal uint32 // in its append: of two with one number the later counts
	scope   uint32 // scopes
	next    uint32 // candidates of the same block form a list; 0: the last
	durable bool
	heir    bool // its record says that older ones may lie in logs
	several bool // another of this block was found later
	again   bool // found a second time
	unread  bool // something of it was only on drives that are missing
}

// written is segment.Record.Written.
func (c *candidate) written() uint64 { return c.seq - uint64(uint32(c.seq)-c.version) }

// newer says whether c counts rather than o.
func (c *candidate) newer(o *candidate) bool {
	if w, v := c.written(), o.written(); w != v {
		return w > v
	}
	if c.seq != o.seq {
		return c.seq > o.seq
	}
	return c.ordinal > o.ordinal
}

// shard is some of the blocks, by fingerprint. Candidates are gathered first and
// linked afterwards, a shard at a time: all of one fits a processor's cache.
type shard struct {
	mu     locks.Mutex[locks.RebuildShard]
	chunks [][]candidate // candidate n is number n-1
	n      uint32
	table  []uint64 // open addressing: half a hash, candidate of the block found last; 0: free
	stones map[index.Fingerprint][]stone
	exact  map[exactID]bool
	looks  uint64 // at records and tombstones, to find what was said before; for tests
}

type stone struct{ seq, covers uint64 }

type exactID struct {
	fp  index.Fingerprint
	seq uint64
}

// candidateChunk is how many candidates are allocated at a time.
const candidateChunk = 512

func (sh *shard) at(n uint32) *candidate {
	return &sh.chunks[(n-1)/candidateChunk][(n-1)%candidateChunk]
}

// slot is where a block's first candidate is, or is to be, and half of its hash.
func (sh *shard) slot(fp *index.Fingerprint) (at *uint64, hash uint64) {
	hash = uint64(binary.LittleEndian.Uint32(fp[8:]))
	mask := uint64(len(sh.table) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		if e := sh.table[i]; e == 0 || e>>32 == hash && sh.at(uint32(e)).fp == *fp {
			return &sh.table[i], hash
		}
	}
}

// add enters a record.
func (sh *shard) add(c *candidate) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.n%candidateChunk == 0 {
		sh.chunks = append(sh.chunks, make([]candidate, candidateChunk))
	}
	sh.n++
	*sh.at(sh.n) = *c
}

// link finds the candidates that are of one block. What another copy of a log said
// already is left out.
func (sh *shard) link() {
	size := 16
	for size < 2*int(sh.n) {
		size *= 2
	}
	sh.table = make([]uint64, size)
	for n := uint32(1); n <= sh.n; n++ {
		c := sh.at(n)
		at, hash := sh.slot(&c.fp)
		if c.next = uint32(*at); c.next != 0 {
			sh.at(c.next).several = true
		}
		*at = hash<<32 | uint64(n)
	}
	var list []uint32
	for n := uint32(1); n <= sh.n; n++ {
		if c := sh.at(n); c.next == 0 && c.several && !c.again { // the one found first
			list = sh.once(c, list[:0])
		}
	}
}

// once leaves of a block's candidates one of each number, that found first. It gives the memory of list back, which it
// uses.
func (sh *shard) once(c *candidate, list []uint32) []uint32 {
	at, hash := sh.slot(&c.fp)
	for n := uint32(*at); n != 0; n = sh.at(n).next {
		list = append(list, n)
	}
	slices.SortFunc(list, func(m, n uint32) int {
		sh.looks++
		a, b := sh.at(m), sh.at(n)
		return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.ordinal, b.ordinal), cmp.Compare(m, n))
	})
	for i, n := range list[1:] {
		if c, o := sh.at(n), sh.at(list[i]); c.seq == o.seq && c.ordinal == o.ordinal {
			c.again = true
		}
	}
	slices.Sort(list)
	last := uint32(0)
	for _, n := range list {
		if c := sh.at(n); !c.again {
			c.next, last = last, n
		}
	}
	*at = hash<<32 | uint64(last)
	return list
}

// addStone enters a tombstone. What another copy of a log said is found at once while there are few of the block; else
// as their list grows, which costs each of them little. REQUIRES: sh.mu.
func (sh *shard) addStone(fp index.Fingerprint, s stone) {
	const few = 8
	list := sh.stones[fp]
	if n := len(list); n < few {
		sh.looks += uint64(n)
		if slices.Contains(list, s) {
			return
		}
	} else if n == cap(list) {
		slices.SortFunc(list, func(a, b stone) int {
			sh.looks++
			return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.covers, b.covers))
		})
		list = slices.Compact(list)
		list = slices.Grow(list, len(list))
	}
	sh.stones[fp] = append(list, s)
}

// each visits the candidates of every block, in the order in which blocks were found.
// REQUIRES: link.
func (sh *shard) each(visit func(list []*candidate) error) error {
	var list []*candidate
	for n := uint32(1); n <= sh.n; n++ {
		c := sh.at(n)
		if c.next != 0 || c.again {
			continue // seen with the one found first
		}
		list = append(list[:0], c)
		if c.several {
			list = list[:0]
			at, _ := sh.slot(&c.fp)
			for n := uint32(*at); n != 0; n = sh.at(n).next {
				list = append(list, sh.at(n))
			}
		}
		if err := visit(list); err != nil {
			return err
		}
	}
	return nil
}

// scope is whose a block is.
type scope struct {
	instance  uint32
	namespace uint32
	tag       namespaces.Tag
}

// scopes numbers scopes, from 1.
type scopes struct {
	mu   locks.Mutex[locks.RebuildScopes]
	ids  map[scope]uint32
	list []scope
}

func (s *scopes) id(sc scope) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.ids[sc]
	if !ok {
		s.list = append(s.list, sc)
		n = uint32(len(s.list))
		s.ids[sc] = n
	}
	return n
}

// What becomes of a scope's blocks.
const (
	scopeLives = iota
	scopePurged
	scopeUnnamed // the devices say nothing of its namespace
	scopeMayBeOld
)

// fates says what becomes of the blocks of every scope. REQUIRES: settleNames.
func (r *rebuilder) fates() []uint8 {
	out := make([]uint8, len(r.scopes.list)+1)
	for i, sc := range r.scopes.list {
		if !r.in.Names.Dead(sc.instance, sc.tag) {
			// What was put over is known by the newer record, which is on as many drives as
			// the namespace has copies.
			if ns := r.in.Names.Of(sc.instance); ns != nil && !ns.Info.Chained && r.rep.Missing > 0 &&
				ns.Info.Copies <= r.rep.Missing+r.in.GivenUp {
				out[i+1] = scopeMayBeOld
			}
			continue
		}
		out[i+1] = scopeUnnamed
		n, known := r.namespaces[skep.NamespaceID(sc.namespace)]
		_, purged := r.whole[sc.instance]
		if purged || r.in.Names.Of(sc.instance) != nil || known && sc.instance < n.Instance || sc.instance <= r.ended[skep.NamespaceID(sc.namespace)] {
			out[i+1] = scopePurged
		}
	}
	return out
}
