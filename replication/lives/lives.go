// Package lives keeps what nodes call a namespace, each in one run of its Store.
package lives

import (
	"context"
	"sync/atomic"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire"
)

// Life is one run of a node's Store, as far as is known. In another one it may be another Store, with other numbers.
type Life struct {
	Server wire.ServerID // zero: the Store does not say
	Trips  uint32        // how often the node had been away
}

// Of is the life that a Store is in now. trips is how often its node was away.
func Of(ctx context.Context, st skep.Store, trips uint32) (l Life, err error) {
	l.Trips = trips
	if st, ok := skep.As[interface {
		ServerID(ctx context.Context) (wire.ServerID, error)
	}](st); ok {
		l.Server, err = st.ServerID(ctx)
	}
	return l, err
}

// Mark has calls made with the context reach the node in this life only.
func (l Life) Mark(ctx context.Context) context.Context {
	if l.Server == (wire.ServerID{}) {
		return ctx
	}
	return wire.WithServer(ctx, l.Server)
}

// Number is what a node calls a namespace.
type Number struct {
	ID skep.NamespaceID
	Of Life
}

// Numbers are what nodes call one namespace, by their places. Get may be called beside Set.
type Numbers struct {
	ids atomic.Pointer[[]atomic.Pointer[Number]]
}

// Get is what the node at a place said last; nil: it never did.
func (x *Numbers) Get(i int) *Number {
	if ids := x.ids.Load(); ids != nil && i < len(*ids) {
		return (*ids)[i].Load()
	}
	return nil
}

// Set notes what a node says. One caller at a time.
func (x *Numbers) Set(i int, v Number) {
	ids := x.ids.Load()
	if ids == nil || i >= len(*ids) {
		more := make([]atomic.Pointer[Number], i+1)
		for k := range more[:i] {
			if ids != nil && k < len(*ids) {
				more[k].Store((*ids)[k].Load())
			}
		}
		ids = &more
		defer x.ids.Store(ids)
	}
	if was := (*ids)[i].Load(); was == nil || *was != v {
		(*ids)[i].Store(&v)
	}
}

// Sure is what the node at a place calls the namespace, where it has not been away since it said so. Calls by it are
// for that life of the node (Life.Mark).
func (x *Numbers) Sure(i int, trips uint32) *Number {
	if v := x.Get(i); v != nil && v.Of.Trips == trips {
		return v
	}
	return nil
}
