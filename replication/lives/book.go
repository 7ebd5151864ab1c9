package lives

import (
	"maps"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire"
)

// Book is a Store's own numbers of namespaces by what nodes call them, each in one run of its Store. Whoever has it
// guards it.
type Book struct {
	own  map[name]skep.NamespaceID
	left []name // of own, what nodes call nothing so any more; the oldest first
}

// rememberLeft is how many names that were left are remembered, for the events that tell of deletions.
const rememberLeft = 1 << 12

type name struct {
	node   int // its place
	server wire.ServerID
	id     skep.NamespaceID
}

// NewBook is a Book without numbers.
func NewBook() *Book { return &Book{own: map[name]skep.NamespaceID{}} }

// Get is the own number of what the node at a place calls so; 0: it is not known.
func (b *Book) Get(i int, v Number) skep.NamespaceID { return b.own[name{i, v.Of.Server, v.ID}] }

// Put notes what the node at a place calls a namespace, and called it before; was nil: nothing.
func (b *Book) Put(i int, was *Number, v Number, own skep.NamespaceID) {
	if was != nil && (was.ID != v.ID || was.Of.Server != v.Of.Server) {
		b.Leave(i, was)
	}
	b.own[name{i, v.Of.Server, v.ID}] = own
}

// Leave says that the node at a place calls nothing so any more; nil: it never did. It is known for a while yet.
func (b *Book) Leave(i int, v *Number) {
	if v == nil {
		return
	}
	b.left = append(b.left, name{i, v.Of.Server, v.ID})
	for len(b.left) > rememberLeft {
		delete(b.own, b.left[0])
		b.left = b.left[1:]
	}
}

// Unlearn forgets what the node at a place called namespaces in other lives than this one.
func (b *Book) Unlearn(i int, but Life) {
	maps.DeleteFunc(b.own, func(n name, _ skep.NamespaceID) bool { return n.node == i && n.server != but.Server })
}

// Len is how many numbers it has.
func (b *Book) Len() int { return len(b.own) }
