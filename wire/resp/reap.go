package resp

import (
	"context"
	"sync"
	"time"

	"github.com/skepkv/skep"
)

// reaper deletes what no head names any more, and keys that have expired, in batches
// behind everybody's back: a delete is synced, and one a SET would cost more than the
// SET. What it does not get to (a crash, a full queue) no reader can find either; the
// store's cleaner drops it in time.
type reaper struct {
	store skep.Store
	queue chan reapable
	stop  chan struct{}
	wg    sync.WaitGroup
}

// reapable is one value's pieces, or a key to be looked at again.
type reapable struct {
	db   *database
	head *head  // its pieces
	key  []byte // or this key, if it has expired
}

const (
	reapQueue    = 1 << 14
	reapInterval = 200 * time.Millisecond
	reapBatch    = 1 << 14 // blocks
	reapTimeout  = 10 * time.Second
)

func newReaper(st skep.Store) *reaper {
	r := &reaper{store: st, queue: make(chan reapable, reapQueue), stop: make(chan struct{})}
	r.wg.Add(1)
	go r.run()
	return r
}

func (r *reaper) pieces(db *database, h *head) { r.offer(reapable{db: db, head: h}) }
func (r *reaper) expired(db *database, key []byte) {
	r.offer(reapable{db: db, key: append([]byte(nil), key...)})
}

func (r *reaper) offer(x reapable) {
	select {
	case r.queue <- x:
	default:
	}
}

// close deletes what is queued and ends.
func (r *reaper) close() {
	close(r.stop)
	r.wg.Wait()
}

func (r *reaper) run() {
	defer r.wg.Done()
	tick := time.NewTicker(reapInterval)
	defer tick.Stop()
	for {
		select {
		case <-r.stop:
			r.sweep()
			return
		case <-tick.C:
			r.sweep()
		}
	}
}

// sweep empties the queue.
func (r *reaper) sweep() {
	ctx, cancel := context.WithTimeout(context.Background(), reapTimeout)
	defer cancel()
	batch := map[skep.NamespaceID][]skep.Key{}
	var buried []reapable
	n := 0
	flush := func() {
		for ns, keys := range batch {
			_, _ = r.store.Delete(ctx, skep.Scope{Namespace: ns}, keys) // else the cleaner's
		}
		for _, x := range buried {
			x.db.reading.gone(x.head.id)
		}
		clear(batch)
		buried, n = nil, 0
	}
	defer flush()
	for ctx.Err() == nil {
		select {
		case x := <-r.queue:
			if x.head != nil {
				if !x.db.reading.bury(x.head.id, x.head) {
					continue
				}
				buried = append(buried, x)
				batch[x.db.data] = append(batch[x.db.data], x.head.pieceKeys(0, x.head.pieces())...)
				n += x.head.pieces()
			} else {
				r.expire(ctx, x.db, x.key)
			}
			if n >= reapBatch {
				flush()
			}
		default:
			return
		}
	}
}

// expire deletes key if it has expired still. What cannot be read may have been set anew.
func (r *reaper) expire(ctx context.Context, db *database, key []byte) {
	defer db.lock(key)()
	now := db.clock()
	_, _ = db.deleteLocked(ctx, [][]byte{key}, func(h *head) bool { return h != nil && h.expired(now) })
}
