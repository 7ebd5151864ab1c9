package replication

import (
	"hash/maphash"
	"sync"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/placement"
)

// memory is what this Store knows of where blocks are in their chains, from its own puts and lookups: a put names the
// parent of a block, and the block goes to the group that the parent is in. It keeps the last of what it saw, in two
// halves of which the older is thrown away when the younger is full.
type memory struct {
	seed maphash.Seed

	mu         sync.Mutex
	young, old map[knownKey]seen
}

// mostKnown is how many blocks a half of the memory has: some 12 MiB the two.
const mostKnown = 1 << 15

type knownKey struct {
	space skep.NamespaceID
	salt  uint64 // hash of it
	key   skep.Key
}

// seen is where a block is.
type seen struct {
	depth     int
	parent    skep.Key // where depth is not 0
	anchor    skep.Key // of the chain that the block is in on its node
	base      int      // depth of the anchor
	hasParent bool
}

func (m *memory) init() {
	m.seed = maphash.MakeSeed()
	m.young, m.old = map[knownKey]seen{}, map[knownKey]seen{}
}

func (m *memory) key(sc skep.Scope, k skep.Key) knownKey {
	x := knownKey{space: sc.Namespace, key: k}
	if sc.Salt != "" {
		x.salt = maphash.String(m.seed, string(sc.Salt)) | 1
	}
	return x
}

func (m *memory) get(sc skep.Scope, k skep.Key) (seen, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.getLocked(sc, k)
}

func (m *memory) getLocked(sc skep.Scope, k skep.Key) (seen, bool) {
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

func (m *memory) put(sc skep.Scope, k skep.Key, e seen) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.putLocked(m.key(sc, k), e)
}

func (m *memory) putLocked(x knownKey, e seen) {
	if len(m.young) >= mostKnown {
		m.young, m.old = make(map[knownKey]seen, mostKnown), m.young
	}
	m.young[x] = e
}

// where is the group of a block that is put, and of its node the place in it.
//
//	depth     0  1  2 … 15 │ 16 17 …      G = 16
//	anchor    0  0  0 …  0 │ 16 16 …
//
// The group's first block is found by way of the parent, or is one of the ancestors that the caller names. Where neither
// says it, the block is loose: it
// begins a chain of its own within the group, by its own key, and a lookup that comes that far finds it there. What is
// decided is remembered at once.
func (s many) where(sp *space, sc skep.Scope, k skep.Key, depth int, parent *skep.Key, before []skep.Key) seen {
	e := seen{depth: depth, anchor: k, base: depth}
	if parent != nil {
		e.parent, e.hasParent = *parent, true
	}
	if placement.Anchor(depth, sp.group) == depth {
		return e
	}
	m := &s.known
	m.mu.Lock() // to the end: of two puts of a block one decides, and the other goes where that one does
	defer m.mu.Unlock()
	if was, ok := m.getLocked(sc, k); ok && was.depth == depth {
		e.anchor, e.base = was.anchor, was.base // where it is, or was, and what follows it waits for it
	} else if up, ok := m.getLocked(sc, *parent); ok && up.depth == depth-1 {
		e.anchor, e.base = up.anchor, up.base
	} else if base := placement.Anchor(depth, sp.group); base == depth-1 {
		e.anchor, e.base = *parent, base
	} else if back := depth - 1 - base; back <= len(before) {
		e.anchor, e.base = before[len(before)-back], base
	}
	m.putLocked(m.key(sc, k), e)
	return e
}

// nodeOf is the node of a group.
func (s many) nodeOf(sp *space, salt skep.Salt, anchor skep.Key) *node {
	return s.owner[s.table.Node(s.table.Slot(sp.place, placement.Stored(salt, anchor)))]
}
