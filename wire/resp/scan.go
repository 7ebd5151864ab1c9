package resp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/skepkv/skep"
)

// A store tells what it holds by a snapshot of its events. A listing is one such
// snapshot: the names of a database's heads, sorted. A cursor of SCAN is a place in
// the order of names (their first eight bytes), not in a listing, so an iteration goes
// on across listings, servers and restarts, and sees every key that was there all
// along at least once.
type listings struct {
	mu      sync.Mutex // held while a snapshot is taken: others wait for it
	names   []skep.Key
	changes uint64 // database.changes before it was taken
	taken   time.Time
	took    time.Duration
	valid   bool
}

const (
	// maxListed is the most keys of one listing: 128 MiB of names.
	maxListed = 4 << 20
	// A listing that took long is used for longer, whatever changed meanwhile.
	listingWorth = 20
	listingQuick = 50 * time.Millisecond
)

// listed gives a listing that is not stale.
func (db *database) listed(ctx context.Context) ([]skep.Key, error) {
	l := &db.list
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.valid && (l.changes == db.changes.Load() || l.took > listingQuick && now.Sub(l.taken) < listingWorth*l.took) && now.Sub(l.taken) < time.Minute {
		return l.names, nil
	}
	changes := db.changes.Load()
	names, err := db.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	l.names, l.changes, l.taken, l.took, l.valid = names, changes, now, time.Since(now), true
	return names, nil
}

// marker is the block whose event tells that a snapshot is over, since snapshots do
// not say so themselves. It is no head: its name is no key's hash.
var marker = skep.Key{'s', 'k', 'e', 'p', ' ', 's', 'n', 'a', 'p', 's', 'h', 'o', 't', ' ', 'e', 'n', 'd'}

func (db *database) snapshot(ctx context.Context) ([]skep.Key, error) {
	stream, err := db.store.Events(ctx, skep.Cursor{}, true)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	put, err := db.store.Put(ctx, &skep.PutRequest{Scope: skep.Scope{Namespace: db.heads},
		Blocks: []skep.Block{{Key: marker, Parts: []skep.Part{{Bytes: []byte("end")}}}}})
	if err == nil && put[0].Outcome == skep.Declined {
		err = &skep.Error{Op: "list keys", Kind: put[0].Reason}
	}
	if err != nil {
		return nil, err
	}
	var names []skep.Key
	events := make([]skep.Event, 512)
	for {
		n, err := stream.Next(ctx, events)
		if err != nil {
			return nil, err
		}
		for i := range events[:n] {
			e := &events[i]
			switch {
			case e.Kind == skep.EventGap:
				return nil, &skep.Error{Op: "list keys", Kind: skep.Deadline, Err: errors.New("too much changed meanwhile, try again")}
			case e.Namespace != db.heads:
			case e.Key == marker && e.Kind != skep.EventStored && e.Kind != skep.EventDeleted:
				slices.SortFunc(names, func(a, b skep.Key) int { return bytes.Compare(a[:], b[:]) })
				return slices.Compact(names), nil
			case e.Kind == skep.EventStored && e.Key != marker:
				if len(names) == maxListed {
					return nil, &skep.Error{Op: "list keys", Kind: skep.Unsupported, Field: "keys", Value: fmt.Sprintf("over %d", maxListed), Limit: maxListed}
				}
				names = append(names, e.Key)
			}
		}
	}
}

// scan gives keys after cursor, about count of them, and the cursor to go on from; 0
// when there are no more.
func (db *database) scan(ctx context.Context, cursor uint64, count int, want func(key []byte) bool) (next uint64, keys [][]byte, err error) {
	names, err := db.listed(ctx)
	if err != nil {
		return 0, nil, err
	}
	at, _ := slices.BinarySearchFunc(names, cursor, func(k skep.Key, c uint64) int {
		if place(k) <= c && c != 0 {
			return -1
		}
		return 1
	})
	if cursor == 0 {
		at = 0
	}
	end := min(at+count, len(names))
	for end < len(names) && end > 0 && place(names[end]) == place(names[end-1]) {
		end++ // a cursor cannot part them
	}
	if end < len(names) {
		next = place(names[end-1])
	}
	if at == end {
		return 0, nil, nil
	}
	now := db.clock()
	err = eachBlock(ctx, db.store, db.heads, names[at:end], func(_ int, b []byte, err error) {
		if err != nil {
			return // gone since
		}
		if h, err := decodeHead(b); err == nil && !h.expired(now) && want(h.key) {
			keys = append(keys, bytes.Clone(h.key)) // else the value stays with it
		}
	})
	return next, keys, err
}

// place is a name's place in the order of cursors; never 0, which is the beginning.
func place(k skep.Key) uint64 { return max(binary.BigEndian.Uint64(k[:]), 1) }
