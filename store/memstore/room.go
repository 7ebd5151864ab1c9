package memstore

import (
	"bytes"
	"container/list"
	"crypto/hmac"
	"crypto/sha256"
	"time"

	"github.com/skepkv/skep"
)

// roomID is a namespace under a salt. The tag is zero for the common room.
type roomID struct {
	space skep.NamespaceID
	tag   [sha256.Size]byte
}

func roomOf(sc skep.Scope) roomID {
	id := roomID{space: sc.Namespace}
	if sc.Salt != "" {
		m := hmac.New(sha256.New, []byte(sc.Salt))
		m.Write([]byte("skep room"))
		m.Sum(id.tag[:0])
	}
	return id
}

// stored is a key as a room holds it: mixed with the salt, which is not kept.
func stored(salt skep.Salt, k skep.Key) skep.Key {
	if salt == "" {
		return k
	}
	m := hmac.New(sha256.New, []byte(salt))
	m.Write(k[:])
	var out skep.Key
	m.Sum(out[:0])
	return out
}

func storedPtr(salt skep.Salt, k *skep.Key) *skep.Key {
	if k == nil {
		return nil
	}
	x := stored(salt, *k)
	return &x
}

// room holds the blocks of one namespace under one salt.
type room struct {
	id       roomID
	space    *namespace
	salted   bool
	blocks   map[skep.Key]*block
	children map[skep.Key]map[*block]struct{} // by the parent's key, which may not be stored
}

// block is one stored block. Identity and parts never change after it is stored.
type block struct {
	room   *room
	key    skep.Key  // stored form
	parent *skep.Key // stored form; nil at depth 0 and in unchained namespaces
	depth  int
	valid  int // tokens, 1 to B
	name   []byte
	parts  map[string][]byte
	bytes  int64

	rooted bool
	gone   bool          // not in its room any more
	elem   *list.Element // in Store.lru
	leases int
	holds  int // sessions that read it
	pinned time.Time
	side   []skep.SidecarPiece // what PutSide kept
}

// visible reports whether b may be found.
func (b *block) visible() bool { return b.rooted || !b.room.space.Chained }

// full reports whether b may have children that are found.
func (b *block) full() bool { return b.valid == b.room.space.Shape.BlockTokens }

// sameParts reports whether two blocks have the same parts with the same bytes.
func sameParts(a, b map[string][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for name, x := range a {
		y, ok := b[name]
		if !ok || !bytes.Equal(x, y) {
			return false
		}
	}
	return true
}

// add puts b into the room and shows what it roots. The room has no block of its key.
func (r *room) add(b *block) {
	r.blocks[b.key] = b
	if !r.space.Chained {
		return
	}
	if b.parent != nil {
		c := r.children[*b.parent]
		if c == nil {
			c = map[*block]struct{}{}
			r.children[*b.parent] = c
		}
		c[b] = struct{}{}
	}
	if b.parent == nil || r.roots(r.blocks[*b.parent], b) {
		r.spread(b, true)
	}
}

// remove takes b out and hides what it rooted.
func (r *room) remove(b *block) {
	delete(r.blocks, b.key)
	b.gone = true
	if !r.space.Chained {
		return
	}
	if b.parent != nil {
		delete(r.children[*b.parent], b)
		if len(r.children[*b.parent]) == 0 {
			delete(r.children, *b.parent)
		}
	}
	if b.rooted {
		r.spread(b, false)
	}
}

// roots reports whether a stored, rooted parent makes a child rooted.
func (r *room) roots(parent, child *block) bool {
	return parent != nil && parent.rooted && parent.full() && parent.depth+1 == child.depth
}

// spread sets rooted on b and on all descendants it decides for. A worklist and not
// recursion: chains may be millions deep.
func (r *room) spread(b *block, rooted bool) {
	b.rooted = rooted
	work := []*block{b}
	for len(work) > 0 {
		p := work[len(work)-1]
		work = work[:len(work)-1]
		for c := range r.children[p.key] {
			if c.rooted != rooted && (!rooted || r.roots(p, c)) {
				c.rooted = rooted
				work = append(work, c)
			}
		}
	}
}
