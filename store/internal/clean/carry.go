package clean

import (
	"context"
	"errors"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/intents"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// Carrying on: when a group is cleaned, what its log says of blocks that are gone, of
// purges and of namespaces is written again elsewhere, for as long as it matters.

// carrier gathers what of a group's log is carried on.
type carrier struct {
	c      *Cleaner
	oldest uint64 // first sequence number any other group may hold
	seen   map[string]bool
	stones []segment.Tombstone
	others []*segment.LogWriter
	seals  []*segment.LogWriter // with nothing else in them
	over   []namespaces.SaltTag // tags that salts had, of which nothing is left
}

// outlived says whether a tombstone or purge made at seq has nothing left to cover: every
// group that was open then, or before, is gone. (By when it was made and not by what it
// covers: moved copies lie in newer groups than what they are copies of.)
func outlived(seq, oldest uint64) bool { return seq < oldest }

// carryOn writes again what g's log says and is still needed, and tombstones for the
// blocks of recs that are gone now and stood for older ones, and for those that an earlier
// cleaning of g dropped before it found no room. It returns when that is on the drives. What
// has no room there is rest: the caller has the catalog promise it with the commit that frees g,
// so that a store without a free group, as a crash in the midst of cleaning can leave it, gets one
// out of a group in which nothing lives.
func (c *Cleaner) carryOn(ctx context.Context, g *space.Group, recs []segment.Record, refs []index.Ref,
	stale bool) (rest []*segment.LogWriter, err error) {
	k := &carrier{c: c, oldest: c.Space.OldestBeside(g), seen: map[string]bool{}}
	if !outlived(c.Root.Last(), k.oldest) {
		k.stones = append(c.Rows.Heirless(g, recs, refs), g.Owed...)
		if stale && g.Unsure { // what an earlier process dropped of it is not known
			more, err := c.rowless(ctx, g, recs)
			if err != nil {
				return nil, err
			}
			k.stones = append(k.stones, more...)
		}
	}
	if g.Entries != 0 {
		defer c.Logs.Entering.Begin()()
		if err := c.scanLogs(ctx, g, k.visit); err != nil {
			return nil, err
		}
	}
	if err := c.forgetTags(k.over); err != nil {
		return nil, err
	}
	carried, most := int64(len(k.stones))*int64(space.TombstoneEntry), int64(g.PayloadPages())*layout.PageSize/carriedPart
	c.tidy = c.tidy || carried > most
	parts, err := intents.Tombstones(c.Space.SegmentBytes, k.stones)
	if err != nil {
		return nil, err
	}
	parts = slices.Concat(parts, k.others, k.seals)
	for i, w := range parts {
		if err := c.Appends.Entries(ctx, space.Kept, 0, w.Bytes()); catalog.NoRoom(err) {
			return parts[i:], nil
		} else if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// scanLogs visits what g's logs say. Where too many of them cannot be read and their drives are away, what they said
// is said again elsewhere, by what the catalog knows, and what is left of them is enough. Entries may come again. What
// visit ends with is no word of the logs.
func (c *Cleaner) scanLogs(ctx context.Context, g *space.Group, visit func(a *segment.Append, e segment.Entry) error) error {
	var own error
	err := c.Space.ScanGroupLogs(ctx, g, func(a *segment.Append, e segment.Entry) error {
		own = visit(a, e)
		return own
	})
	k := skep.KindOf(err)
	if err == nil || own != nil || ctx.Err() != nil || k != skep.DeviceFailed && k != skep.Deadline {
		return err
	}
	if more, e := c.Logs.Forgo(ctx, g); e != nil || !more {
		return errors.Join(err, e)
	}
	return c.Space.ScanGroupLogs(ctx, g, visit)
}

// rowless are tombstones for what older records in g's log stood in front of, whose rows
// were gone before this cleaning; recs had theirs.
func (c *Cleaner) rowless(ctx context.Context, g *space.Group, recs []segment.Record) (stones []segment.Tombstone,
	err error) {
	known := map[segment.RecordID]bool{}
	for i := range recs {
		r := &recs[i]
		known[segment.RecordID{Key: r.Key, SaltTag: r.SaltTag, Instance: r.Instance, Seq: r.Written()}] = true
	}
	list, err := c.Logs.Strays(ctx, g, c.scanLogs) // its own records go with it
	for _, t := range list {
		// What goes with the group needs none.
		if !t.Exact && !known[segment.RecordID{Key: t.Key, SaltTag: t.SaltTag, Instance: t.Instance, Seq: t.Covers}] {
			stones = append(stones, t)
		}
	}
	return stones, err
}

// visit takes one entry of the log that is cleaned.
func (k *carrier) visit(a *segment.Append, e segment.Entry) error {
	if e.Kind == segment.KindBlock || e.Kind == segment.KindMark || k.seen[string(e.Body)] {
		return nil
	}
	k.seen[string(e.Body)] = true
	n := k.c.Names
	switch e.Kind {
	case segment.KindTombstone:
		t, err := segment.DecodeTombstone(e.Body)
		if err != nil || outlived(max(t.Seq, t.Covers), k.oldest) || n.Dead(t.Instance, namespaces.Tag(t.SaltTag)) {
			return nil
		}
		if t.Seq == a.Seq {
			if ok, err := k.stands(&t); ok || err != nil {
				return err
			}
			t.Seq = k.c.Root.Next() // the record of its append that an exact one may be about goes with the group
		}
		k.stones = append(k.stones, t)
	case segment.KindPurge:
		p, err := segment.DecodePurge(e.Body)
		if err == nil && k.needsPurge(&p) {
			return lastOf(&k.others).Purge(&p)
		}
	case segment.KindNamespace:
		v, err := segment.DecodeNamespace(e.Body)
		if err != nil {
			return nil
		}
		ns := n.Of(v.Instance)
		// The last number given is said for ever, or a rebuild gave it again.
		last := uint32(v.Info.ID) == k.c.Root.Numbers().Namespace
		if v.Deleted && (last || !outlived(v.Seq, k.oldest)) || !v.Deleted && ns != nil && ns.Info.ID == v.Info.ID {
			return lastOf(&k.others).Namespace(&v)
		}
	case segment.KindSealing:
		if v, err := segment.DecodeSealing(e.Body); err == nil && n.Of(v.Instance) != nil {
			return lastOf(&k.seals).Sealing(&v)
		}
	}
	return nil
}

// stands says that a block is stored which a tombstone covers: the append that replaced it was never committed.
func (k *carrier) stands(t *segment.Tombstone) (bool, error) {
	fp := k.c.Names.Fingerprint(t.Instance, namespaces.Tag(t.SaltTag), t.Key)
	e, ok := k.c.Index.Resolve(fp)
	if !ok || e.Location == 0 {
		return false, nil
	}
	rec, err := k.c.Rows.RecordNow(k.c.Context, fp, e)
	if err == commit.ErrGone {
		return false, nil
	}
	return err == nil && rec.Written() <= t.Covers, err
}

// needsPurge: a salt's first tag says for ever which tag it has now; the others as long
// as there may be something they cover.
func (k *carrier) needsPurge(p *segment.Purge) bool {
	if !p.Salted {
		return !outlived(max(p.Seq, p.Covers), k.oldest)
	}
	if k.c.Names.Of(p.Instance) == nil {
		return false
	}
	t := namespaces.SaltTag{Instance: p.Instance, Tag: namespaces.Tag(p.SaltTag)}
	if p.Seq > 0 {
		return k.c.Names.EpochOf(t) <= p.Seq
	}
	if !outlived(max(p.Seq, p.Covers), k.oldest) {
		return true
	}
	k.over = append(k.over, t)
	return false
}

// forgetTags drops tags that a salt had: no group has a block of them any more, and no salt gets one again.
func (c *Cleaner) forgetTags(over []namespaces.SaltTag) error {
	if len(over) == 0 {
		return nil
	}
	b := c.Catalog.NewBatch()
	for _, t := range over {
		b.DeletePurge(catalog.Purge{Instance: t.Instance, Tag: t.Tag})
	}
	if err := c.Rows.Unsure(c.Catalog.Commit(c.Context, b, false)); err != nil {
		return err
	}
	for _, t := range over {
		c.Names.ForgetTag(t)
	}
	return nil
}

// carriedPart bounds what is carried on for the sake of old groups: once the tombstones of a
// cleaned group take more than one part in so many of one, the oldest group is written again.
const carriedPart = 64

// tidyOldest writes the oldest group again, dropping nothing: tombstones made before the one
// after it was opened have nothing left to cover then, and are not carried on any further.
// So a group that nobody ever cleans does not keep all that were made since.
func (c *Cleaner) tidyOldest() {
	if !c.tidy {
		return
	}
	c.tidy = false
	g := c.Space.SealOldest()
	if g == nil {
		return
	}
	switch err := c.cleanAsked(c.Context, g, true); {
	case err == nil:
		c.Tidied.Add(1)
	case c.Context.Err() == nil:
		c.Log.Debug("the oldest group is not written again yet: tombstones are carried on for its sake",
			"group", g.Num, "error", err)
	}
}

// lastOf is the append that entries are added to.
func lastOf(list *[]*segment.LogWriter) *segment.LogWriter {
	if n := len(*list); n == 0 || (*list)[n-1].Len() > segment.BodySize/2 {
		*list = append(*list, &segment.LogWriter{})
	}
	return (*list)[len(*list)-1]
}
