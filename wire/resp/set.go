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
	key     []byte
	value   *value
	expiry  int64 // ms since 1970; 0: none
	keepTTL bool
	ifNone  bool // NX
	ifThere bool // XX

	done bool // it was set; false also when NX or XX said no
	err  error
}

// set stores the ops in order, heads together in one put. Every op has done or err
// afterwards, and no pieces are left that no head names.
func (db *database) set(ctx context.Context, ops []*setOp) {
	keys := make([][]byte, len(ops))
	for i, op := range ops {
		keys[i] = op.key
		op.err = op.value.wait()
	}
	defer db.lock(keys...)()
	now := db.clock()
	old, oldErrs := db.stored(ctx, keys)
	latest := map[string]*head{} // by key, through the ops
	for i, op := range ops {
		if !absent(oldErrs[i]) {
			latest[string(op.key)] = old[i] // nil: there, and not readable
		}
	}
	var heads []*head
	var at []int
	for i, op := range ops {
		if op.err != nil {
			db.dropValue(op)
			continue
		}
		was, there := latest[string(op.key)]
		there = there && (was == nil || !was.expired(now))
		if there && was != nil && (op.ifNone || op.ifThere) && !latestIn(heads, was) {
			there = db.whole(ctx, was)
		}
		if op.ifNone && there || op.ifThere && !there {
			db.dropValue(op)
			continue
		}
		expiry := op.expiry
		if op.keepTTL && there && was != nil {
			expiry = was.expiry
		}
		h := op.value.head(op.key, expiry)
		if was != nil && latestIn(heads, was) { // set twice in one batch: the last stays
			j := indexOf(heads, was)
			ops[at[j]].done = true
			db.doom(heads[j])
			heads = append(heads[:j], heads[j+1:]...)
			at = append(at[:j], at[j+1:]...)
		}
		latest[string(op.key)] = h
		heads, at = append(heads, h), append(at, i)
	}
	if len(heads) == 0 {
		return
	}
	before := map[string]*head{}
	for i, h := range old {
		if h != nil {
			before[string(keys[i])] = h
		}
	}
	errs := db.put(ctx, heads)
	for j, h := range heads {
		op := ops[at[j]]
		if op.err = errs[j]; op.err != nil {
			db.doom(h)
			continue
		}
		op.done = true
		if was := before[string(op.key)]; was != nil {
			db.doom(was)
		}
		if h.expiry != 0 {
			db.hintTTL(ctx, h, now)
		}
	}
}

func latestIn(heads []*head, h *head) bool { return indexOf(heads, h) >= 0 }

func indexOf(heads []*head, h *head) int {
	for i := range heads {
		if heads[i] == h {
			return i
		}
	}
	return -1
}

// dropValue gives up an op's pieces.
func (db *database) dropValue(op *setOp) {
	if op.value.piece != 0 {
		db.doom(op.value.head(op.key, 0))
	}
}

// hintTTL tells the store until when the value is worth keeping. A hint that is
// refused changes nothing that is right.
func (db *database) hintTTL(ctx context.Context, h *head, now time.Time) {
	ttl := time.UnixMilli(h.expiry).Sub(now)
	if h.piece == 0 || ttl <= 0 {
		return
	}
	_, _ = db.store.Hint(ctx, skep.Scope{Namespace: db.data}, h.pieceKeys(0, h.pieces()), skep.Hint{TTL: ttl})
}

// expire sets a key's expiry (0: none) and says whether the key is there and whether
// it had one. A time that has passed deletes it.
func (db *database) expire(ctx context.Context, key []byte, expiry int64, when func(*head) bool) (there, had, changed bool, err error) {
	defer db.lock(key)()
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
	if err := db.put(ctx, []*head{&next})[0]; err != nil {
		return true, had, false, err
	}
	db.hintTTL(ctx, &next, db.clock())
	return true, had, true, nil
}
