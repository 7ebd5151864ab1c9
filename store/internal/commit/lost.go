package commit

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// forget has the index forget a block that lies at l, whatever the catalog says, and deletes its row. then is called
// before others change rows, and told whether the block was there still.
func (r *Rows) forget(fp index.Fingerprint, l layout.Location, then func(gone bool)) {
	r.changes.Lock()
	defer r.changes.Unlock()
	_, gone := r.Index.Remove(fp, l.Pack())
	if gone {
		r.forgetCached(fp)
		r.deleteRow(l)
	}
	then(gone)
}

// Forget takes a block out of the store, at l in g, no copy of which is right, and says whether it was there still.
func (r *Rows) Forget(g *space.Group, fp index.Fingerprint, l layout.Location, rec *segment.Record) (gone bool) {
	r.forget(fp, l, func(was bool) {
		if gone = was; gone {
			r.Names.Unstored(rec.Instance, rec.Bytes())
			r.Space.Suspect(g)
		}
	})
	return gone
}

// ForgetDamaged is Forget of a block of so many bytes whose record is not at hand, and tells e of it.
func (r *Rows) ForgetDamaged(ns *namespaces.Namespace, t namespaces.Tag, fp index.Fingerprint, l layout.Location,
	bytes int64, e skep.Event) {
	r.forget(fp, l, func(gone bool) {
		if gone {
			r.suspect(l) // not before: who mends its log would find the row
			ns.Stored.Add(-bytes)
			e.Tier = skep.TierNone // told only now: whoever takes a snapshot before has the block, and this behind it
		}
		r.Tell(e, ns.Instance, t)
	})
}

// Lost forgets a block that who moves it found damaged, or could not read.
func (r *Rows) Lost(ns *namespaces.Namespace, in *Block, why skep.Kind) {
	var gone bool
	r.forget(in.FP, in.From, func(was bool) {
		if gone = was; gone {
			ns.Stored.Add(-in.Record.Bytes())
		}
	})
	if why == skep.Damaged {
		r.Count.Damaged.Add(1)
	} else if !gone { // deleted, or put again, meanwhile
		return
	}
	ev := r.Event(ns, &in.Record, skep.EventEvicted)
	if why == skep.Damaged {
		ev.Kind = skep.EventDamaged
	}
	if !gone {
		ev.Tier = skep.TierDevice
	}
	ev.Reason = why
	r.Tell(ev, in.Record.Instance, in.tag())
	if why == skep.DeviceFailed && in.Record.Flags&segment.RecordDurable == 0 { // the drive is reported, and how many blocks by who moves them
		r.log.Debug("block lost while cleaning", "reason", why, "key", in.Record.Key.Short(), "location", in.From.String())
		return
	}
	r.Bad.Error(r.log, "block lost while cleaning", "reason", why, "key", in.Record.Key.Short(),
		"location", in.From.String())
}
