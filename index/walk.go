package index

// Count is how many blocks of a tenant a namespace instance has.
func (x *Index) Count(namespace uint32, tenant uint16) int64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	i, ok := x.owners.by[ownerKey{namespace, tenant}]
	if !ok {
		return 0
	}
	return int64(x.owners.at(i).blocks)
}

// Walk gives the blocks of a namespace instance among the slots from from on: at most n of them, and at most look slots are
// looked at. next is where to go on, 0 at the end. A block keeps its slot as long as it is stored, also when it is moved
// or replaced, so that who goes on until the end meets each that was there all along.
func (x *Index) Walk(namespace uint32, tenant uint16, from ID, n, look int) (found []Entry, next ID) {
	const piece = 4096 // slots a time under the lock
	for id := uint32(max(from, 1)); ; {
		x.mu.RLock()
		owner, ok := x.owners.by[ownerKey{namespace, tenant}]
		top := x.top
		if !ok || x.closed {
			x.mu.RUnlock()
			return found, 0
		}
		for end := id + uint32(min(piece, look)); id < end && id <= top && len(found) < n; id++ {
			look--
			if s := x.slots.at(id); s.has(flagLive) && s.owner == owner {
				found = append(found, x.entry(s))
			}
		}
		x.mu.RUnlock()
		switch {
		case id > top:
			return found, 0
		case len(found) == n || look <= 0:
			return found, ID(id)
		}
	}
}

// Above is the block that is so many before one in its chain, where all between are stored.
func (x *Index) Above(fp Fingerprint, up int) (Entry, bool) {
	for {
		e, ok := x.Resolve(fp)
		if !ok || up == 0 {
			return e, ok
		}
		if !e.HasParent {
			return Entry{}, false
		}
		fp, up = e.Parent, up-1
	}
}
