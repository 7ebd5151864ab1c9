package store

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// cleaner makes free groups: it takes the sealed group whose content is worth least,
// writes what is worth keeping to another, drops the rest, and frees it. Cleaning is
// eviction: nothing else drops committed blocks for space.
type cleaner struct {
	s       *Store
	wake    <-chan struct{}
	excused int // rounds in a row, see anew; the cleaner's goroutine only
	buf     []byte
	told    time.Time // when a failure was logged last
	// loan is groups that a compaction under way uses and is about to give back: nothing
	// is dropped to make up for them, only groups are cleaned that hold nothing.
	loan  atomic.Int32
	empty bool // see needed; the cleaner's goroutine only
	asked struct {
		mu   locks.Mutex[locks.Cleaner]
		list []*cleaning // to be cleaned, needed or not
	}
	gain int // see gains
	// promised says that the catalog promises what the log of a freed group said; the cleaner's
	// goroutine only.
	promised bool
	churn    churn
	tidy     bool         // the oldest group keeps too many tombstones: carry.go
	tidied   atomic.Int64 // groups that were written again for that
}

func (c *cleaner) start(s *Store) {
	c.s = s
	c.wake = s.space.Woken()
	s.background.Go(c.run)
}

func (c *cleaner) run() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var noted time.Time
	for {
		select {
		case <-c.s.closing:
			c.end()
			return
		case <-c.wake:
		case <-tick.C:
			now := c.s.now()
			c.s.index.Tick(now)
			c.s.leases.Expire(now)
			c.s.pins.Expire(now)
			if c.s.rows.Failed() == nil {
				noted = c.s.noteTime(noted)
				c.s.retryIntents()
				c.s.reconcileStale(c.s.ctx)
				if err := c.s.sidecars.Sweep(c.s.ctx); err != nil {
					c.s.log.Warn("side rows of blocks that are gone are still there", "error", err)
				}
			}
		}
		if c.s.rows.Failed() == nil { // a failed store frees nothing
			c.s.space.Unopen()
		}
		c.s.space.Regain()
		if c.s.rows.Failed() == nil {
			c.keepPromises()
			c.answer()
			c.tidyOldest()
		}
		for c.goesOn() {
			was := c.s.space.Stirred()
			ok, err := c.one(c.s.ctx)
			if err != nil && c.s.ctx.Err() == nil && time.Since(c.told) > time.Minute {
				c.told = time.Now()
				c.s.log.Error("cleaning failed", "error", err)
			}
			c.s.space.Regain()
			c.keepPromises()
			if !ok {
				empty := c.empty // only groups that hold nothing were looked for
				if !empty && c.yield() || err == nil && c.anew(was) {
					continue
				}
				if !empty && c.needed() && !c.empty && !c.s.space.Soon() {
					c.s.space.Fruitlessly()
				}
				break
			}
			c.excused = 0
		}
	}
}

// needed says whether puts may soon find no group to open, and notes whether that is only
// because of what is on loan.
func (c *cleaner) needed() bool {
	free := c.s.space.FreeSoon()
	needed := free+int(c.loan.Load()) <= c.s.space.KeptFree || c.s.indexTight()
	c.empty = !needed && free <= c.s.space.KeptFree
	return needed || c.empty
}

// victims is how many groups are looked at before cleaning is called fruitless.
const victims = 8

// errNoGain says that a group would have to be rewritten almost whole.
var errNoGain = errors.New("store: nothing to gain from this group")

// gains are the parts of a group, one in so many, that its cleaning has to gain: first much,
// so that a group of blocks that must be kept is not written again and again for the sake of
// a page, while others hold what may go; then little, when that is all there is.
var gains = []int{space.FirstGain, 50}

// one cleans one group. False: there is none whose cleaning makes room.
func (c *cleaner) one(ctx context.Context) (ok bool, err error) {
	for _, c.gain = range gains {
		if ok, err = c.best(ctx); ok || err != nil || ctx.Err() != nil {
			break
		}
	}
	return ok, err
}

// best cleans the first of the groups worth least that gains enough.
func (c *cleaner) best(ctx context.Context) (bool, error) {
	var tried []*space.Group
	defer func() {
		for _, g := range tried {
			c.s.space.Release(g)
		}
	}()
	for range victims {
		g := c.victim()
		if g == nil {
			return false, nil
		}
		err := c.clean(ctx, g)
		if err == nil {
			return true, nil
		}
		tried = append(tried, g) // so that it is not chosen again
		switch k := skep.KindOf(err); {
		case err == errNoGain || k == skep.Full: // what is kept, and carried on, does not fit
		case (k == skep.DeviceFailed || k == skep.Deadline) && ctx.Err() == nil:
			c.s.log.Error("group not cleaned: a drive of it fails", "group", g.Num, "error", err)
		default:
			return false, err
		}
	}
	return false, nil
}

// victim claims a sealed group nobody writes to: an empty one if there is one.
func (c *cleaner) victim() *space.Group {
	s := c.s
	for {
		num, ok := s.index.Hollow(s.space.CanClaim)
		if !ok && !c.empty {
			var st index.GroupStat
			st, ok = s.index.PickVictim(s.space.CanClaim)
			num = st.Group
		}
		if !ok {
			return nil
		}
		if g := s.space.Find(num); g != nil && s.space.Claim(g, space.Claim{By: space.Cleaner}) {
			return g
		}
		// Who moves blocks, or mends logs, came between: it is not admitted now.
	}
}

// clean empties g and hands it over to be freed.
func (c *cleaner) clean(ctx context.Context, g *space.Group) error {
	s := c.s
	var recs []segment.Record
	var refs []index.Ref
	var locs []layout.Location
	err := s.catalog.ScanGroup(ctx, g.Num, func(loc layout.Location, row []byte) error {
		var rec segment.Record
		if err := segment.DecodeRecord(row, &rec); err != nil {
			s.log.Error("damaged row in the catalog", "location", loc, "error", err)
			return nil
		}
		fp := s.names.Fingerprint(rec.Instance, namespaces.Tag(rec.SaltTag), rec.Key)
		if s.names.Dead(rec.Instance, namespaces.Tag(rec.SaltTag)) {
			if _, ok := s.index.Remove(fp, loc.Pack()); ok {
				s.names.Unstored(rec.Instance, rec.Bytes())
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
	verdicts := s.index.Survivors(s.now(), g.PayloadSlots(), refs, nil)
	kept := 0
	for i, v := range verdicts {
		if g.Life.Claim().KeepAll && v == index.Drop && !s.names.Dead(recs[i].Instance, namespaces.Tag(recs[i].SaltTag)) {
			verdicts[i], v = index.Keep, index.Keep
		}
		if v == index.Keep || v == index.Must {
			kept += space.Weight(int(recs[i].Pages), recs[i].Bytes(), len(recs[i].Copies), recs[i].Len())
		}
	}
	leastGain := max(c.gain, gains[0])
	written, room := kept, g.Room()
	if s.options.Policy != "cost" {
		leastGain = min(leastGain, 10) // an exact order can always drop more instead (yield)
		logs := g.LogPages() * layout.SlotsPerPage
		written += logs
		if int64(room) < g.PayloadSlots() {
			room += logs
		}
	}
	if !g.Life.Claim().Asked && len(recs) > 0 && written*leastGain >= room*(leastGain-1) {
		return errNoGain
	}
	stale := g.Stale.Load()
	if err := s.rows.Evict(g, recs, refs, verdicts); err != nil {
		return err
	}
	var keep []*appender.Block
	for i, v := range verdicts {
		if v == index.Keep || v == index.Must {
			keep = append(keep, appender.Again(refs[i].FP, &recs[i], locs[i]))
		}
	}
	var rest []*segment.LogWriter
	if err = c.rewrite(ctx, g, keep); err == nil {
		rest, err = c.carryOn(ctx, g, recs, refs, stale)
	}
	if err != nil {
		g.Owed = append(g.Owed, s.rows.Heirless(g, recs, refs)...) // their rows are gone: the next cleaning does not see them
		return err
	}
	b := s.catalog.NewBatch()
	b.DeleteGroupBlocks(g.Num)
	state := s.space.Row(g)
	state.State = catalog.GroupFree // its row goes when its headers say so
	b.PutGroup(&state)
	var promised []catalog.Intent
	for _, w := range rest {
		promised = append(promised, s.intents.Put(b, w))
	}
	// Synced, since its headers are marked as freed next.
	if err := s.catalog.Commit(ctx, b, true); err != nil {
		if len(rest) > 0 { // what they say is on no drive
			g.Owed = append(g.Owed, s.rows.Heirless(g, recs, refs)...)
		}
		return err
	}
	c.promise(promised)
	s.space.Empty(g)
	s.index.FreeGroup(g.Num)
	if c.churn.cleaned(kept, int(g.PayloadSlots())) {
		c.yield()
	}
	if s.options.Policy != "cost" && kept < int(g.PayloadSlots())/space.RegainPart {
		s.space.RegainRoom(int(g.PayloadSlots()))
	}
	return nil
}

// rewrite copies blocks of g to the open group of kept blocks, in the order they are
// given, which is the order they lie in: chains stay together.
func (c *cleaner) rewrite(ctx context.Context, g *space.Group, keep []*appender.Block) error {
	for len(keep) > 0 {
		n, bytes := 0, int64(0)
		for n < len(keep) && n < appender.MaxBlocks && (n == 0 || bytes+int64(keep[n].Pages)*layout.PageSize <= appender.MaxBytes) {
			bytes += int64(keep[n].Pages) * layout.PageSize
			n++
		}
		if err := c.rewriteBatch(ctx, g, keep[:n], bytes); err != nil {
			return err
		}
		keep = keep[n:]
	}
	return nil
}

func (c *cleaner) rewriteBatch(ctx context.Context, g *space.Group, batch []*appender.Block, bytes int64) error {
	s := c.s
	if int64(len(c.buf)) < bytes {
		c.buf = device.AlignedBuffer(int(max(bytes, min(appender.MaxBytes, int64(g.PayloadPages())*layout.PageSize))))
	}
	buf := c.buf
	good := batch[:0:0]
	for _, in := range batch {
		n := int64(in.Pages) * layout.PageSize
		mem := buf[:n:n]
		buf = buf[n:]
		ns := s.names.Of(in.Record.Instance)
		if ns == nil {
			continue // purged meanwhile
		}
		got, err := s.space.ReadVerified(ctx, g, ns.Info.Shape, &in.Record, mem)
		if segio.Lent(mem, got, err) {
			c.buf = nil
		}
		if err != nil {
			switch k := skep.KindOf(err); {
			case k == skep.Deadline:
				return err
			case k == skep.DeviceFailed && in.Durable():
				return err // it stays where it is: the drive may come back
			default:
				s.rows.Lost(ns, &in.Block, k)
			}
			continue
		}
		in.Size = in.Record.Bytes()
		in.Record.Flags |= segment.RecordMoved
		in.SetParts(got)
		good = append(good, in)
	}
	// An append is of one namespace, and small blocks share pages within one.
	slices.SortStableFunc(good, func(a, b *appender.Block) int { return cmp.Compare(a.Record.Instance, b.Record.Instance) })
	for len(good) > 0 {
		ns := s.names.Of(good[0].Record.Instance)
		if ns == nil {
			good = good[1:]
			continue
		}
		n := 1
		for n < len(good) && good[n].Record.Instance == good[0].Record.Instance {
			n++
		}
		a, n, err := c.place(ctx, ns, good[:n])
		if err != nil {
			return err
		}
		if _, err := s.appends.Moved(ctx, a); err != nil {
			c.buf = nil
			return err
		}
		good = good[n:]
	}
	return nil
}
