package clean

import (
	"context"
	"errors"
	"fmt"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// victims is how many groups are looked at before cleaning is called fruitless.
const victims = 8

// ErrNoGain says that a group would have to be rewritten almost whole.
var ErrNoGain = errors.New("store: nothing to gain from this group")

// errFull is an ErrNoGain of a group that is full of durable blocks, errHeld of one that leased ones fill up: there is
// none either once the rest has gone.
var (
	errFull = fmt.Errorf("%w, whatever is dropped of it", ErrNoGain)
	errHeld = fmt.Errorf("%w, until leases end", ErrNoGain)
	full    = map[error]index.Futility{errFull: index.Full, errHeld: index.Held}
)

// Unread is the field of an error that says how many blocks of a group cannot be read, and stay.
const Unread = "blocks that cannot be read"

// gains are the parts of a group, one in so many, that its cleaning has to gain: first much,
// so that a group of blocks that must be kept is not written again and again for the sake of
// a page, while others hold what may go; then little, when that is all there is; and where that is
// nothing, and nothing is about to be there, what tenants' shares keep goes too: a share refuses no put.
var gains = []struct {
	part   int
	shares bool
}{{space.FirstGain, true}, {50, true}, {50, false}}

// One cleans one group. False: there is none whose cleaning makes room.
func (c *Cleaner) One(ctx context.Context) (ok bool, err error) {
	defer func() { c.gain = gains[0] }()
	for _, c.gain = range gains {
		if !c.gain.shares && c.Space.Await(c.SpaceTimeout/4) { // what others hold is only busy
			break
		}
		if ok, err = c.best(ctx); ok || err != nil || ctx.Err() != nil {
			break
		}
	}
	return ok, err
}

// best cleans the first of the groups worth least that gains enough.
func (c *Cleaner) best(ctx context.Context) (bool, error) {
	var tried []*space.Group
	defer func() {
		for _, g := range tried {
			c.Space.Release(g)
		}
	}()
	for range victims {
		g := c.victim()
		if g == nil {
			return false, nil
		}
		err := c.EmptyGroup(ctx, g)
		if err == nil {
			return true, nil
		}
		tried = append(tried, g) // so that it is not chosen again
		switch k := skep.KindOf(err); {
		case errors.Is(err, ErrNoGain):
			c.Index.Futile(g.Num, full[err])
		case catalog.NoRoom(err): // what is kept, and carried on, does not fit
		case (k == skep.DeviceFailed || k == skep.Deadline || k == skep.Damaged) && ctx.Err() == nil:
			c.Index.Futile(g.Num, index.NoGain)
			if c.mayTell() {
				c.Log.Error("group not cleaned: a drive of it fails, or the catalog does", "group", g.Num, "error", err)
			}
		default:
			return false, err
		}
	}
	return false, nil
}

// victim claims a sealed group nobody writes to: an empty one if there is one.
func (c *Cleaner) victim() *space.Group {
	for {
		num, ok := c.Index.Hollow(c.empty, c.Space.CanClaim)
		if !ok && !c.empty {
			var st index.GroupStat
			st, ok = c.Index.PickVictim(c.gives)
			num = st.Group
		}
		if !ok {
			return nil
		}
		if g := c.Space.Find(num); g != nil && c.Space.Claim(g, space.Claim{By: space.Cleaner}) {
			return g
		}
		// Who moves blocks, or mends logs, came between: it is not admitted now.
	}
}

// gives says whether a group can be claimed, and its cleaning gives what there is too little of.
func (c *Cleaner) gives(num uint32) bool {
	return c.Space.CanClaim(num) && (c.Space.Relieves(num) || c.Tight())
}

// EmptyGroup empties g, which is claimed, and hands it over to be freed. Damaged: a row of it cannot be read, and it
// stays.
func (c *Cleaner) EmptyGroup(ctx context.Context, g *space.Group) error {
	var recs []segment.Record
	var refs []index.Ref
	var locs []layout.Location
	err := c.Catalog.ScanGroup(ctx, g.Num, func(loc layout.Location, row []byte) error {
		var rec segment.Record
		if err := segment.DecodeRecord(row, &rec); err != nil {
			return catalog.DamagedRow(loc, err)
		}
		fp := c.Names.Fingerprint(rec.Instance, namespaces.Tag(rec.SaltTag), rec.Key)
		if c.Names.Dead(rec.Instance, namespaces.Tag(rec.SaltTag)) {
			if _, ok := c.Index.Remove(fp, loc.Pack()); ok {
				c.Names.Unstored(rec.Instance, rec.Bytes())
			}
		}
		recs = append(recs, rec)
		refs = append(refs, index.Ref{FP: fp, Location: loc.Pack()})
		locs = append(locs, loc)
		return nil
	})
	if err != nil {
		return err
	}
	verdicts := c.Index.Survivors(c.Clock(), g.PayloadSlots(), refs, nil)
	kept, must, durable, away, keepAll := 0, 0, 0, 0, g.Life.Claim().KeepAll
	for i, v := range verdicts {
		if v == index.Within {
			v = index.Drop
			if c.gain.shares {
				v = index.Keep
			}
			verdicts[i] = v
		}
		if keepAll && v == index.Drop && !c.Names.Dead(recs[i].Instance, namespaces.Tag(recs[i].SaltTag)) {
			verdicts[i], v = index.Keep, index.Keep
		}
		if v == index.Keep || v == index.Must {
			weight := space.Weight(int(recs[i].Pages), recs[i].Bytes(), len(recs[i].Copies), recs[i].Len())
			kept += weight
			if v == index.Must {
				must += weight
			}
			if recs[i].Flags&segment.RecordDurable != 0 {
				durable += weight
			}
			if (keepAll || recs[i].Flags&segment.RecordDurable != 0) && !g.Gives(&recs[i]) {
				away++
			}
		}
	}
	if away > 0 { // before anything is dropped, or takes room elsewhere: g is not freed for it
		return &skep.Error{Op: "clean group", Kind: skep.DeviceFailed, Field: Unread, Value: away}
	}
	leastGain := max(c.gain.part, gains[0].part)
	logs, room := 0, g.Room()
	if c.Exact {
		leastGain = min(leastGain, 10) // an exact order can always drop more instead (yield)
		logs = g.LogPages() * layout.SlotsPerPage
		if int64(room) < g.PayloadSlots() {
			room += logs
		}
	}
	noGain := func(kept int) bool { return (kept+logs)*leastGain >= room*(leastGain-1) }
	if !g.Life.Claim().Asked && len(recs) > 0 && noGain(kept) {
		if noGain(durable) {
			return errFull
		}
		if noGain(must) {
			return errHeld
		}
		return ErrNoGain
	}
	stale := g.Stale.Load()
	if err := c.Rows.Evict(g, recs, refs, verdicts); err != nil {
		return err
	}
	var keep []*appender.Block
	for i, v := range verdicts {
		if v == index.Keep || v == index.Must {
			keep = append(keep, appender.Again(refs[i].FP, &recs[i], locs[i]))
		}
	}
	var rest []*segment.LogWriter
	if err = c.Rewrite(ctx, g, keep); err == nil {
		rest, err = c.carryOn(ctx, g, recs, refs, stale)
	}
	if err != nil {
		g.Owed = append(g.Owed, c.Rows.Heirless(g, recs, refs)...) // their rows are gone: the next cleaning does not see them
		return err
	}
	b := c.Catalog.NewBatch()
	b.DeleteGroupBlocks(g.Num)
	state := c.Space.Row(g)
	state.State = catalog.GroupFree // its row goes when its headers say so
	b.PutGroup(&state)
	var promised []catalog.Intent
	for _, w := range rest {
		promised = append(promised, c.Logs.Intents.Put(b, w))
	}
	// Synced, since its headers are marked as freed next.
	if err := c.Catalog.Commit(ctx, b, true); err != nil {
		if len(rest) > 0 { // what they say is on no drive
			g.Owed = append(g.Owed, c.Rows.Heirless(g, recs, refs)...)
		}
		return err
	}
	c.promise(promised)
	c.Space.Empty(g)
	c.Index.FreeGroup(g.Num)
	if c.churn.cleaned(kept, int(g.PayloadSlots())) {
		c.yield()
	}
	if c.Exact && kept < int(g.PayloadSlots())/space.RegainPart {
		c.Space.RegainRoom(int(g.PayloadSlots()))
	}
	return nil
}
