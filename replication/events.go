package replication

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/lives"
	"github.com/skepkv/skep/replication/merge"
)

// Events implements skep.Observer: those of all nodes, merged. Events of one node come in its order, those of several as
// they come here. A node that was away is a gap when it is back.
func (s many) Events(ctx context.Context, from skep.Cursor, snapshot bool) (skep.EventStream, error) {
	if err := s.begin(ctx, "events"); err != nil {
		return nil, err
	}
	return s.merge.Events(ctx, from, snapshot)
}

// newMerger makes what merges events, and keeps so many of them.
func (s *Store) newMerger(buffer int) *merge.Merger[source] {
	return merge.New(merge.Options[source]{Buffer: buffer, Epoch: s.epoch, Start: s.start, Ctx: s.ctx, Away: s.away, Log: s.log,
		Sources: func() (out []source) {
			for _, n := range s.now.Load().owner {
				out = append(out, source{s, n})
			}
			return out
		}})
}

// source is a node whose events are followed.
type source struct {
	s *Store
	n *node
}

func (x source) Name() string { return x.n.Node.Name }
func (x source) Gone() bool   { return x.n.gone.Load() }

func (x source) Events(ctx context.Context, from skep.Cursor, snapshot bool) (skep.EventStream, error) {
	return x.n.st.Events(ctx, from, snapshot)
}

func (x source) Life(ctx context.Context) (merge.Life, error) {
	of, err := x.n.life(ctx)
	return lived{x, of}, err
}

// lived is a source in one life of the node.
type lived struct {
	source
	of lives.Life
}

func (x lived) Only() { x.s.spaces.unlearn(x.n, x.of) }

func (x lived) Events(ctx context.Context, from skep.Cursor, snapshot bool) (skep.EventStream, error) {
	return x.n.st.Events(x.of.Mark(ctx), from, snapshot)
}

// Translate makes a node's event one of this Store: the namespace has another number here, and a block that begins a
// group is, on its node, the first of a chain.
func (x lived) Translate(ctx context.Context, e *skep.Event) {
	e.Namespace = x.s.spaces.of(ctx, x.n, x.of, e.Namespace)
	if e.Salted || e.Namespace == 0 {
		return
	}
	if was, ok := x.s.known.Get(skep.Scope{Namespace: e.Namespace}, e.Key); ok {
		if e.Depth = was.Depth; was.HasParent {
			parent := was.Parent
			e.Parent = &parent
		}
	}
}
