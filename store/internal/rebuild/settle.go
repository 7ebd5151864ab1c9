package rebuild

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/report"
	"github.com/skepkv/skep/store/segment"
)

// settleNames makes the table of namespaces and purges, and their rows.
func (r *rebuilder) settleNames() error {
	n := r.in.Names
	named := map[[2]string]skep.NamespaceID{}
	for id, ns := range r.namespaces { // a name is used again only once what had it is deleted
		name := [2]string{ns.Info.Tenant, ns.Info.Name}
		if older := min(id, named[name]); older != 0 {
			if was := r.namespaces[older]; was.Instance >= r.ended[older] {
				was.Deleted = true
				r.ended[older], r.endings[older] = was.Instance, was
			}
		}
		named[name] = max(id, named[name])
	}
	for id, ns := range r.namespaces {
		if ns.Instance <= r.ended[id] {
			delete(r.namespaces, id)
			continue
		}
		if _, purged := r.whole[ns.Instance]; purged {
			// Its renewal was lost with a drive: the namespace goes on under a new instance.
			r.relog = true
			r.topInst++
			ns.Instance = r.topInst
			r.namespaces[id] = ns
		}
		if _, err := n.Add(ns.Info, ns.Instance); err != nil {
			return err
		}
	}
	for k, p := range r.salts {
		n.KillTag(k, p.Seq)
	}
	r.rep.Namespaces, r.rep.Purges = len(r.namespaces), len(r.whole)+len(r.salts)
	return nil
}

// link finds what is of one block, in all shards.
func (r *rebuilder) link(ctx context.Context) error {
	return r.eachShard(ctx, func(_ context.Context, sh *shard, _ *rowBatch) error {
		sh.link()
		return nil
	})
}

// verify reads the payload of blocks that a crash may have left without theirs: those
// with a number above the highest mark.
func (r *rebuilder) verify(ctx context.Context) error {
	var found []*catalog.GroupState
	for _, num := range slices.Sorted(maps.Keys(r.groups)) {
		found = append(found, &r.groups[num].state)
	}
	r.in.Store.Found(found)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan *candidate, verifiers)
	var verified atomic.Int64
	var wg sync.WaitGroup
	for range verifiers {
		wg.Go(func() {
			var buf []byte
			for c := range next {
				if ctx.Err() != nil {
					continue
				}
				whole, err := r.whole1(ctx, c.loc, &buf)
				if err != nil {
					cancel(err)
					continue
				}
				verified.Add(1)
				if !whole {
					r.lost(c)
				}
			}
		})
	}
	for i := range r.shards {
		_ = r.shards[i].each(func(list []*candidate) error {
			if newest(list).seq > r.mark { // what it leaves in its place, if it is not whole, must be whole too
				for _, c := range list {
					switch {
					case c.seq <= r.mark:
					case !c.unread:
						next <- c
					case c.durable: // nobody knows whether it was whole: what it stood in front of stays
						r.mu.Lock()
						r.voids[c.seq] = true
						r.mu.Unlock()
					}
				}
			}
			return nil
		})
	}
	close(next)
	wg.Wait()
	r.rep.Verified = verified.Load()
	r.progress(report.RebuildProgress{Stage: "verify", Done: int(r.rep.Verified), Of: int(r.rep.Verified), Records: r.records.Load()})
	if ctx.Err() != nil {
		return segio.Ended(ctx, "open store")
	}
	return nil
}

// whole1 says whether the block of one row has its bytes.
func (r *rebuilder) whole1(ctx context.Context, loc uint64, buf *[]byte) (bool, error) {
	row, err := r.in.Catalog.Block(ctx, layout.Unpack(loc), nil)
	if err != nil {
		return false, err
	}
	h, err := segment.DecodeHead(row)
	if err != nil {
		return false, nil
	}
	r.readBytes.Add(int64(h.Pages) * layout.PageSize)
	return r.in.Store.Whole(ctx, layout.Unpack(loc), bytes.Clone(row), buf)
}

// lost notes a record whose payload did not arrive. Of a Durable block nobody was told
// that it was stored: its append does not count. Of a Cache block somebody may have been:
// it is gone, and takes what it replaced with it.
func (r *rebuilder) lost(c *candidate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rep.Lost++
	r.tainted[layout.Unpack(c.loc).Group] = true
	sh := r.shard(c.fp)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if c.durable {
		r.voids[c.seq] = true
		sh.exact[exactID{c.fp, c.seq}] = true
	} else {
		sh.addStone(c.fp, stone{c.seq, c.written()})
	}
}

// newest is the candidate that counts before the others.
func newest(list []*candidate) *candidate {
	top := list[0]
	for _, c := range list[1:] {
		if c.newer(top) {
			top = c
		}
	}
	return top
}

// covered says whether a tombstone takes c away, of a list of one key. One of an append that was never committed does
// not: an exact tombstone of the same key says so, unless the append has a record of the key, which it is about then.
func (r *rebuilder) covered(sh *shard, c *candidate, list []*candidate) bool {
	if len(sh.stones) == 0 {
		return false
	}
	for _, s := range sh.stones[c.fp] {
		if c.written() <= s.covers && !r.voids[s.seq] && (!sh.exact[exactID{c.fp, s.seq}] || has(list, s.seq)) {
			return true
		}
	}
	return false
}

func has(list []*candidate, seq uint64) bool {
	return slices.ContainsFunc(list, func(c *candidate) bool { return c.seq == seq })
}

// settle decides for every block which record counts, if any, and removes the rows of
// the others.
func (r *rebuilder) settle(ctx context.Context) error {
	fates := r.fates()
	return r.eachShard(ctx, func(ctx context.Context, sh *shard, b *rowBatch) error {
		return r.settleShard(ctx, sh, fates, b)
	})
}

// eachShard does something with all shards, some at a time.
func (r *rebuilder) eachShard(ctx context.Context, do func(ctx context.Context, sh *shard, b *rowBatch) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	var next atomic.Int64
	for range settlers {
		wg.Go(func() {
			b := &rowBatch{c: r.in.Catalog}
			for i := next.Add(1) - 1; int(i) < len(r.shards) && ctx.Err() == nil; i = next.Add(1) - 1 {
				if err := do(ctx, &r.shards[i], b); err != nil {
					cancel(err)
					return
				}
			}
			if err := b.flush(ctx); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return segio.Ended(ctx, "open store")
	}
	return nil
}

// verifiers is how many blocks are verified at a time: as deep as drives like it.
const verifiers = 64

// settlers is how many shards are settled at a time.
const settlers = 4

func (r *rebuilder) settleShard(ctx context.Context, sh *shard, fates []uint8, b *rowBatch) error {
	var n report.Rebuild
	var unnamed uint32
	left := map[uint32]bool{}
	err := sh.each(func(list []*candidate) error {
		var top *candidate
		for _, c := range list { // what was never committed gives way to what it stood in front of
			if (len(sh.exact) == 0 || !sh.exact[exactID{c.fp, c.seq}]) && (top == nil || c.newer(top)) {
				top = c
			}
		}
		n.Older += int64(len(list)) - 1
		switch {
		case top == nil || r.covered(sh, top, list):
			n.Deleted++
			top = nil
		case fates[top.scope] == scopePurged:
			n.Purged++
			top = nil
		case fates[top.scope] == scopeUnnamed:
			n.Unnamed++
			unnamed = max(unnamed, r.scopes.list[top.scope-1].instance)
			top = nil
		case top.unread:
			n.Unreadable++
			if top.durable {
				n.Durable++
			}
			r.nameUnread(ctx, top)
			top = nil
		default:
			if fates[top.scope] == scopeMayBeOld {
				n.MayBeOld++
			}
			n.Blocks++
			n.BlockBytes += top.bytes
		}
		for _, c := range list {
			if c != top {
				// What was put when this one was evicted already does not know of it: when that
				// goes too, this must not come back.
				if top != nil && !top.heir {
					left[layout.Unpack(c.loc).Group] = true
				}
				if err := b.remove(ctx, layout.Unpack(c.loc)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.topInst = max(r.topInst, unnamed)
	for g := range left {
		r.tainted[g] = true
	}
	r.rep.Older += n.Older
	r.rep.Deleted += n.Deleted
	r.rep.Purged += n.Purged
	r.rep.Unnamed += n.Unnamed
	r.rep.Unreadable += n.Unreadable
	r.rep.Durable += n.Durable
	r.rep.MayBeOld += n.MayBeOld
	r.rep.Blocks += n.Blocks
	r.rep.BlockBytes += n.BlockBytes
	return err
}

// nameUnread names a block that was lost with a drive. Its record stays in a log, and the
// next open writes a tombstone for it.
func (r *rebuilder) nameUnread(ctx context.Context, c *candidate) {
	loc := layout.Unpack(c.loc)
	r.mu.Lock()
	r.tainted[loc.Group] = true
	listed := len(r.rep.Faults) < report.MaxFaults
	r.mu.Unlock()
	f := report.Fault{What: "block", Group: int(loc.Group), Problem: "its only copy was on a missing device, or a piece of every copy was", Do: "nothing: it is lost; put it again"}
	if !listed {
		r.fault(f) // counted only
		return
	}
	if row, err := r.in.Catalog.Block(ctx, loc, nil); err == nil {
		if h, err := segment.PeekHead(row); err == nil {
			f.Key = h.Key.String()
		}
	}
	r.fault(f)
}

// seqMargin keeps numbers given out after a rebuild apart from those of writes of which
// it saw nothing.
const seqMargin = 1 << 20

// finish writes the other rows, and the root row last.
func (r *rebuilder) finish(ctx context.Context) error {
	if r.rep.Unnamed > 0 {
		r.fault(report.Fault{What: "namespace", Problem: strconv.FormatInt(r.rep.Unnamed, 10) + " records belong to namespaces of which the devices say nothing",
			Do: "nothing: what they hold is lost"})
	}
	if r.rep.MayBeOld > 0 {
		r.fault(report.Fault{What: "namespace", Problem: strconv.FormatInt(r.rep.MayBeOld, 10) + " blocks are of namespaces in which the last writer wins, and a missing device may have held newer versions of them",
			Do: "purge these namespaces, where an old version is worse than none"})
	}
	rows := r.in.Catalog.NewBatch()
	for num, g := range r.groups {
		if r.tainted[num] {
			g.state.State = catalog.GroupCleaning
		}
		rows.PutGroup(&g.state)
	}
	for i := range r.gone {
		rows.PutGroup(&r.gone[i])
	}
	for id, n := range r.namespaces {
		rows.PutNamespace(&catalog.Namespace{NamespaceInfo: n.Info, Instance: n.Instance})
		r.top = max(r.top, uint64(id))
	}
	for v := range r.sealings {
		if r.in.Names.Of(v.Instance) != nil { // else what was encrypted is gone for good
			rows.PutSealing(catalog.Sealing{Instance: v.Instance, Key: v.Key, Said: true})
		}
	}
	for k, p := range r.salts {
		rows.PutPurge(catalog.Purge{Instance: k.Instance, Tag: k.Tag, Seq: p.Seq})
	}
	named := r.named()
	for _, d := range r.drives {
		row := d.Row
		row.Segments = uint32(d.Segments)
		if d.Absent && !named[row.Index] { // nothing is to be moved off it: it is out of the store
			row.State = catalog.DeviceRemoved
		}
		rows.PutDevice(&row)
	}
	if err := r.sayEnded(rows); err != nil {
		return err
	}
	if err := r.in.Catalog.Commit(ctx, rows, true); err != nil {
		return err
	}
	root := r.in.Catalog.NewBatch()
	root.PutStore(r.root())
	if err := r.in.Store.Claim(root); err != nil {
		return err
	}
	r.progress(report.RebuildProgress{Stage: "settle", Done: int(r.rep.Blocks), Of: int(r.rep.Blocks), Records: r.records.Load()})
	return r.in.Catalog.Commit(ctx, root, true)
}

// sayEnded has the next open say again which namespaces are deleted, where drives that are missing may have said so:
// the catalog does not know them, and another drive may be lost.
func (r *rebuilder) sayEnded(rows *catalog.Batch) error {
	if !r.relog {
		return nil
	}
	var w segment.LogWriter
	put := func() {
		r.top++
		rows.PutIntent(r.top, w.Bytes())
		w = segment.LogWriter{}
	}
	for _, n := range r.endings {
		if w.Len() > segment.BodySize/2 {
			put()
		}
		if err := w.Namespace(&n); err != nil {
			return err
		}
	}
	if w.Len() > 0 {
		put()
	}
	return nil
}

// root is the new root row. Not clean, so that the next open makes the devices agree.
func (r *rebuilder) root() catalog.StoreState {
	now := r.in.Wall()
	next := r.top + seqMargin
	st := catalog.StoreState{StoreID: r.in.ID, Secret: r.in.Secret, NextSeq: next, FlushedSeq: next,
		NextGroup: r.topGroup, NextInstance: r.topInst, Epoch: uint64(max(now.Unix(), 1)), Lasting: uint64(max(now.UnixMilli(), 0))}
	st.Relog, st.Limits = r.relog, r.in.Limits
	st.NextNamespace = uint32(r.topSpace)
	for _, sc := range r.scopes.list { // a number is not given out again while a record has it
		st.NextNamespace = max(st.NextNamespace, sc.namespace)
	}
	return st
}
