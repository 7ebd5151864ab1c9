// Package known is what a client of a cluster knows of where blocks are in their chains, from its own puts and lookups. A
// put names the parent of a block, and the block goes to the group that the parent is in.
package known

import (
	"hash/maphash"
	"slices"
	"sync"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/placement"
)

// Memory has the last of what was seen, in two halves of which the older is thrown away when the younger is full. It is
// safe for concurrent use.
type Memory struct {
	seed maphash.Seed

	mu         sync.Mutex
	young, old map[block]Place
	puts       map[block]*put // under way
	turn       uint64         // of the last of them
}

// most is how many blocks a half of the memory has: some 12 MiB the two.
const most = 1 << 15

type block struct {
	space skep.NamespaceID
	salt  uint64 // hash of it
	key   skep.Key
}

// Place is where a block is.
type Place struct {
	Depth     int
	Parent    skep.Key // where HasParent
	Anchor    skep.Key // of the chain that the block is in on its node
	Base      int      // depth of the anchor
	HasParent bool
}

// New is a Memory that knows nothing.
func New() *Memory {
	return &Memory{seed: maphash.MakeSeed(), young: map[block]Place{}, old: map[block]Place{}, puts: map[block]*put{}}
}

func (m *Memory) key(sc skep.Scope, k skep.Key) block {
	x := block{space: sc.Namespace, key: k}
	if sc.Salt != "" {
		x.salt = maphash.String(m.seed, string(sc.Salt)) | 1
	}
	return x
}

// Get is where a block is, as far as is known.
func (m *Memory) Get(sc skep.Scope, k skep.Key) (Place, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.getLocked(sc, k)
}

func (m *Memory) getLocked(sc skep.Scope, k skep.Key) (Place, bool) {
	x := m.key(sc, k)
	if e, ok := m.young[x]; ok {
		return e, true
	}
	e, ok := m.old[x]
	if ok {
		m.putLocked(x, e)
	}
	return e, ok
}

// Put notes where a block is.
func (m *Memory) Put(sc skep.Scope, k skep.Key, e Place) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.putLocked(m.key(sc, k), e)
}

func (m *Memory) putLocked(x block, e Place) {
	if len(m.young) >= most {
		m.young, m.old = make(map[block]Place, most), m.young
	}
	m.young[x] = e
}

// Where is the group of a block that is put, and of its node the place in it, where groups have so many blocks.
//
//	depth     0  1  2 … 15 │ 16 17 …      16 blocks a group
//	anchor    0  0  0 …  0 │ 16 16 …
//
// The group's first block is found by way of the parent, or is one of the ancestors that the caller names, before, the
// nearest last. Where neither says it, the block is loose: it begins a chain of its own within the group, by its own
// key, and a lookup that comes that far finds it there. What is decided is remembered at once.
func (m *Memory) Where(group int, sc skep.Scope, k skep.Key, depth int, parent *skep.Key, before []skep.Key) Place {
	e := Place{Depth: depth, Anchor: k, Base: depth}
	if parent != nil {
		e.Parent, e.HasParent = *parent, true
	}
	base := placement.Anchor(depth, group)
	if base == depth {
		return e
	}
	m.mu.Lock() // to the end: of two puts of a block one decides, and the other goes where that one does
	defer m.mu.Unlock()
	if was, ok := m.getLocked(sc, k); ok && was.Depth == depth {
		e.Anchor, e.Base = was.Anchor, was.Base // where it is, or was, and what follows it waits for it
	} else if up, ok := m.getLocked(sc, *parent); ok && up.Depth == depth-1 {
		e.Anchor, e.Base = up.Anchor, up.Base
	} else if base == depth-1 {
		e.Anchor, e.Base = *parent, base
	} else if back := depth - 1 - base; back <= len(before) {
		e.Anchor, e.Base = before[len(before)-back], base
	}
	m.putLocked(m.key(sc, k), e)
	return e
}

// Behind is what a block goes on with on its node, the parent first, back to where their chain begins there. Of what
// lies between these two it leaves out what is not known, nor among the blocks before the parent that a caller names,
// the nearest last. It is empty of a block that begins one.
func (m *Memory) Behind(sc skep.Scope, at Place, before []skep.Key) (keys []skep.Key) {
	if n := at.Depth - 1 - at.Base; n > 0 && n <= len(before) && before[len(before)-n] == at.Anchor {
		return append(slices.Clone(before[len(before)-n:]), at.Parent)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	first, ok := at, true
	for ok && at.Depth > first.Base+1 {
		keys = append(keys, at.Parent)
		up, known := m.getLocked(sc, at.Parent)
		ok = known && up.HasParent && up.Depth == at.Depth-1 && up.Anchor == first.Anchor
		at = up
	}
	if first.Depth > first.Base {
		keys = append(keys, first.Anchor)
	}
	return keys
}
