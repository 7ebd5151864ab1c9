package index

import (
	"github.com/skepkv/skep"
)

// Lookup is how many leading keys of a chain can be restored, and the slot of the
// last of them. fp gives the fingerprint of key i, 0 ≤ i < n; it is asked for about
// log2(n) of them, under the index's lock, and must not call the index.
//
// The search halves the chain, which is right because the rooted blocks of a chain
// have no hole. A key whose block is stored at another depth is not found, so keys
// that are no chain find less, never something else's blocks.
func (x *Index) Lookup(n int, fp func(i int) Fingerprint) (depth int, deepest ID) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.lookupLocked(n, fp)
}

func (x *Index) lookupLocked(n int, fp func(i int) Fingerprint) (int, ID) {
	if n <= 0 || x.closed {
		return 0, 0
	}
	probes := 1
	found := x.rooted(fp(0), 0)
	depth := 0
	if found != 0 {
		depth = 1
		for absent := n + 1; depth+1 < absent; probes++ {
			mid := int(uint(depth+absent) >> 1)
			if id := x.rooted(fp(mid-1), mid-1); id != 0 {
				depth, found = mid, id
			} else {
				absent = mid
			}
		}
	}
	x.probes[min(probes, len(x.probes))-1].Add(1)
	return depth, ID(found)
}

// rooted is the slot of a block that can be restored as block i of its chain, or 0.
func (x *Index) rooted(fp Fingerprint, i int) uint32 {
	f := cut(&fp)
	id := x.find(&f)
	if id == 0 {
		return 0
	}
	if s := x.slots.at(id); !s.has(flagRooted) || s.depth() != uint32(i) {
		return 0
	}
	return id
}

// Probe finds one block by its fingerprint, if it can be restored: the lookup of opaque namespaces. It is no probe of
// the hash table.
func (x *Index) Probe(fp Fingerprint) (Entry, ID, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	id := x.live(&fp)
	if id == 0 || !x.slots.at(id).has(flagRooted) {
		return Entry{}, 0, false
	}
	e := x.entry(x.slots.at(id))
	e.FP = fp
	return e, ID(id), true
}

// ResolveChain appends to dst the entries of blocks i to j-1 of the chain that ends
// in deepest, in order, walking up from it. With fp every block on the way is checked
// to be key k's. NotFound is returned when a block of the chain was removed since the
// lookup, or is another's.
func (x *Index) ResolveChain(deepest ID, fp func(k int) Fingerprint, i, j int, dst []Entry) ([]Entry, error) {
	const op = "resolve chain"
	if i < 0 || j < i {
		return dst, skep.Invalidf(op, "blocks", [2]int{i, j}, "a range")
	}
	if i == j {
		return dst, nil
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	if !x.valid(deepest) || int(x.slots.at(uint32(deepest)).depth()) < j-1 {
		return dst, &skep.Error{Op: op, Kind: skep.NotFound, Field: "deepest block", Value: deepest}
	}
	from := len(dst)
	if n := j - i; cap(dst)-from >= n {
		dst = dst[:from+n]
	} else {
		dst = append(dst, make([]Entry, n)...)
	}
	id := uint32(deepest)
	for {
		s := x.slots.at(id)
		k := int(s.depth())
		if k < j {
			e := &dst[from+k-i]
			*e = x.entry(s)
			if fp != nil {
				if e.FP = fp(k); cut(&e.FP) != s.fp {
					return dst[:from], &skep.Error{Op: op, Kind: skep.NotFound, Field: "block of the chain", Value: k}
				}
			}
		}
		if k == i {
			return dst, nil
		}
		id = s.parent // a rooted block of depth > 0 has a live parent
	}
}

// valid says that id holds a block that can be restored.
func (x *Index) valid(id ID) bool {
	return !x.closed && id != 0 && uint32(id) <= x.top && x.slots.at(uint32(id)).has(flagRooted)
}

// touchPiece is how many slots Touch changes before it lets lookups in.
const touchPiece = 256

// TouchChain notes the use of the n blocks of a chain that end in deepest. In an
// exact order (lru) they are used first to last.
func (x *Index) TouchChain(deepest ID, n int) {
	ids := make([]ID, 0, min(max(n, 0), 4096))
	x.mu.RLock()
	if x.valid(deepest) {
		for id := uint32(deepest); id != 0 && len(ids) < n; id = x.slots.at(id).parent {
			ids = append(ids, ID(id))
		}
	}
	x.mu.RUnlock()
	for end := len(ids); end > 0; {
		from := max(0, end-touchPiece)
		x.mu.Lock()
		for k := end - 1; k >= from && !x.closed; k-- {
			x.touchLocked(uint32(ids[k]))
		}
		x.mu.Unlock()
		end = from
	}
}

// Touch notes the use of single blocks; absent ones are passed over.
func (x *Index) Touch(fps ...Fingerprint) {
	for len(fps) > 0 {
		n := min(len(fps), touchPiece)
		x.mu.Lock()
		for i := range fps[:n] {
			if id := x.live(&fps[i]); id != 0 {
				x.touchLocked(id)
			}
		}
		x.mu.Unlock()
		fps = fps[n:]
	}
}

func (x *Index) touchLocked(id uint32) {
	s := x.slots.at(id)
	if !s.has(flagLive) {
		return
	}
	now := uint32(x.Clock())
	if s.loc != 0 {
		x.group(groupOf(s.loc)).touch(s, now)
	}
	s.last = now
	s.flags |= flagTouched
	if s.uses() < maxUses {
		s.depthUses++
	}
	if x.order != nil {
		x.order.touch(ID(id))
	}
}
