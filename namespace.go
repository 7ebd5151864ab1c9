package skep

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"
)

// NamespaceID is a namespace's number in one store. It is never reused. A purge
// empties a namespace; its number stays valid for new puts.
type NamespaceID uint32

// Class says what an acknowledgement means. The numbers are stored.
type Class uint8

const (
	// Cache blocks may be lost to a crash (a miss), never be wrong: a crash of the machine
	// loses what was put in the last second or so, a crash of the process (kill -9) the
	// last hundredth of a second, and four times as long as a sync of the catalog takes
	// where drives are busy. What was put before a Flush a crash of the process leaves.
	Cache Class = 0
	// Durable blocks survive a crash once committed, and the loss of Copies-1 devices.
	Durable Class = 1
)

func (c Class) String() string {
	switch c {
	case Cache:
		return "cache"
	case Durable:
		return "durable"
	}
	return fmt.Sprintf("class %d", uint8(c))
}

// Limits of names and copies.
const (
	MaxNameSize = 512 // bytes of a tenant, namespace or model name
	MaxCopies   = 4
)

// NamespaceSpec says whose blocks a namespace holds and what they look like.
type NamespaceSpec struct {
	Tenant  string `json:"tenant"`  // who pays: bytes and leases are counted here
	Name    string `json:"name"`    // unique within the tenant
	Model   string `json:"model"`   // fingerprint: weights revision, element type, RoPE scaling
	Shape   Shape  `json:"shape"`   //
	Class   Class  `json:"class"`   // what an acknowledgement means
	Copies  int    `json:"copies"`  // 1 to MaxCopies, each on another device; 0 means 1
	Chained bool   `json:"chained"` // blocks have parents, first writer wins; else keys stand alone, last writer wins
}

// Validate returns an Invalid error naming the first field outside its limits.
func (n NamespaceSpec) Validate() error {
	const op = "namespace"
	for _, f := range []struct{ field, value string }{{"tenant", n.Tenant}, {"name", n.Name}, {"model", n.Model}} {
		if f.field != "model" && f.value == "" {
			return Invalidf(op, f.field, "empty", fmt.Sprintf("1 to %d bytes", MaxNameSize))
		}
		if len(f.value) > MaxNameSize {
			return Invalidf(op, f.field+" length in bytes", len(f.value), fmt.Sprintf("at most %d", MaxNameSize))
		}
		if !utf8.ValidString(f.value) {
			return Invalidf(op, f.field, fmt.Sprintf("%q", f.value), "valid UTF-8")
		}
	}
	if n.Class != Cache && n.Class != Durable {
		return Invalidf(op, "class", n.Class, "cache or durable")
	}
	if n.Copies < 0 || n.Copies > MaxCopies {
		return Invalidf(op, "copies", n.Copies, fmt.Sprintf("1 to %d", MaxCopies))
	}
	return n.Shape.Validate()
}

// NamespaceInfo is a namespace as it stands.
type NamespaceInfo struct {
	ID NamespaceID `json:"id"`
	NamespaceSpec
	Created time.Time `json:"created"`
}

// Scope says whose blocks a call speaks of.
type Scope struct {
	Namespace NamespaceID
	Salt      Salt
}

// Namespacer makes, finds and deletes namespaces.
type Namespacer interface {
	// OpenNamespace returns the namespace with spec's tenant and name, making it when
	// it is not there; then it waits until that is durable. One that exists with another model, shape, class, number of
	// copies or order stays as it is.
	//
	// Errors: Invalid, Conflict (it exists and is another), Quota (the tenant has as many as it may).
	OpenNamespace(ctx context.Context, spec NamespaceSpec) (NamespaceInfo, error)
	// FindNamespace gives the namespace of that number.
	//
	// Errors: NotFound.
	FindNamespace(ctx context.Context, id NamespaceID) (NamespaceInfo, error)
	// Namespaces lists all, by number. There may be a million.
	Namespaces(ctx context.Context) ([]NamespaceInfo, error)
	// NamespacesOf lists a tenant's, by number.
	NamespacesOf(ctx context.Context, tenant string) ([]NamespaceInfo, error)
	// DeleteNamespace makes a namespace, and those that hold its clustered contexts, as if they
	// had never been: its blocks are purged, its name may be used again, for something else too,
	// and its number, which no other namespace gets, is NotFound. A block writer of it ends with
	// NotFound; a session that is under way goes on with what it has, or ends in misses. It waits until that is durable.
	//
	// Errors: NotFound.
	DeleteNamespace(ctx context.Context, id NamespaceID) error
}

// Namespace is a Store and one namespace of it, so that the common calls need not name it again. It is a value of its caller's,
// holds nothing and need not be closed.
type Namespace struct {
	NamespaceInfo
	store Store
	salt  Salt
}

// OpenNamespace opens a namespace of a Store, as the Store's OpenNamespace does.
func OpenNamespace(ctx context.Context, st Store, spec NamespaceSpec) (*Namespace, error) {
	info, err := st.OpenNamespace(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &Namespace{NamespaceInfo: info, store: st}, nil
}

// Salted is the same namespace under a salt.
func (n *Namespace) Salted(s Salt) *Namespace {
	salted := *n
	salted.salt = s
	return &salted
}

// Store is what the namespace is of.
func (n *Namespace) Store() Store { return n.store }

// Scope names the namespace, and the salt, in calls of the Store.
func (n *Namespace) Scope() Scope { return Scope{Namespace: n.ID, Salt: n.salt} }

// Lookup finds the longest prefix of a chain that can be restored and leases it for DefaultLease: see PrefixFinder.
func (n *Namespace) Lookup(ctx context.Context, keys []Key) (LookupResult, error) {
	return n.store.Lookup(ctx, &LookupRequest{Scope: n.Scope(), Keys: keys})
}

// Renew has a lease of a lookup end d from now: see Leaser.
func (n *Namespace) Renew(ctx context.Context, id LeaseID, d time.Duration) (Lease, error) {
	return n.store.Renew(ctx, id, d)
}

// Release ends a lease of a lookup: see Leaser.
func (n *Namespace) Release(ctx context.Context, id LeaseID) error { return n.store.Release(ctx, id) }

// Want says which of keys a put of them, bytes in all, would store: see Putter.
func (n *Namespace) Want(ctx context.Context, keys []Key, bytes int64) ([]Want, error) {
	return n.store.Want(ctx, &WantRequest{Scope: n.Scope(), Keys: keys, Bytes: bytes})
}

// Hint tells what is known of the future of keys: see Hinter.
func (n *Namespace) Hint(ctx context.Context, keys []Key, h Hint) (int, error) {
	return n.store.Hint(ctx, n.Scope(), keys, h)
}

// Put stores blocks, the bytes of PartKV, as the blocks of keys[from:] and waits until they are committed: see Putter. keys
// is the chain from its first block on, of which the blocks before from are stored already; in an unchained namespace it is
// any keys. A block that was declined is an error here, that of Stored; the results are given beside it, and the
// other blocks are stored.
//
// Errors: those of Putter.Put and of Stored; Invalid where keys[from:] are fewer than the blocks.
func (n *Namespace) Put(ctx context.Context, keys []Key, from int, blocks ...[]byte) ([]PutResult, error) {
	if from < 0 || from > len(keys) || len(blocks) > len(keys)-from {
		return nil, Invalidf("put", "first block", from, "0 or more, and no block without a key")
	}
	r := PutRequest{Scope: n.Scope(), Blocks: make([]Block, len(blocks))}
	if n.Chained && from > 0 {
		r.Parent, r.Depth, r.Ancestors = &keys[from-1], from, keys[:from-1]
	}
	for i, b := range blocks {
		r.Blocks[i] = Block{Key: keys[from+i], Parts: []Part{{Bytes: b}}}
	}
	results, err := n.store.Put(ctx, &r)
	if err == nil {
		err = Stored(results)
	}
	return results, err
}

// Load restores a chain, whose Scope it fills in, and says how many of the blocks that were asked for, from the first, have come
// whole: what follows is to be computed. each is as in the function Load; nil where the chain has a destination and that
// is all. Of a chain with a Compute, what was claimed has not come.
func (n *Namespace) Load(ctx context.Context, c Chain, each func(*Chunk) error) (blocks int, err error) {
	c.Scope = n.Scope()
	asked, _ := c.Blocks.In(len(c.Keys))
	missed := asked.To // the first block of which something did not come
	err = Load(ctx, n.store, &RestoreRequest{Chains: []Chain{c}}, func(ch *Chunk) error {
		if ch.Err != nil {
			missed = min(missed, ch.Block)
		}
		if each == nil {
			return nil
		}
		return each(ch)
	})
	if err != nil {
		return 0, err
	}
	return missed - asked.From, nil
}

// Delete removes blocks and says how many were there: see Deleter.
func (n *Namespace) Delete(ctx context.Context, keys ...Key) (int, error) {
	return n.store.Delete(ctx, n.Scope(), keys)
}
