package commit

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/segment"
)

// Salt replaces a salted block's key in an event by its stored form, in the instance of the namespace that the block
// is of: the namespace may have been purged or deleted since.
func (r *Rows) Salt(e *skep.Event, instance uint32, t namespaces.Tag) {
	if t == (namespaces.Tag{}) {
		return
	}
	e.Salted, e.Key = true, r.Names.Disguise(instance, t, e.Key)
	if e.Parent != nil {
		p := r.Names.Disguise(instance, t, *e.Parent)
		e.Parent = &p
	}
}

// Event is an event about a block.
func (r *Rows) Event(ns *namespaces.Namespace, rec *segment.Record, kind skep.EventKind) skep.Event {
	e := skep.Event{Kind: kind, Namespace: ns.Info.ID, Key: rec.Key, Depth: int(rec.Depth),
		Parent: rec.Parent, Tier: skep.TierDevice}
	switch kind {
	case skep.EventAccepted:
		e.Tier = skep.TierDRAM
	case skep.EventEvicted, skep.EventDeleted:
		e.Tier = skep.TierNone
	}
	r.Salt(&e, ns.Instance, namespaces.Tag(rec.SaltTag))
	return e
}

// Tell emits an event about a block, unless that was purged: a purge is told of as one, behind which nothing of the
// block is told. Its namespace may have another of the key by then.
func (r *Rows) Tell(e skep.Event, instance uint32, t namespaces.Tag) {
	r.Events.EmitIf(e, func() bool { return !r.Names.Dead(instance, t) })
}

// TellOf emits an event about the block of a record.
func (r *Rows) TellOf(ns *namespaces.Namespace, rec *segment.Record, kind skep.EventKind) {
	r.Tell(r.Event(ns, rec, kind), rec.Instance, namespaces.Tag(rec.SaltTag))
}

// tellDeleted tells of a deleted block of which only its key and depth are known.
func (r *Rows) tellDeleted(ns *namespaces.Namespace, t namespaces.Tag, key skep.Key, depth uint32) {
	e := skep.Event{Kind: skep.EventDeleted, Namespace: ns.Info.ID, Key: key, Depth: int(depth)}
	r.Salt(&e, ns.Instance, t)
	r.Tell(e, ns.Instance, t)
}
