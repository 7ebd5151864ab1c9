package resp

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/auth"
)

// budget is memory that connections share, and how much of it they hold. Who waits for some is
// served after those of its tenant who came before; of several tenants none gets so much that
// another finds nothing.
type budget struct {
	pool    auth.Pool
	mu      sync.Mutex
	waiting []*waiter // in order of arrival
}

type waiter struct {
	by    *auth.Held
	n     int64
	ready chan struct{} // closed when it has what it waits for
}

func newBudget(n int64) *budget { return &budget{pool: auth.Pool{Limit: n}} }

// of is a tenant's part.
func (b *budget) of(t *auth.Tenant) *auth.Held { return b.pool.Of(t) }

// Acquire waits for n bytes.
func (b *budget) Acquire(ctx context.Context, by *auth.Held, n int64) error {
	b.mu.Lock()
	if b.takeLocked(by, n) {
		b.mu.Unlock()
		return nil
	}
	w := &waiter{by, n, make(chan struct{})}
	b.waiting = append(b.waiting, w)
	b.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.waiting, w); i >= 0 {
		b.waiting = slices.Delete(b.waiting, i, i+1)
	} else { // it came at the same time
		by.Give(n)
	}
	b.serveLocked() // those behind it
	return &skep.Error{Op: "wait for memory", Kind: skep.Deadline, Err: ctx.Err()}
}

// TryAcquire takes n bytes if they are there.
func (b *budget) TryAcquire(by *auth.Held, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.takeLocked(by, n)
}

// TryPart takes what take says it wants of at most a quarter of what is free, if that leaves keep, and says whether it has it.
func (b *budget) TryPart(by *auth.Held, keep int64, take func(most int64) int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	free := b.pool.Limit - b.pool.Used()
	n := take(free / 4)
	return free-n >= keep && b.takeLocked(by, n)
}

func (b *budget) takeLocked(by *auth.Held, n int64) bool {
	return !slices.ContainsFunc(b.waiting, func(w *waiter) bool { return w.by == by }) && by.Take(n)
}

// Release gives n bytes back.
func (b *budget) Release(by *auth.Held, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	by.Give(n)
	b.serveLocked()
}

// serveLocked gives to those who wait, in order; a tenant's that does not fit yet has its others wait too.
func (b *budget) serveLocked() {
	held := map[*auth.Held]bool{}
	b.waiting = slices.DeleteFunc(b.waiting, func(w *waiter) bool {
		if held[w.by] || !w.by.Take(w.n) {
			held[w.by] = true
			return false
		}
		close(w.ready)
		return true
	})
}

// inlet is a connection as its commands are read. Before more is read, what is held of them is charged.
type inlet struct{ c *conn }

func (in inlet) Read(b []byte) (int, error) {
	if err := in.c.claim(); err != nil {
		return 0, err
	}
	return in.c.raw.Read(b)
}

const (
	uncharged = 64 << 10 // bytes a connection may hold of commands on its own account
	argBytes  = 128      // that an argument takes besides those of its own
)

// holds is how many bytes the connection holds of the commands that are being read and answered, large values left out.
func (c *conn) holds() int64 {
	return int64(cap(c.p.buf)) + argBytes*int64(len(c.p.at)) + c.held + c.keys
}

// claim charges what the connection holds to the memory that all receive into, and waits for that. It leaves a piece's
// of it, so that any command can be had by whoever has it alone.
func (c *conn) claim() error {
	n := (c.holds() + uncharged - 1) / uncharged * uncharged
	if n <= max(c.claimed, uncharged) {
		return nil
	}
	b := c.s.receiving
	if c.claimed == 0 {
		c.claimedOf = b.of(c.identity.Limits())
	}
	n = min(n, c.claimedOf.Most()-pieceBytes)
	if more := n - c.claimed; more > 0 && !b.TryAcquire(c.claimedOf, more) {
		began := time.Now()
		ctx, cancel := context.WithTimeout(c.ctx, c.patience(c.s.o.ShedAfter))
		defer cancel()
		if err := b.Acquire(ctx, c.claimedOf, more); err != nil {
			c.s.stats.shed.Add(1)
			return &tryAgain{c.s.o.ShedAfter, "no memory to receive into"}
		}
		c.waited += time.Since(began)
		if err := c.expectMore(0, time.Since(began)); err != nil {
			return err
		}
	}
	c.claimed = max(c.claimed, n)
	return nil
}

// settle lets go of the commands that were answered, and gives back what was charged for them.
func (c *conn) settle() {
	c.held, c.keys, c.waited = 0, 0, 0
	if c.holds() > uncharged {
		c.p.buf, c.p.at = nil, nil
	}
	if c.claimed > 0 {
		c.s.receiving.Release(c.claimedOf, c.claimed)
		c.claimed = 0
	}
}

// Held is what commands and values on their way hold of the server's memory, and what they may.
type Held struct {
	Connections              int
	Sending, Receiving       int64
	MaxSending, MaxReceiving int64
}

// Held says what connections hold now.
func (s *Server) Held() Held {
	s.mu.Lock()
	n := len(s.conns)
	s.mu.Unlock()
	return Held{n, s.sending.pool.Used(), s.receiving.pool.Used(), s.sending.pool.Limit, s.receiving.pool.Limit}
}
