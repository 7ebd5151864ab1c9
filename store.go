package skep

import (
	"context"
	"time"
)

// Store is the whole of skep: the embedded engine, the in-memory Store, the network client and GPU memory in front of
// another Store are each one. It is one interface, told in parts of one subject each; ask for a part where that is all
// you need.
//
// What a Store cannot do it answers with an error of kind Unsupported that names the call, at once: embed
// UnsupportedStore to be a Store that can do less. A wrapper embeds the Store it wraps, so that nothing is lost on the
// way, and has Unwrap (see As).
//
// What is wrong whatever a Store holds is refused first, as Invalid.
//
// Besides what is said at each call, every call returns Closed once the Store is closed, Deadline when ctx ended first,
// ReadOnly when it would change a Store that was opened for reading, and Failed once a Store takes no more changes. One
// that goes over a connection may return Unavailable, Overloaded and Denied besides.
type Store interface {
	Namespacer
	PrefixFinder
	Leaser
	Putter
	Restorer
	Deleter
	Hinter
	Lister
	Sidecars
	Allocator
	Locator
	Observer
	// Close refuses new work, ends what waits, and returns when everything is back. It takes no context, so that a Store
	// is an io.Closer: what it waits for has deadlines of the Store's own. Closing twice is not an error.
	//
	// Errors: NotReleased when a drive, or a device, still holds memory.
	Close() error
}

// As finds a T among st and the Stores it wraps, outermost first: *store.Store, say, for what only the embedded engine
// has. A wrapper is seen through by its method Unwrap() Store.
func As[T any](st Store) (found T, ok bool) {
	for st != nil {
		if found, ok = any(st).(T); ok {
			return found, true
		}
		w, wraps := st.(interface{ Unwrap() Store })
		if !wraps {
			break
		}
		st = w.Unwrap()
	}
	return found, false
}

// Deleter removes blocks.
type Deleter interface {
	// Delete removes blocks, leased ones too, and says how many of keys were there. Their
	// descendants stay hidden until a block of the same key is put again. It waits until the deletion is as durable as
	// the namespace's class says.
	//
	// Errors: Invalid, NotFound (no such namespace), Full (there is no room to note what was deleted).
	Delete(ctx context.Context, s Scope, keys []Key) (int, error)
	// Purge makes everything of a tenant, a model, a namespace or a salt invisible at once, whatever
	// the number of blocks; space comes back as groups are cleaned. Nothing purged is
	// ever found again, not after a crash or a rebuild either. It waits until that is durable.
	//
	// Errors: Invalid, NotFound (no such namespace).
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
	// Pin keeps the blocks at least this long, within the tenant's pin budget; at most MaxPin. A shorter one changes
	// nothing: a pin ends with its time, by Drop, or with its block (Delete, Purge).
	Pin     time.Duration
	NextUse time.Duration // expected next use, from now
	Steps   int           // steps to execution of the program that uses it (KVFlow)
	TTL     time.Duration // worth nothing after this long (Continuum's time to live)
	Program string        // whose blocks these are, for Stats.Programs
	Drop    bool          // worth nothing from now on, and pinned no more; not with Pin
}

// Validate refuses a hint that is out of its limits, or says two things.
func (h Hint) Validate() error {
	const op, most = "hint", 365 * 24 * time.Hour
	for _, f := range []struct {
		field string
		d     time.Duration
		max   time.Duration
	}{{"pin", h.Pin, MaxPin}, {"next use", h.NextUse, most}, {"time to live", h.TTL, most}} {
		if f.d < 0 || f.d > f.max {
			return Invalidf(op, f.field, f.d, "0 to "+f.max.String())
		}
	}
	switch {
	case h.Steps < 0 || h.Steps > 1<<20:
		return Invalidf(op, "steps", h.Steps, "0 to 1048576")
	case len(h.Program) > MaxNameSize:
		return Invalidf(op, "program length in bytes", len(h.Program), MaxNameSize)
	case h.Pin > 0 && h.Drop:
		return Invalidf(op, "pin and drop", "both set", "one of them")
	}
	return nil
}

// MaxPin is the longest a hint may pin a block.
const MaxPin = 24 * time.Hour

// Hinter takes hints. They change what is kept, never what is right.
type Hinter interface {
	// Hint applies h to those of keys that are stored and says how many. It does no I/O.
	//
	// Errors: Invalid, NotFound (no such namespace), Quota (pinning would pass the tenant's pin budget, and nothing is
	// pinned; or the tenant's hints would pass its part of all), Full (as many blocks have hints, or pins, as may).
	Hint(ctx context.Context, s Scope, keys []Key, h Hint) (int, error)
}

// ListPlaceBits is how many bits a place in a listing has at most, where one Store has all of the keys.
const ListPlaceBits = 48

// Lister tells what one namespace holds without a look at all others.
type Lister interface {
	// CountBlocks is how many blocks the namespace holds. It does no I/O.
	//
	// Errors: NotFound (no such namespace).
	CountBlocks(ctx context.Context, space NamespaceID) (int64, error)
	// ListKeys gives keys of the namespace's blocks, at most n, from the place that an earlier call gave
	// (0: the beginning), and the place to go on from (0: that was all). A place of a Store of one machine has
	// ListPlaceBits; one of several such has a number of theirs above. It does bounded work,
	// whatever the store holds, and may give none and a place to go on from. A block that is stored all
	// along is told of at least once; salted ones are left out. It waits for reads of the catalog.
	//
	// Errors: Invalid, NotFound (no such namespace).
	ListKeys(ctx context.Context, space NamespaceID, from uint64, n int) (keys []Key, next uint64, err error)
}

// StoredBlock is what a block of one namespace is, as who copies it elsewhere needs it.
type StoredBlock struct {
	Key         Key
	First       Key // of the first block of its group
	Parent      *Key
	Depth       int // blocks before it in its chain
	ValidTokens int // of a partial tail; 0: all
	Name        []byte
	Manifest    Manifest
}

// Memory is memory the store lends, aligned to 4 KiB and registered with its drives
// where they can.
type Memory interface {
	Bytes() []byte
	// Release gives it back. The bytes must not be touched afterwards. It does not wait.
	Release()
}

// Allocator gives memory that restores and puts use without a copy.
type Allocator interface {
	// Alloc lends n bytes out of the I/O budget. It waits until some come free.
	//
	// Errors: Invalid, NoMemory (more than the budget, or none came free before ctx ended).
	Alloc(ctx context.Context, n int64) (Memory, error)
	// Register makes memory of the caller's, shared with another process, say, as quick to restore into as the Store's own.
	// Memory that is not registered works too, for more CPU. mem's address and length are multiples of 4 KiB; it must stay
	// mapped until unregister has returned and every session that used it is closed. Neither waits for anything but the
	// kernel, which pins the pages.
	//
	// Errors: Invalid, Unsupported (no drive can use it).
	Register(mem []byte) (unregister func(), err error)
}

// Locator says where a Store's drives have its blocks, for those who lay data out by drive (package store/sparse). Its calls answer
// from memory and do not wait: a Store that would have to ask somebody is Unsupported.
type Locator interface {
	// DeviceCount is how many drives there are.
	DeviceCount() (int, error)
	// DeviceOf is the drive, from 0, on which the block of key begins now. Cleaning may move it.
	//
	// Errors: NotFound (no such namespace, or the block is not on a drive).
	DeviceOf(s Scope, key Key) (int, error)
}
