package resp

import (
	"bytes"
	"context"
)

// Bounds of one SCAN. What it gives is read in steps, so that long keys end it early.
const (
	scanStep  = 64       // keys
	scanBytes = 64 << 10 // of keys in a reply, before the last step
	scanWork  = 32 << 20 // bytes of patterns gone over, before the last step; in that as many, or one key's
)

// count is how many keys the database has, those included that have expired and nobody looked at since.
func (db *database) count(ctx context.Context) (int64, error) {
	if !db.made.Load() {
		return 0, nil
	}
	return db.store.CountBlocks(ctx, db.heads)
}

// scan gives keys from cursor on, about count of them, and the cursor to go on from; 0
// when there are no more. want says how much work it was, at most pattern for each byte of the key. It walks the
// store's own listing of the database, step by step, whatever else there is, and keeps nothing from one step to the next.
func (db *database) scan(
	ctx context.Context, cursor uint64, count, pattern int, want func(key []byte) (yes bool, work int),
) (next uint64, keys [][]byte, err error) {
	if !db.made.Load() {
		return 0, nil, nil
	}
	step := scanStep
	if pattern > 0 {
		step = max(1, min(step, scanWork/(pattern*MaxKeyBytes)))
	}
	size, work := 0, 0
	for next = cursor; count > 0 && size < scanBytes && work < scanWork; {
		names, at, err := db.store.ListKeys(ctx, db.heads, next, min(count, step))
		if err != nil {
			return 0, nil, err
		}
		next = at
		if count -= len(names); len(names) > 0 {
			now := db.clock()
			if err := eachBlock(ctx, db.store, db.heads, names, func(_ int, b []byte, err error) {
				if err != nil || ctx.Err() != nil {
					return // gone since, or nobody waits for it
				}
				h, err := decodeHead(b)
				if err != nil || h.expired(now) {
					return
				}
				yes, took := want(h.key)
				if work += took; yes {
					keys = append(keys, bytes.Clone(h.key)) // else the value stays with it
					size += len(h.key)
				}
			}); err != nil {
				return 0, nil, err
			}
			if err := ctx.Err(); err != nil {
				return 0, nil, err
			}
		}
		if next == 0 || len(names) == 0 {
			break // the end; or much of what is others' was passed by, and the client is to ask again
		}
	}
	return next, keys, nil
}
