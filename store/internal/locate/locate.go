package locate

import (
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/restore"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/segment"
)

// Locate finds blocks of chains and pins the groups they lie in.
func (l *Finder) Locate(asks []restore.Ask) []*restore.Located {
	n := 0
	for i := range asks {
		n += len(asks[i].Blocks)
	}
	out := make([]*restore.Located, 0, n)
	list := make([]sought, n)
	todo := make([]int, 0, n)
	for i := range asks {
		for _, b := range asks[i].Blocks {
			f := &list[len(out)]
			f.by = asks[i].Asked
			f.Block = f.by.Blocks.From + b
			f.FP = l.Names.Fingerprint(f.by.NS.Instance, f.by.Tag, f.by.Keys[f.Block])
			todo, out = append(todo, len(out)), append(out, &f.Located)
		}
	}
	locs := make([]layout.Location, 0, n)
	at := make([]int, 0, n)
	for range 8 {
		locs, at = locs[:0], at[:0]
		for _, k := range todo {
			if loc, ok := l.pinBlock(list[k].by, &list[k].Located); ok {
				locs = append(locs, loc)
				at = append(at, k)
			}
		}
		err := l.Rows.Records(locs, func(i int, rec *segment.Record) error {
			f := &list[at[i]]
			f.Err = l.describeFound(f.by, &f.Located, rec)
			return nil
		})
		if skep.KindOf(err) == skep.Failed {
			err = l.recordsFromLogs(list, at)
		}
		todo = todo[:0]
		for _, k := range at {
			f := &list[k]
			if f.Err == errUnread {
				// The cleaner moves a block's row before it moves the index: look again.
				f.Err = commit.ErrGone
				if err != nil {
					f.Err = err
				} else {
					todo = append(todo, k)
				}
			}
			if f.Err != nil {
				f.LetGo(l)
			}
		}
		if len(todo) == 0 {
			break
		}
		l.Rows.Await()
	}
	return out
}

// sought is a block of a chain that is looked for.
type sought struct {
	restore.Located
	by *restore.Asked
}

var (
	errNotStored = &skep.Error{Op: "restore", Kind: skep.NotFound}
	errUnread    = &skep.Error{Op: "restore", Kind: skep.Damaged, Field: "record"}
)

// pinBlock finds where f's block is. True: it is on devices, its group is pinned and
// its record is to be read; else f is complete: in memory, or a miss.
func (l *Finder) pinBlock(c *restore.Asked, f *restore.Located) (layout.Location, bool) {
	f.Err = nil
	for range 8 {
		e, ok := l.Index.Resolve(f.FP)
		if !ok || !e.Rooted {
			f.Err = errNotStored
			return layout.Location{}, false
		}
		f.Where = e.Location
		if h := l.Cache.Part(f.FP, c.Part); h != nil {
			if l.describeCached(c, f, h) {
				again, ok := l.Index.Resolve(f.FP)
				if !ok || again.Location != e.Location || !c.NS.Info.Chained && h.Where() != e.Location {
					f.Where = 0 // what is in memory may be the next one already, or still the one before
				}
				return layout.Location{}, false
			}
			h.Release()
		}
		if e.Location == 0 {
			continue // accepted: its commit has just moved it
		}
		loc := layout.Unpack(e.Location)
		if g := l.Space.Pin(loc.Group); g != nil {
			// It may have moved between the two: then the group may be anything by now.
			if again, ok := l.Index.Resolve(f.FP); ok && again.Location == e.Location {
				f.Stripe, f.At, f.Err = g, loc, errUnread
				return loc, true
			}
			l.Space.Unpin(g)
		}
	}
	f.Err = commit.ErrGone
	return layout.Location{}, false
}

// describeFound takes from a block's record what reading its part needs.
func (l *Finder) describeFound(c *restore.Asked, f *restore.Located, rec *segment.Record) error {
	if rec.Key != c.Keys[f.Block] || rec.Instance != c.NS.Instance || namespaces.Tag(rec.SaltTag) != c.Tag {
		return &skep.Error{Op: "restore", Kind: skep.Damaged, Field: "record", Value: "of another block"}
	}
	if !rec.PlacesFit() {
		return &skep.Error{Op: "restore", Kind: skep.Damaged, Field: "record", Value: "with places past a page"}
	}
	for i := range rec.Parts {
		p := &rec.Parts[i]
		if p.Name != c.Part {
			if p.Inline == nil {
				f.Offset += int64(layout.PagesOf(p.Size)) * layout.PageSize
			}
			continue
		}
		var err error
		if f.Sums, err = segio.SumsOf("restore", c.NS.Info.Shape, rec, i); err != nil {
			return err
		}
		f.Sums.Sums = slices.Clone(f.Sums.Sums)
		f.Size = p.Size
		f.Inline = append([]byte(nil), p.Inline...)
		f.Copies = append([]layout.Location(nil), rec.Copies...)
		f.Stored = int64(rec.Pages) * layout.PageSize
		if f.Packed = layout.Packed(int(rec.Pages), rec.Bytes()); f.Packed {
			f.Stored = rec.Bytes()
		}
		o, err := l.Keys.Opener(c.NS.Info.Tenant, rec, i)
		switch {
		case err != nil:
			return err
		case o != nil && p.Inline != nil: // at once, since several chunks may share it
			if err := o.OpenAll(f.Sums.Granules, f.Inline); err != nil {
				return err
			}
			f.Sums.Sums = o.Sums()
		default:
			f.Opener = o
		}
		return c.Fits(f.Size)
	}
	return skep.NoPart("restore", c.Part, partNames(rec))
}

// describeCached completes f from the DRAM tier. False: the part there is not of the
// size the chain can take.
func (l *Finder) describeCached(c *restore.Asked, f *restore.Located, h *memory.Handle) bool {
	f.Size = h.Len()
	if want := c.Size; want >= 0 && want != f.Size {
		return false
	}
	if err := c.Fits(f.Size); err != nil {
		f.Err = err
		h.Release()
		return true
	}
	f.Memory = h
	return true
}

// partNames are the names of a block's parts.
func partNames(rec *segment.Record) []string {
	names := make([]string, len(rec.Parts))
	for i := range rec.Parts {
		names[i] = rec.Parts[i].Name
	}
	return names
}
