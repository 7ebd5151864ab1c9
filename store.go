package skep

import (
	"context"
	"time"
)

// Store is everything: what the embedded engine, the network client and the GPU tier
// all are.
type Store interface {
	Namespacer
	Looker
	Leaser
	Putter
	Restorer
	Deleter
	Hinter
	Observer
	Allocator
	// Close refuses new work, ends what waits, and returns when everything is back,
	// or with NotReleased when a drive still holds memory. Closing twice is not an
	// error.
	Close() error
}

// Deleter removes blocks.
type Deleter interface {
	// Delete removes blocks, leased ones too, and says how many were there. Their
	// descendants stay hidden until a block of the same key is put again.
	Delete(ctx context.Context, s Scope, keys []Key) (int, error)
	// Purge makes everything of a tenant, a model or a salt invisible at once, whatever
	// the number of blocks; space comes back as groups are cleaned. Nothing purged is
	// ever found again, not after a crash or a rebuild either.
	Purge(ctx context.Context, p Purge) error
}

// Purge names what to purge: exactly one of Tenant, Model, Namespace or a Scope
// with a salt.
type Purge struct {
	Tenant    string      // all namespaces of this tenant
	Model     string      // all namespaces of this model fingerprint
	Namespace NamespaceID // this one, and its clustered contexts
	Salt      *Scope      // this salt in this namespace, and in its clustered contexts
}

// Validate checks that exactly one thing is named.
func (p Purge) Validate() error {
	n := 0
	for _, set := range []bool{p.Tenant != "", p.Model != "", p.Namespace != 0, p.Salt != nil} {
		if set {
			n++
		}
	}
	if n != 1 {
		return Invalidf("purge", "fields set", n, "exactly one of tenant, model, namespace, salt")
	}
	if p.Salt != nil {
		return p.Salt.validate("purge")
	}
	return nil
}

// Hint tells the store what the caller knows about the future of blocks. Zero
// fields say nothing.
type Hint struct {
	Pin     time.Duration // keep at least this long, within the tenant's pin budget; at most MaxPin
	NextUse time.Duration // expected next use, from now
	Steps   int           // steps to execution of the program that uses it (KVFlow)
	TTL     time.Duration // worth nothing after this long (Continuum's time to live)
	Program string        // whose blocks these are, for Stats and later hints
	Drop    bool          // worth nothing from now on
}

// MaxPin is the longest a hint may pin a block.
const MaxPin = 24 * time.Hour

// Hinter takes hints. They change what is kept, never what is right.
type Hinter interface {
	// Hint applies h to those of keys that are stored and says how many. Quota when
	// pinning would pass the tenant's pin budget; nothing is pinned then.
	Hint(ctx context.Context, s Scope, keys []Key, h Hint) (int, error)
}

// Memory is memory the store lends, aligned to 4 KiB and registered with its drives
// where they can.
type Memory interface {
	Bytes() []byte
	// Release gives it back. The bytes must not be touched afterwards.
	Release()
}

// Allocator lends memory that restores and puts use without a copy.
type Allocator interface {
	// Alloc lends n bytes out of the I/O budget; NoMemory when none comes free before
	// ctx ends.
	Alloc(ctx context.Context, n int64) (Memory, error)
}

// Registrar is a Store that can make foreign memory as quick to restore into as its
// own: memory shared with another process, say. It is optional; memory that is not
// registered works too.
type Registrar interface {
	// Register tells the drives about mem, whose address and length are multiples of
	// 4 KiB. mem must stay mapped until unregister has returned and every session that
	// used it is closed. Unsupported when no drive can use it, which costs CPU and
	// nothing else.
	Register(mem []byte) (unregister func(), err error)
}

// Observer shows what the store does.
type Observer interface {
	Stats(ctx context.Context) (Stats, error)
	// Events starts a stream at from (zero: at the next event). With snapshot, the
	// stream first tells of every block stored (kind EventStored), then follows.
	Events(ctx context.Context, from Cursor, snapshot bool) (EventStream, error)
}

// Cursor is a place in a store's stream of events.
type Cursor struct {
	Epoch uint64 // changes each time the store is opened
	Seq   uint64 // grows by one an event
}

// EventKind says what happened. The numbers travel on the wire.
type EventKind uint8

const (
	EventAccepted  EventKind = 1 // readable from memory
	EventCommitted EventKind = 2 // stored as its class promises
	EventEvicted   EventKind = 3 // gone, to make room
	EventMoved     EventKind = 4 // stored elsewhere: written again by cleaning, compaction or a drain; Tier says in which tier it is now
	EventDamaged   EventKind = 5 // bytes did not match
	EventDeleted   EventKind = 6 // by Delete, Replaces or a later writer
	EventPurged    EventKind = 7 // a tenant, model, namespace or salt; Namespace says which, 0 for several
	EventGap       EventKind = 8 // events between the last and this one are lost to this reader: take a snapshot
	EventStored    EventKind = 9 // of a snapshot
	// EventDevice says that a drive's condition changed: Depth is its index, Reason is
	// DeviceFailed when it is read around or fenced, Other when it is well again.
	EventDevice EventKind = 10
)

var eventText = [...]string{"", "accepted", "committed", "evicted", "moved", "damaged", "deleted", "purged", "gap", "stored", "device"}

func (k EventKind) String() string {
	if int(k) < len(eventText) {
		return eventText[k]
	}
	return "event"
}

// Event is one thing that happened to one block. Salted blocks show as their stored
// form, which means nothing to who does not hold the salt.
type Event struct {
	Cursor
	Kind      EventKind
	Time      time.Time
	Namespace NamespaceID
	Key       Key
	Salted    bool
	Parent    *Key
	Depth     int
	Tier      Tier
	Reason    Kind
	Lost      uint64 // EventGap: how many
}

// EventStream delivers events in order to one reader. A reader that is too slow
// loses events and is told so by EventGap; it never holds the store up.
type EventStream interface {
	// Next waits for events and fills into with at least one.
	Next(ctx context.Context, into []Event) (int, error)
	Close() error
}
