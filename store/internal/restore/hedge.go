package restore

import (
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/segio"
)

// Hedge sends reads elsewhere that d has had for longer than after, or that wait for it while it is not to be read:
// it is in condition c.
func Hedge(d Drive, after time.Duration, c health.State) {
	limit := int64(after)
	now := device.Now()
	q := d.Queue()
	q.mu.Lock()
	var late, waiting []*read
	for r := q.oldest; r != nil && now-r.op.Start >= limit; r = r.newer {
		if r.state.is() == readPending {
			late = append(late, r)
		}
	}
	if c != health.Healthy {
		waiting = append(waiting, q.waits...)
	} else {
		q.startLocked() // one may have got stuck since
	}
	submitLocked(d)
	for _, r := range late {
		r.ch.leave(r, false, c == health.Dead)
	}
	for _, r := range waiting {
		if !q.take(r) {
			continue // it has been given to the drive meanwhile
		}
		switch {
		case r.ch.leave(r, true, c == health.Dead):
		case c == health.Dead:
			r.op.Err = segio.ErrNoDrive
			if r.came() {
				r.end(segio.ErrNoDrive)
			}
		default:
			queue(d, r)
		}
	}
}

// giveUp answers a chunk whose drive is dead as a miss. Its memory stays the drive's.
func (ch *chunk) giveUp() {
	ch.ses.mu.Lock()
	defer ch.ses.mu.Unlock()
	if ch.chain.items[ch.item] == itemAway {
		ch.cancelled.Store(true)
		ch.ses.answerLocked(ch.chain, ch.item, skep.Chunk{Err: segio.ErrNoDrive}, itemMissed)
	}
}

// Waiting is how many reads wait for the drive, since it has all it takes.
func (q *Queue) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waits)
}

// Busy says whether the drive has reads of restores.
func (q *Queue) Busy() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ops > 0
}
