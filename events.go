package skep

import (
	"context"
	"time"
)

// Observer shows what the store does.
type Observer interface {
	// Stats is what the store did since it was opened, and how it stands.
	Stats(ctx context.Context) (Stats, error)
	// Events starts a stream at from (zero: at the next event). With snapshot, from is not looked at: the
	// stream first tells of every block stored (kind EventStored), then follows. What is put, moved or goes meanwhile is told of
	// by the snapshot, by the events that follow, or by both, and what went is told of last. So a picture of what is stored is
	// kept by Event.Tier alone. A block that was accepted before and is in no other tier is told of when it is committed.
	// Close it.
	//
	// Errors: Invalid (a cursor that is yet to come).
	Events(ctx context.Context, from Cursor, snapshot bool) (EventStream, error)
}

// Cursor is a place in a store's stream of events.
type Cursor struct {
	Epoch uint64 // changes each time the store is opened, and is not another store's
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
	Tier      Tier // of an event of a block: where it is from now on, TierNone when it is gone
	Reason    Kind
	Lost      uint64 // EventGap: how many
}

// EventStream delivers events in order to one reader. A reader that is too slow
// loses events and is told so by EventGap; it never holds the store up.
type EventStream interface {
	// Next waits for events and fills into with at least one. The end of ctx ends the wait and not the stream.
	//
	// Errors: Invalid when into is empty, Closed.
	Next(ctx context.Context, into []Event) (int, error)
	// Told is closed once the stream has told of every block of its snapshot, also while Next waits: from then on it
	// follows. It is closed from the start where no snapshot was asked for.
	//
	// Errors: Unsupported where the end of a snapshot cannot be told from a pause.
	Told() (<-chan struct{}, error)
	// Close ends the stream. It takes no context, so that a stream is an io.Closer: what it waits for, over a connection,
	// has a deadline of the client's own.
	Close() error
}
