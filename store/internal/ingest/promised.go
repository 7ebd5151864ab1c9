package ingest

import (
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/memory"
)

// Accepted blocks that could not be committed and that a lease or pin protects. What a
// lookup promised is kept: they stay in memory, where they are readable, and are tried
// again until they are committed, deleted, or promised no more. They are bounded by what
// the DRAM tier may hold that is not on the drives. A Flush does not wait for them: it may
// take as long as a lease.

// promisedAgain is how often they are tried.
const promisedAgain = 4 * space.Wait

// commitHeld writes accepted blocks from the DRAM tier. Those that could not be committed
// are withdrawn, but for what a promise protects, which is returned.
func (w *Writer) commitHeld(ctx context.Context, ns *namespaces.Namespace, blocks []*Block) (promised []*Block) {
	var list []*Block
	var shared []*memory.Buffer
	for _, in := range blocks {
		mine, _ := w.Puts.Flights.Join(in.FP)
		if mine == nil { // another put of the key is under way, which ends as this one's rival
			if w.holds(in) || !w.Withdraw(ns, in, in.Result.Reason) {
				promised = append(promised, in)
			}
			continue
		}
		in.flight = mine
		if w.holds(in) && w.share(in, &shared) {
			list = append(list, in)
			continue
		}
		w.Withdraw(ns, in, in.Result.Reason) // gone, purged, or a delete that is under way took its bytes
		w.discard(in)
		w.land([]*Block{in})
	}
	l := appender.Lend(func() { memory.ReleaseAll(shared) })
	for _, in := range list {
		in.Loan = l
	}
	err := w.seal(ctx, "commit", ns, list...) // again: their key may have been replaced since they were put
	if err == nil {
		err = w.Appends.Write(ctx, ns, space.User, toWrite(list))
	} else {
		w.Appends.Decline(toWrite(list), skep.KindOf(err))
	}
	if err != nil && !appender.Declines(err) && ctx.Err() == nil {
		w.Log.Error("accepted blocks not committed", "blocks", len(list), "error", err)
	}
	promised = append(promised, w.withdrawAll(ns, list)...)
	for _, in := range list {
		in.Parts = nil
	}
	l.Back()
	w.land(list)
	return promised
}

// withdrawAll takes back what could not be committed, and returns what is promised.
func (w *Writer) withdrawAll(ns *namespaces.Namespace, blocks []*Block) (promised []*Block) {
	for _, in := range blocks {
		if in.Result.Outcome != skep.Committed && !w.Withdraw(ns, in, in.Result.Reason) {
			promised = append(promised, in)
		}
	}
	return promised
}

// Withdraw takes an accepted block back, if it is what the store holds under its key. False: it is promised. What was
// purged is promised to nobody, whoever leases it.
//
// Under the lock of pending no later put of the key comes between the look at whose record is there and the index: a
// put enters its record before the index has its block.
func (w *Writer) Withdraw(ns *namespaces.Namespace, in *Block, why skep.Kind) bool {
	purged := w.Names.Dead(in.Record.Instance, namespaces.Tag(in.Record.SaltTag))
	err := error(commit.ErrGone)
	w.Puts.Records.While(in.FP, in.Known, func() {
		if !purged {
			err = w.Index.Withdraw(in.FP)
		} else if _, ok := w.Index.Remove(in.FP, 0); ok {
			err = nil
		}
	})
	switch {
	case err == index.ErrProtected:
		return false
	case err == nil:
		ns.Stored.Add(-in.Size)
		ev := w.Rows.Event(ns, &in.Record, skep.EventEvicted)
		ev.Reason = why
		w.Rows.Tell(ev, in.Record.Instance, namespaces.Tag(in.Record.SaltTag))
	}
	w.discard(in)
	return true
}

// keepPromised looks after blocks that could not be committed and are promised.
func (w *Writer) keepPromised(ns *namespaces.Namespace, blocks []*Block) {
	if len(blocks) == 0 {
		return
	}
	w.Background.Go(func() {
		tick := time.NewTicker(promisedAgain)
		defer tick.Stop()
		for len(blocks) > 0 {
			select {
			case <-w.Closing:
				for _, in := range blocks {
					w.discard(in)
				}
				return
			case <-tick.C:
			}
			blocks = w.commitHeld(w.Context, ns, blocks)
		}
	})
}

// holds says whether in is still what the store holds under its key: no delete, purge
// or later put has come in between.
func (w *Writer) holds(in *Block) bool {
	e, ok := w.Index.Resolve(in.FP)
	return ok && e.Location == 0 && w.Puts.Records.Get(in.FP) == in.Known &&
		!w.Names.Dead(in.Record.Instance, namespaces.Tag(in.Record.SaltTag))
}

// share points in's parts at its copy in the DRAM tier, and keeps that in place until
// what it appends to bufs is released.
func (w *Writer) share(in *Block, bufs *[]*memory.Buffer) bool {
	in.Parts = make([]skep.Part, len(in.held))
	for i, h := range in.held {
		b, ok := w.Cache.Share(h.ID, h.Version)
		*bufs = append(*bufs, b...)
		if !ok || len(b) != 1 {
			return false
		}
		p := &in.Record.Parts[i]
		in.Parts[i] = skep.Part{Name: p.Name, Bytes: b[0].Bytes()[:p.Size]}
	}
	return true
}
