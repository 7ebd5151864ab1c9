package resp

import (
	"context"
	"time"

	"github.com/skepkv/skep"
)

// value is what became of a value a peer sent: inline bytes, or pieces being stored.
type value struct {
	size   int64
	inline []byte
	id     pieceID
	piece  int64
	err    error // why it is not stored; its bytes were read off the connection all the same
	flight *flight
}

// wait returns when the value's pieces are stored, with why they are not.
func (v *value) wait() error {
	if v.flight != nil {
		if err := v.flight.wait(); err != nil && v.err == nil {
			v.err = err
		}
		v.flight = nil
	}
	return v.err
}

// head is the value under a key.
func (v *value) head(key []byte, expiry int64) *head {
	return &head{key: key, size: v.size, expiry: expiry, id: v.id, piece: v.piece, inline: v.inline}
}

// setOp is one key to be set.
type setOp struct {
	key      []byte
	value    *value
	expiry   int64 // ms since 1970; 0: none
	keepTTL  bool
	ifNone   bool // NX
	ifThere  bool // XX
	lockstep bool // of a connection that is told of no refusal

	done bool // it was set; false also when NX or XX said no
	err  error
}

func (op *setOp) bytes() int64 { return int64(len(op.key)) + op.value.size }

// set stores the ops in order. Every op has done or err afterwards, what is done is there, and no pieces are left
// that no head names. A key's next op begins when the one before is stored or refused: what
// was told as set stays when what comes after it is not.
func (db *database) set(ctx context.Context, ops []*setOp) {
	keys := make([][]byte, len(ops))
	for i, op := range ops {
		keys[i] = op.key
		op.err = op.value.wait()
	}
	defer db.lock(keys...)()
	for len(ops) > 0 {
		n := withoutRepeat(keys)
		db.setOnce(ctx, ops[:n], keys[:n])
		db.decline(ctx, ops[:n])
		ops, keys = ops[n:], keys[n:]
	}
}

// withoutRepeat is how many of keys come before one that was there already.
func withoutRepeat(keys [][]byte) int {
	seen := make(map[string]bool, min(len(keys), 64))
	for i, k := range keys {
		if seen[string(k)] {
			return i
		}
		seen[string(k)] = true
	}
	return len(keys)
}

// setOnce stores ops of different keys, their heads together in one put.
// REQUIRES: the locks of keys.
func (db *database) setOnce(ctx context.Context, ops []*setOp, keys [][]byte) {
	ctx = skep.Uncounted(ctx) // who sets asks nothing
	now := db.clock()
	old, oldErrs := db.stored(ctx, keys, false)
	var heads, before []*head
	var at []int
	for i, op := range ops {
		if op.err != nil {
			db.dropValue(op)
			continue
		}
		was, there := old[i], !absent(oldErrs[i]) // nil and there: it cannot be read
		there = there && (was == nil || !was.expired(now))
		if there && was != nil && (op.ifNone || op.ifThere || op.keepTTL) {
			there, _ = db.whole(ctx, was) // an answer that does not come is no
		}
		if op.ifNone && there || op.ifThere && !there {
			db.dropValue(op)
			continue
		}
		expiry := op.expiry
		if op.keepTTL && there {
			if was == nil {
				op.err = oldErrs[i]
				db.dropValue(op)
				continue
			}
			expiry = was.expiry
		}
		h := op.value.head(op.key, expiry)
		if _, op.err = db.complete(ctx, h); op.err != nil { // what was there stays
			db.dropValue(op)
			continue
		}
		heads, before, at = append(heads, h), append(before, was), append(at, i)
	}
	if len(heads) == 0 {
		return
	}
	errs := db.put(ctx, heads)
	for j, h := range heads {
		op := ops[at[j]]
		if op.err = errs[j]; op.err != nil {
			db.doom(h)
			continue
		}
		if was := before[j]; was != nil {
			db.doom(was)
		}
		lost, err := db.complete(ctx, h)
		if lost {
			// Until it is deleted it is a miss for who reads it.
			_, _ = db.store.Delete(ctx, skep.Scope{Namespace: db.heads}, []skep.Key{skep.KeyOf(h.key)})
			db.doom(h)
		}
		if op.done, op.err = err == nil, err; op.done {
			db.replaced(ctx, h)
		}
	}
}

// complete says why not all pieces of a value that is being set are there, and whether some are known to be lost. It is
// asked before the head is stored, and once more before the value is told as set: pieces that were stored can have been
// purged or evicted since. A purge that comes later is of a value that was set before it.
func (db *database) complete(ctx context.Context, h *head) (lost bool, err error) {
	whole, err := db.whole(ctx, h)
	if err != nil || whole {
		return false, err
	}
	return true, errPartGone
}

// errPartGone refuses a value that lost a piece before it was set.
var errPartGone = &tryAgain{time.Second, "part of the value was flushed, purged or evicted while the rest was stored"}

// dropValue gives up an op's pieces.
func (db *database) dropValue(op *setOp) {
	if op.value.piece != 0 {
		db.doom(op.value.head(op.key, 0))
	}
}

// expire sets a key's expiry (0: none) and says whether the key is there and whether
// it had one. A time that has passed deletes it.
func (db *database) expire(ctx context.Context, key []byte, expiry int64, when func(*head) bool) (there, had, changed bool, err error) {
	defer db.lock(key)()
	ctx = skep.Uncounted(ctx)
	h, err := db.head(ctx, key)
	if err != nil {
		if isMiss(err) {
			err = nil
		}
		return false, false, false, err
	}
	had = h.expiry != 0
	if when != nil && !when(h) {
		return true, had, false, nil
	}
	next := *h
	next.expiry = expiry
	if next.expired(db.clock()) {
		_, err := db.deleteLocked(ctx, [][]byte{key}, func(*head) bool { return true })
		return true, had, err == nil, err
	}
	if err := db.putOver(ctx, &next); err != nil {
		if isMiss(err) {
			return false, false, false, nil
		}
		return true, had, false, err
	}
	return true, had, true, nil
}

// putOver stores a head that was made of the one that is stored; NotFound when that has been purged. A head that is put
// would bring back what was purged after it was read: the block is begun first, and what is begun before a purge is not
// stored after it.
// REQUIRES: the lock of its key.
func (db *database) putOver(ctx context.Context, h *head) error {
	b, scope, name := h.encode(), skep.Scope{Namespace: db.heads}, skep.KeyOf(h.key)
	w, err := db.store.Begin(ctx, &skep.BeginRequest{Scope: scope, Key: name, Manifest: skep.Manifest{{Name: skep.PartKV, Size: int64(len(b))}}})
	if err != nil {
		return err
	}
	defer func() { _ = w.Abort(context.WithoutCancel(ctx)) }() // of a committed block it is nothing
	found, err := db.store.Lookup(ctx, &skep.LookupRequest{Scope: scope, Keys: []skep.Key{name}, Lease: skep.NoLease})
	if err == nil && found.Blocks == 0 {
		err = errNone
	}
	if err == nil {
		err = w.Write(ctx, skep.PartKV, 0, b)
	}
	if err != nil {
		return err
	}
	r, err := w.Commit(ctx, skep.AckCommitted)
	if err == nil && r.Outcome == skep.Declined {
		err = db.declined("expire", db.heads, name, r.Reason)
	}
	return err
}
