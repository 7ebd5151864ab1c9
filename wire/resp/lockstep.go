package resp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/watch"
)

// lockstepWait is how long a command of a lockstep connection waits for memory and for its tenant's rate, all its
// waits together, before the connection is closed.
const lockstepWait = 5 * time.Second

// errHungUp ends a lockstep connection in place of a reply that its client would not know from another.
var errHungUp = errors.New("hung up in place of a reply")

// ServeLockstep is Serve for clients that read replies of the lengths they expect and never find their place again:
// five bytes for a SET, four for an EXISTS, for a GET the header that the value they expect has. An error, which is
// longer, would shift all that follows, and a later GET would take the value of another key. See the package's story.
func (s *Server) ServeLockstep(l net.Listener) error { return s.accept(l, true) }

// hangUp ends a lockstep connection, err being what another one would have been told.
func (c *conn) hangUp(err error) error {
	c.s.stats.hungUp.Add(1)
	c.s.o.Log.Warn("lockstep connection closed in place of a reply", "id", c.id, "tenant", c.identity.Tenant, "error", err)
	return fmt.Errorf("%w: %w", errHungUp, err)
}

// patience is how much longer this command may wait for what it lacks: d, but on a lockstep connection, which is told
// of no refusal, what is left of lockstepWait.
func (c *conn) patience(d time.Duration) time.Duration {
	if !c.lockstep {
		return d
	}
	return max(c.s.o.lockstepWait-c.waited, 0)
}

// allow takes a command, or n bytes, out of the tenant's rate. A lockstep connection waits for that.
func (c *conn) allow(requests int, n int64) error {
	for {
		wait, ok := c.identity.Limits().Admit(requests, n)
		if ok {
			return nil
		}
		left := c.patience(0)
		if left == 0 {
			return &tryAgain{wait, "over the tenant's rate"}
		}
		began := time.Now()
		select {
		case <-time.After(min(wait, left)):
		case <-c.ctx.Done():
			return c.ctx.Err()
		}
		c.waits(began)
	}
}

// waits notes what the command has waited since it began to.
func (c *conn) waits(began time.Time) {
	took := time.Since(began)
	c.waited, c.due = c.waited+took, c.due.Add(took)
}

// noOnes answers n EXISTS, for which there is err to tell.
func (c *conn) noOnes(err error, n int) error {
	if !c.lockstep {
		return c.replyAll(err, n, false)
	}
	for range n {
		c.int(0)
	}
	c.outcome = watch.Error
	return c.flushIfLarge()
}

// isDeclined says that a value is not wanted, and that it would not be soon either.
func isDeclined(err error) bool {
	switch skep.KindOf(err) {
	case skep.Full, skep.ReadOnly, skep.Quota, skep.Admission,
		skep.Denied: // the key's node lacks an encryption key
		return true
	}
	return errors.Is(err, errPartGone)
}

// decline has those ops of a lockstep connection that were declined be done as far as their client is told: what was
// there under their keys is not any more, so nobody takes it for what was set.
// REQUIRES: the locks of their keys.
func (db *database) decline(ctx context.Context, ops []*setOp) {
	for _, op := range ops {
		if !op.lockstep || op.err == nil || !isDeclined(op.err) {
			continue
		}
		if _, err := db.deleteLocked(ctx, [][]byte{op.key}, func(*head) bool { return true }); err != nil {
			op.err = err
			continue
		}
		db.server.stats.declined.Add(1)
		op.done, op.err = true, nil
	}
}

// told is of which lengths the values of keys are that lockstep clients of a tenant set, found or got: who finds such a
// key gone waits for the header that its value had. A key takes the place of another one with the same slot.
type told [1 << 16]atomic.Uint64

// slot gives a key's place, and what stands there but for the lowest byte, which is its value's digits.
func (t *told) slot(number int, key []byte) (at *atomic.Uint64, is uint64) {
	name := skep.KeyOf(key)
	return &t[binary.LittleEndian.Uint16(name[:])^uint16(number)], binary.LittleEndian.Uint64(name[2:]) &^ 0xff
}

// digits is how many a value's size has; its header has three bytes more.
func digits(size int64) int { return len(strconv.FormatInt(size, 10)) }

// expects notes that the client takes the key's value to be of that size.
func (c *conn) expects(key []byte, size int64) {
	if !c.lockstep {
		return
	}
	t, n := c.tenant, digits(size)
	t.mu.Lock()
	if t.told == nil {
		t.told = new(told)
	}
	known := t.told
	t.digits[c.identity.Name] |= 1 << n
	t.mu.Unlock()
	at, is := known.slot(c.number, key)
	at.Store(is | uint64(n))
}

// expected is how many digits the size has that the client takes the key's value to be of: that of the head which is
// there still (h), or was told of, or what all values of the credential have. 0: nobody knows.
func (c *conn) expected(key []byte, h *head) int {
	if h != nil {
		return digits(h.size)
	}
	t := c.tenant
	t.mu.Lock()
	known, all := t.told, t.digits[c.identity.Name]
	t.mu.Unlock()
	if known != nil {
		at, is := known.slot(c.number, key)
		if word := at.Load(); word&^0xff == is && word != 0 {
			return int(word & 0xff)
		}
	}
	if bits.OnesCount16(all) == 1 {
		return bits.TrailingZeros16(all)
	}
	return 0
}

// missInStep answers a GET for which there is no value by a nil as long as the header its client waits for. Where that
// is not known the connection is closed.
func (c *conn) missInStep(o *outgoing) error {
	n := c.expected(o.key, o.h)
	if n < 2 { // "$-1" has two
		return c.hangUp(errNone)
	}
	if c.outcome == watch.OK {
		c.outcome = watch.Miss
	}
	c.s.stats.padded.Add(1)
	c.out = fmt.Appendf(c.out, "$-%0*d\r\n", n-1, 1)
	return c.flushIfLarge()
}
