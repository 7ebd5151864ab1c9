package lookup

import (
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/segment"
)

// What cannot be read is not promised.
//
// A block of one copy goes on to be in the index while a drive that has a piece of it is
// not there, since the drive may come back. Until then a lookup ends before it, as if it
// were not stored. While all drives can be read this costs a look at each of them.

// allReadable says whether what any drive holds can be read.
func (l *Finder) allReadable() bool {
	return !slices.ContainsFunc(l.Members.All(), func(d *space.Drive) bool {
		return !d.Removed.Load() &&
			d.Standing.Unreadable()
	})
}

// readablePrefix is how many of the first n keys of a lookup can be read now.
func (l *Finder) readablePrefix(ns *namespaces.Namespace, t namespaces.Tag, keys []skep.Key, n int) int {
	if l.allReadable() {
		return n
	}
	for i := range n {
		fp := l.Names.Fingerprint(ns.Instance, t, keys[i])
		if e, ok := l.Index.Resolve(fp); !ok || !l.readable(ns, fp, e) {
			return i
		}
	}
	return n
}

// unreadableCache says whether a block is of class Cache and cannot be read now: who has
// its bytes had better store them again, as after any other miss.
func (l *Finder) unreadableCache(ns *namespaces.Namespace, fp index.Fingerprint, e index.Entry) bool {
	return ns.Info.Class == skep.Cache && !l.allReadable() && !l.readable(ns, fp, e)
}

// GivesWay forgets such a block for one that is about to be put in its place.
func (l *Finder) GivesWay(ns *namespaces.Namespace, fp index.Fingerprint, e index.Entry) bool {
	if !l.unreadableCache(ns, fp, e) {
		return false
	}
	loc := layout.Unpack(e.Location)
	g := l.Space.Find(loc.Group)
	rec, err := l.Rows.Record(fp, e)
	if g == nil || err != nil {
		return false
	}
	l.Rows.Forget(g, fp, loc, &rec)
	return true
}

// readable says whether a block can be read now: from the DRAM tier, or from drives that
// have a copy of each of its pieces.
func (l *Finder) readable(ns *namespaces.Namespace, fp index.Fingerprint, e index.Entry) bool {
	loc := layout.Unpack(e.Location)
	if e.Location == 0 || loc.Device == space.InlineDevice {
		return true
	}
	g := l.Space.Find(loc.Group)
	if g == nil {
		return true // it has just been moved
	}
	bad := 0
	for _, d := range g.Drives {
		if d.Standing.Unreadable() {
			bad++
		}
	}
	switch {
	case bad == 0:
		return true
	case bad < ns.Info.Copies: // no two copies of a piece are on one drive
		return true
	}
	copies := []layout.Location{loc}
	if ns.Info.Copies > 1 || l.Cache != nil {
		rec, err := l.Rows.Record(fp, e)
		if err != nil {
			return true // it has just been moved, or its row cannot be read: who restores it is told
		}
		if l.Cache != nil && !slices.ContainsFunc(rec.Parts,
			func(p segment.RecordPart) bool { return !l.Cache.Has(memory.IDOf(fp, p.Name)) }) {
			return true
		}
		copies = rec.Copies
	}
	yes, _ := segio.UnitsOf(copies, layout.SlotBytes(uint64(e.Pages)),
		len(g.Drives)).Survive(func(i int) bool { return !g.Drives[i].Standing.Unreadable() })
	return yes
}
