package catalog

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// MaxRecordBytes is the longest block record.
const MaxRecordBytes = 1 << 20

// Batch is a set of changes that happen together. It is for one goroutine and one
// Commit. Setters copy what they are given; the first error stays and is returned
// by Commit, which then changes nothing.
type Batch struct {
	b    *pebble.Batch
	key  []byte
	root bool // it sets the root row
	err  error
}

// NewBatch starts an empty batch.
func (c *Catalog) NewBatch() *Batch {
	// Not c.db.NewBatch: a failed catalog must not touch Pebble, and this is the same.
	return &Batch{b: new(pebble.Batch), key: make([]byte, 0, 32)}
}

// End ends a batch that is not to be committed.
func (b *Batch) End() { b.b = nil }

// Len is how many changes the batch holds.
func (b *Batch) Len() int { return int(b.b.Count()) }

// PutBlock sets a block row.
func (b *Batch) PutBlock(l layout.Location, rec []byte) {
	if len(rec) > MaxRecordBytes {
		b.fail(skep.Invalidf("put block row", "record length in bytes", len(rec), fmt.Sprintf("at most %d", MaxRecordBytes)))
		return
	}
	b.key = appendBlockKey(b.key[:0], l)
	b.set(b.key, rec)
}

// DeleteBlock removes a block row; one that is not there is not an error.
func (b *Batch) DeleteBlock(l layout.Location) {
	b.key = appendBlockKey(b.key[:0], l)
	b.fail(b.b.Delete(b.key, nil))
}

// DeleteGroupBlocks removes all block rows of a group, however many, at the cost of
// one. Rows put later, in this batch too, stay.
func (b *Batch) DeleteGroupBlocks(group uint32) {
	r := groupRange(group)
	b.fail(b.b.DeleteRange(r.lower, r.upper, nil))
}

// PutGroup sets a group's state.
func (b *Batch) PutGroup(g *GroupState) {
	if g.SegmentBytes < 0 || g.Copies < 0 {
		b.fail(skep.Invalidf("put group row", "segment bytes or copies", "negative", "0 or more"))
		return
	}
	b.seal(key32(rowGroup, g.Group), g.encode(), nil)
}

// DeleteGroup removes a group's row.
func (b *Batch) DeleteGroup(group uint32) { b.fail(b.b.Delete(key32(rowGroup, group), nil)) }

// PutNamespace sets a namespace.
func (b *Batch) PutNamespace(n *Namespace) {
	body, err := n.encode()
	b.seal(key32(rowNamespace, uint32(n.ID)), body, err)
}

// DeleteNamespace removes a namespace. Its blocks are Purge's business.
func (b *Batch) DeleteNamespace(id skep.NamespaceID) {
	b.fail(b.b.Delete(key32(rowNamespace, uint32(id)), nil))
}

// PutPurge notes a purge.
func (b *Batch) PutPurge(p Purge) { b.seal(purgeKey(p), p.encode(), nil) }

// DeletePurgesOf removes the rows of all purges of an instance's salts.
func (b *Batch) DeletePurgesOf(instance uint32) { b.deleteRange(under(key32(rowPurge, instance))) }

// DeletePurge removes a purge's row, when nothing it covers is left anywhere.
func (b *Batch) DeletePurge(p Purge) { b.fail(b.b.Delete(purgeKey(p), nil)) }

// PutIntent notes entries that are to be written to the devices' logs, under a number
// that no other intent has: a crash between this commit and that write leaves it to the
// next open. Entries are opaque bytes of package segment.
func (b *Batch) PutIntent(n uint64, entries []byte) { b.seal(key64(rowIntent, n), entries, nil) }

// DeleteIntent removes an intent that was carried out.
func (b *Batch) DeleteIntent(n uint64) { b.fail(b.b.Delete(key64(rowIntent, n), nil)) }

// PutDevice sets a device's state.
func (b *Batch) PutDevice(d *DeviceState) {
	if d.Size < 0 || d.SegmentBytes < 0 {
		b.fail(skep.Invalidf("put device row", "size or segment bytes", "negative", "0 or more"))
		return
	}
	b.seal(key16(rowDevice, d.Index), d.encode(), nil)
}

// PutOwner sets whose the devices are.
func (b *Batch) PutOwner(o *Owner) {
	body, err := json.Marshal(o)
	b.seal([]byte{rowOwner}, body, err)
}

// PutStore sets the root.
func (b *Batch) PutStore(s StoreState) {
	b.root = true
	b.seal([]byte{rowStore}, s.encode(), nil)
}

func (b *Batch) seal(key, body []byte, err error) {
	if err != nil {
		b.fail(fmt.Errorf("encode row %q: %w", key, err))
		return
	}
	b.set(key, seal(key, body))
}

func (b *Batch) set(key, value []byte) { b.fail(b.b.Set(key, value, nil)) }

func (b *Batch) fail(err error) {
	if b.err == nil && err != nil {
		b.err = err
	}
}

// Commit makes the batch's changes, all or none, and ends the batch whatever comes
// of it. With sync it returns nil once they survive a crash of the machine.
//
// After skep.Deadline or skep.Failed it is not known whether they happened; after a
// Deadline they may still happen later: those of root rows in the order of their commits. After
// skep.Full, skep.ReadOnly, skep.Closed and errors of the batch's own they did not.
func (c *Catalog) Commit(ctx context.Context, b *Batch, sync bool) error {
	const op = "commit"
	if b.b == nil {
		return skep.Invalidf(op, "batch", "committed", "a new one")
	}
	batch := b.b
	b.b = nil
	if b.err != nil {
		return translate(op, b.err)
	}
	if c.readOnly {
		return &skep.Error{Op: op, Kind: skep.ReadOnly, Field: "catalog"}
	}
	if err := c.refuse(op); err != nil {
		return err
	}
	if sync && batch.Empty() {
		// Pebble does nothing for an empty batch; a synced one is asked for to make
		// the batches before it durable.
		if err := batch.LogData(nil, nil); err != nil {
			return translate(op, err)
		}
	}
	if err := c.enter(op); err != nil {
		return err
	}
	if err := c.slot(ctx, op); err != nil {
		c.leave()
		return err
	}
	await, through := c.rootTurn(b.root)
	return c.run(ctx, op, func(*visitor) error {
		defer func() { <-c.commits }()
		defer through()
		if err := await(); err != nil {
			return err
		}
		o := pebble.NoSync
		if sync {
			o = pebble.Sync
		}
		if err := c.db.Apply(batch, o); err != nil {
			if noSpace(err) { // not skep.Full, after which nothing has happened
				return &skep.Error{Op: op, Kind: skep.Failed, Field: "catalog", Err: err}
			}
			return err
		}
		return batch.Close()
	})
}

// rootTurn keeps commits of the root row in the order they were begun, also where a caller left
// before its own was through: an earlier row that came later would take back what others rely on.
// The commit awaits its turn, and says when it is through.
func (c *Catalog) rootTurn(root bool) (await func() error, through func()) {
	if !root {
		return func() error { return nil }, func() {}
	}
	c.rootMu.Lock()
	defer c.rootMu.Unlock()
	before, mine := c.rootDone, make(chan struct{})
	c.rootDone = mine
	return func() error {
		if before == nil {
			return nil
		}
		select {
		case <-before:
			return nil
		case <-c.failed:
			return c.failure("commit")
		}
	}, func() { close(mine) }
}

// slot waits for one of the commits in flight to end. When none has for too long, this one has
// not begun, and the error says that it did not happen.
func (c *Catalog) slot(ctx context.Context, op string) error {
	if err := ctx.Err(); err != nil {
		return waitError(op, err)
	}
	select {
	case c.commits <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(c.timeout)
	defer timer.Stop()
	select {
	case c.commits <- struct{}{}:
		return nil
	case <-c.failed:
		return c.failure(op)
	case <-ctx.Done():
		return waitError(op, ctx.Err())
	case <-timer.C:
		return &skep.Error{Op: op, Kind: skep.Full, Field: "catalog's commits in flight", Value: maxCommits,
			Limit: "an end of one within " + c.timeout.String()}
	}
}
