package resp

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/wire/auth"
)

// flight is the puts of one value's pieces under way.
type flight struct {
	wg  sync.WaitGroup
	mu  sync.Mutex
	err error
}

func (f *flight) fail(err error) {
	f.mu.Lock()
	if f.err == nil {
		f.err = err
	}
	f.mu.Unlock()
}

func (f *flight) wait() error {
	f.wg.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// receive reads a value of n bytes off the connection. A small one is kept, while those of
// the command are no more than heldBytes together; a larger one is read piece by piece into the store's own memory and put from there while the
// next piece arrives. An error is of the connection; what the store refuses is in the
// value, and its bytes are read and dropped.
func (c *conn) receive(n int64) (*value, error) {
	v := &value{size: n}
	if err := c.mayReceive(n); err != nil {
		v.err = err
		return v, c.discard(n)
	}
	c.taken += n
	if n == 0 || n <= inlineBytes && c.held+n <= heldBytes {
		c.held += n
		if err := c.expectMore(n, 0); err != nil {
			return v, err
		}
		v.inline = make([]byte, n)
		_, err := io.ReadFull(c.in, v.inline)
		return v, err
	}
	v.id, v.piece, v.flight = ids(), pieceBytes, &flight{}
	h := v.head(nil, 0)
	for i := range h.pieces() {
		size := h.pieceSize(i)
		if err := c.receivePiece(v, i, size); err != nil {
			return v, err
		}
	}
	return v, nil
}

// mayReceive says why a value is not wanted, before any of it is read.
func (c *conn) mayReceive(n int64) error {
	if err := c.identity.Check(c.s.o.Wall(), auth.Write); err != nil {
		return err
	}
	if err := c.allow(0, n); err != nil {
		return err
	}
	if _, err := c.databaseToSet(); err != nil {
		return err
	}
	return nil
}

// receivePiece reads one piece and starts its put. The piece's memory and its share of
// the budget are held until the put ends.
func (c *conn) receivePiece(v *value, i int, size int64) error {
	f, began := v.flight, time.Now()
	f.mu.Lock()
	failed := f.err != nil
	f.mu.Unlock()
	if failed {
		return c.discard(size)
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.patience(c.s.o.ShedAfter))
	by, takes := c.s.receiving.of(c.identity.Limits()), max(size, layout.PageSize) // the store's memory is in pages
	err := c.s.receiving.Acquire(ctx, by, takes)
	cancel()
	c.waited += time.Since(began)
	if err != nil {
		c.s.stats.shed.Add(1)
		f.fail(&tryAgain{c.s.o.ShedAfter, "no memory to receive into"})
		return c.discard(size)
	}
	ctx, cancel = context.WithTimeout(c.ctx, c.patience(c.s.o.OpTimeout))
	mem, err := c.s.store.Alloc(ctx, size)
	cancel()
	if err != nil {
		c.s.receiving.Release(by, takes)
		f.fail(err)
		return c.discard(size)
	}
	done := func() {
		mem.Release()
		c.s.receiving.Release(by, takes)
	}
	buf := mem.Bytes()[:size]
	if err := c.expectMore(size, time.Since(began)); err != nil {
		done()
		return err
	}
	if _, err := io.ReadFull(c.in, buf); err != nil {
		done()
		return err
	}
	db := c.db
	scope := skep.Scope{Namespace: db.data}
	f.wg.Add(1)
	go func() {
		defer f.wg.Done()
		ctx, cancel := context.WithTimeout(c.ctx, c.s.o.OpTimeout) // from now: the peer took its own time to send
		defer cancel()
		r := &skep.PutRequest{Scope: scope, Released: done, Blocks: []skep.Block{{Key: v.id.key(i), Parts: []skep.Part{{Bytes: buf}}}}}
		results, err := c.s.store.Put(ctx, r)
		err, held := skep.Held(err)
		if !held { // else drives have it yet
			done()
		}
		if err == nil && results[0].Outcome == skep.Declined {
			err = db.declined("set", scope.Namespace, r.Blocks[0].Key, results[0].Reason)
		}
		if err != nil {
			f.fail(err)
		}
	}()
	return nil
}

// discard reads n bytes off the connection and drops them.
func (c *conn) discard(n int64) error {
	for n > 0 {
		if err := c.expectMore(min(n, pieceBytes), 0); err != nil {
			return err
		}
		step, err := c.in.Discard(int(min(n, pieceBytes)))
		n -= int64(step)
		if err != nil {
			return err
		}
	}
	return nil
}

// tryAgain refuses for now and says when to come back. Clients that know the word
// (go-redis among them) do so by themselves.
type tryAgain struct {
	after time.Duration
	why   string
}

func (e *tryAgain) Error() string { return e.why }
