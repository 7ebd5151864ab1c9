package rebuild

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"

	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/report"
	"github.com/skepkv/skep/store/segment"
)

// Reading the logs: the groups in the order of their numbers, a few at a time, the logs of
// a group side by side. What is gone is not known before all logs were read, so every record
// gets its row, once, and settle takes back those that do not count.

const (
	logReaders   = 4 // logs of a device read at once
	groupsAtOnce = 4
)

// logJob is one log to be read.
type logJob struct {
	g        *foundGroup
	position int
}

// logReader is what one goroutine reads logs with.
type logReader struct {
	buf   []byte
	rows  rowSet
	limit int // bytes of rows before they are written
	scope scope
	id    uint32 // of scope
	rec   segment.Record
}

// readableWithout says whether a block can be read without the drives that are missing.
func (r *rebuilder) readableWithout(g *foundGroup, rec *segment.Record) bool {
	if len(rec.Copies) == 0 {
		return true
	}
	readable, _ := segio.RecordUnits(rec, len(g.state.Devices)).Survive(func(i int) bool { return !r.driveOf(g, i).Absent })
	return readable
}

// readLogs reads the logs of all groups and gives the new catalog a row for every record.
func (r *rebuilder) readLogs(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	groups := make([]*foundGroup, 0, len(r.groups))
	queues := make([]chan logJob, len(r.drives))
	total := 0
	for _, g := range r.groups {
		groups = append(groups, g)
		n := 0
		for i := range g.state.Devices {
			if !r.driveOf(g, i).Absent {
				n++
			}
		}
		g.logs.Store(int32(n))
		total += n
	}
	slices.SortFunc(groups, func(a, b *foundGroup) int { return cmp.Compare(a.state.Group, b.state.Group) })
	for i := range queues {
		queues[i] = make(chan logJob, groupsAtOnce)
	}
	var done int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, q := range queues {
		for range logReaders {
			wg.Go(func() {
				l := &logReader{buf: segio.LogBuffer()}
				for j := range q {
					if ctx.Err() != nil {
						continue
					}
					if err := r.readLog(ctx, l, j); err != nil {
						cancel(err)
						continue
					}
					mu.Lock()
					done++
					n := done
					mu.Unlock()
					if n%64 == 0 || n == total {
						r.progress(report.RebuildProgress{Stage: "logs", Done: n, Of: total, Records: r.records.Load()})
					}
				}
			})
		}
	}
	for i, g := range groups {
		if !r.rows.await(ctx, i) {
			break
		}
		g.order = i
		for k, m := range g.state.Devices {
			if !r.drives[m.Device].Absent {
				queues[m.Device] <- logJob{g, k}
			}
		}
	}
	for _, q := range queues {
		close(q)
	}
	wg.Wait()
	if ctx.Err() != nil {
		return segio.Ended(ctx, "rebuild")
	}
	return r.rows.finish(ctx)
}

// readLog takes in one segment's log. A device that fails is told, and what only stood
// there is lost; damage likewise.
func (r *rebuilder) readLog(ctx context.Context, l *logReader, j logJob) error {
	g := j.g
	d, seg := r.driveOf(g, j.position), g.state.Devices[j.position].Segment
	l.limit = r.rows.memory / 2 / groupsAtOnce / len(g.state.Devices)
	var inner error
	end, err := segio.ScanLog(ctx, r.logOf(g, j.position), l.buf, r.in.Timeout, func(a *segment.Append) error {
		if r.take(g, a, l); l.rows.bytes > l.limit {
			inner = r.rows.spill(ctx, int(g.spills.Add(1)), &l.rows)
		}
		return inner
	})
	used := int64(end.Pages) * layout.PageSize
	r.logBytes.Add(used)
	r.needed(d, d.offset(seg+1)-used, used)
	switch {
	case inner != nil:
		return inner
	case err != nil:
		return err
	case end.Err != nil:
		r.fault(report.Fault{Device: d.Path, Group: int(g.state.Group), Segment: int(seg), What: "log", Torn: true, Problem: strconv.Itoa(end.Damaged) + " pages damaged or not finished: " + end.Err.Error(),
			Do: "nothing, where a crash cut the last append off; else blocks whose only record stood there are lost"})
	}
	r.rows.hold(&l.rows)
	l.rows.sort()
	g.mu.Lock()
	g.rows.joinSorted(&l.rows)
	g.mu.Unlock()
	if g.logs.Add(-1) > 0 {
		return nil
	}
	return r.rows.done(ctx, g.order, &g.rows)
}

// take takes in one append.
func (r *rebuilder) take(g *foundGroup, a *segment.Append, l *logReader) {
	top := a.Seq
	ordinal := uint32(0)
	for e := range a.Entries() {
		ordinal++
		switch e.Kind {
		case segment.KindBlock:
			r.takeRecord(g, e.Body, ordinal, l)
		case segment.KindTombstone:
			if t, err := segment.DecodeTombstone(e.Body); err == nil {
				r.takeTombstone(&t)
				top = max(top, t.Seq)
			}
		case segment.KindMark:
			if m, err := segment.DecodeMark(e.Body); err == nil {
				r.mu.Lock()
				r.mark = max(r.mark, m.Flushed)
				r.mu.Unlock()
			}
		default:
			r.takeName(e)
		}
	}
	r.mu.Lock()
	r.top = max(r.top, top)
	r.mu.Unlock()
}

func (r *rebuilder) takeRecord(g *foundGroup, body []byte, ordinal uint32, l *logReader) {
	h, err := segment.PeekHead(body)
	if err == nil { // its row is to be one that everybody can read
		err = segment.DecodeRecord(body, &l.rec)
	}
	if err != nil {
		r.lostRecord(g, err.Error())
		return
	}
	r.records.Add(1)
	loc := layout.Location{Group: h.Place.Group, Page: h.Place.Page, Device: h.Place.Device, Sub: h.Place.Sub}
	if h.Copies > 0 && loc.Group != g.state.Group {
		r.lostRecord(g, "of block "+h.Key.Short()+" is for group "+strconv.Itoa(int(loc.Group)))
		return
	}
	if h.Copies == 0 { // a value in its record, which gets a place of its own
		page, ok := g.takeInline(h.Seq, ordinal)
		if !ok {
			return // from another copy of the log
		}
		loc = layout.Location{Group: g.state.Group, Page: page, Device: segment.InlineDevice}
	}
	if sc := (scope{h.Instance, h.NamespaceID, namespaces.Tag(h.SaltTag)}); l.id == 0 || sc != l.scope {
		l.scope, l.id = sc, r.scopes.id(sc)
	}
	c := candidate{fp: r.in.Names.Fingerprint(h.Instance, namespaces.Tag(h.SaltTag), h.Key), seq: h.Seq, version: h.Version, ordinal: ordinal, bytes: h.Bytes,
		loc: loc.Pack(), scope: l.id, durable: h.Flags&segment.RecordDurable != 0,
		heir: h.Flags&segment.RecordSuccessor != 0}
	c.unread = g.absent && !r.readableWithout(g, &l.rec)
	r.shard(c.fp).add(&c)
	l.rows.add(&r.rows, c.loc, body)
}

// lostRecord names a record that says nothing of a block. It stays in g's log, and the next open compares that with the
// rows.
func (r *rebuilder) lostRecord(g *foundGroup, problem string) {
	r.mu.Lock()
	r.tainted[g.state.Group] = true
	r.mu.Unlock()
	r.fault(report.Fault{Group: int(g.state.Group), What: "record", Problem: problem, Do: "nothing: its block is lost"})
}

func (r *rebuilder) takeTombstone(t *segment.Tombstone) {
	fp := r.in.Names.Fingerprint(t.Instance, namespaces.Tag(t.SaltTag), t.Key)
	sh := r.shard(fp)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if t.Exact {
		sh.exact[exactID{fp, t.Covers}] = true
		return
	}
	sh.addStone(fp, stone{t.Seq, t.Covers})
}

func (r *rebuilder) takeName(e segment.Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e.Kind {
	case segment.KindNamespace:
		n, err := segment.DecodeNamespace(e.Body)
		if err != nil {
			return
		}
		have, ok := r.namespaces[n.Info.ID]
		r.topSpace = max(r.topSpace, n.Info.ID)
		if n.Deleted {
			if n.Instance >= r.ended[n.Info.ID] {
				r.ended[n.Info.ID], r.endings[n.Info.ID] = n.Instance, n
			}
		} else if !ok || n.Instance > have.Instance || n.Instance == have.Instance && n.Seq > have.Seq {
			r.namespaces[n.Info.ID] = n
		}
		r.topInst, r.top = max(r.topInst, n.Instance), max(r.top, n.Seq)
	case segment.KindSealing:
		if v, err := segment.DecodeSealing(e.Body); err == nil {
			r.sealings[v] = true
		}
	case segment.KindPurge:
		p, err := segment.DecodePurge(e.Body)
		if err != nil {
			return
		}
		r.topInst, r.top = max(r.topInst, p.Instance), max(r.top, p.Seq, p.Covers)
		if !p.Salted {
			r.whole[p.Instance] = max(r.whole[p.Instance], p.Seq)
			return
		}
		k := namespaces.SaltTag{Instance: p.Instance, Tag: namespaces.Tag(p.SaltTag)}
		if old, ok := r.salts[k]; !ok || p.Seq > old.Seq {
			r.salts[k] = p
		}
	}
}
