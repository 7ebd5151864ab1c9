package store

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
func (s *Store) commitHeld(ctx context.Context, ns *namespaces.Namespace, blocks []*incoming) (promised []*incoming) {
	var list []*incoming
	var shared []*memory.Buffer
	for _, in := range blocks {
		mine, _ := s.puts.Flights.Join(in.FP)
		if mine == nil { // another put of the key is under way, which ends as this one's rival
			if s.holds(in) || !s.withdraw(ns, in, in.Result.Reason) {
				promised = append(promised, in)
			}
			continue
		}
		in.flight = mine
		if s.holds(in) && s.share(in, &shared) {
			list = append(list, in)
			continue
		}
		s.withdraw(ns, in, in.Result.Reason) // gone, purged, or a delete that is under way took its bytes
		s.discard(in)
		s.land([]*incoming{in})
	}
	l := appender.Lend(func() { memory.ReleaseAll(shared) })
	for _, in := range list {
		in.Loan = l
	}
	if err := s.appends.Write(ctx, ns, space.User, toWrite(list)); err != nil && ctx.Err() == nil {
		s.log.Error("accepted blocks not committed", "blocks", len(list), "error", err)
	}
	promised = append(promised, s.withdrawAll(ns, list)...)
	for _, in := range list {
		in.Parts = nil
	}
	l.Back()
	s.land(list)
	return promised
}

// withdrawAll takes back what could not be committed, and returns what is promised.
func (s *Store) withdrawAll(ns *namespaces.Namespace, blocks []*incoming) (promised []*incoming) {
	for _, in := range blocks {
		if in.Result.Outcome != skep.Committed && !s.withdraw(ns, in, in.Result.Reason) {
			promised = append(promised, in)
		}
	}
	return promised
}

// withdraw takes an accepted block back, if it is what the store holds under its key. False: it is promised. What was
// purged is promised to nobody, whoever leases it.
//
// Under the lock of pending no later put of the key comes between the look at whose record is there and the index: a
// put enters its record before the index has its block.
func (s *Store) withdraw(ns *namespaces.Namespace, in *incoming, why skep.Kind) bool {
	purged := s.names.Dead(in.Record.Instance, namespaces.Tag(in.Record.SaltTag))
	err := error(commit.ErrGone)
	s.puts.Records.While(in.FP, in.Known, func() {
		if !purged {
			err = s.index.Withdraw(in.FP)
		} else if _, ok := s.index.Remove(in.FP, 0); ok {
			err = nil
		}
	})
	switch {
	case err == index.ErrProtected:
		return false
	case err == nil:
		ns.Stored.Add(-in.Size)
		ev := s.rows.Event(ns, &in.Record, skep.EventEvicted)
		ev.Reason = why
		s.rows.Tell(ev, in.Record.Instance, namespaces.Tag(in.Record.SaltTag))
	}
	s.discard(in)
	return true
}

// keepPromised looks after blocks that could not be committed and are promised.
func (s *Store) keepPromised(ns *namespaces.Namespace, blocks []*incoming) {
	if len(blocks) == 0 {
		return
	}
	s.background.Go(func() {
		tick := time.NewTicker(promisedAgain)
		defer tick.Stop()
		for len(blocks) > 0 {
			select {
			case <-s.closing:
				for _, in := range blocks {
					s.discard(in)
				}
				return
			case <-tick.C:
			}
			blocks = s.commitHeld(s.ctx, ns, blocks)
		}
	})
}

// holds says whether in is still what the store holds under its key: no delete, purge
// or later put has come in between.
func (s *Store) holds(in *incoming) bool {
	e, ok := s.index.Resolve(in.FP)
	return ok && e.Location == 0 && s.puts.Records.Get(in.FP) == in.Known && !s.names.Dead(in.Record.Instance, namespaces.Tag(in.Record.SaltTag))
}
