package loan

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/lend"
)

// Tier is what uses lent memory; *gpu.Store is one.
type Tier interface {
	Attach(l gpu.Lender) (int, error)
	Reclaim(lender, n int) error
	Detach(lender int) error
}

// BorrowerOptions are those of Borrow.
type BorrowerOptions struct {
	Socket string     // the lender's
	Name   string     // of the model, for people
	Device gpu.Sharer // the lender's GPU, as this process sees it
	Tier   Tier
	Want   int          // units; 0: as many as there are
	Log    *slog.Logger // nil: none
}

const opBorrow = "borrow GPU memory"

// Loan is what one lender gives: units that come and go while it lasts.
type Loan struct {
	o       BorrowerOptions
	c       *net.UnixConn
	welcome welcome
	memory  gpu.Memory
	until   atomic.Int64 // of the lease
	done    chan struct{}
	wg      sync.WaitGroup

	mu      sync.Mutex // held while units come or go
	machine *lend.Borrower
	pool    int  // in the tier, while there are units
	leaving bool // Close was called, or there is nothing to be had
	stuck   bool // something may still touch units it has no more: the lender is to end us
	err     error
}

// Borrow maps a lender's arena and takes from it what it gives, until Close or the lender's
// end. It returns before there are any units.
func Borrow(o BorrowerOptions) (*Loan, error) {
	if supported != nil {
		return nil, supported
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.Device == nil || o.Tier == nil:
		return nil, skep.Invalidf(opBorrow, "device and tier", "none", "one of each")
	case o.Want < 0:
		return nil, skep.Invalidf(opBorrow, "units wanted", o.Want, "0 or more")
	case len(o.Name) > maxName:
		return nil, skep.Invalidf(opBorrow, "name length in bytes", len(o.Name), fmt.Sprintf("at most %d", maxName))
	}
	c, err := dial(opBorrow, o.Socket)
	if err != nil {
		return nil, err
	}
	f, file, err := ask(opBorrow, o.Socket, c, frame{Hello: &hello{version, o.Name, o.Want}})
	if err == nil && (f.Welcome == nil || file == nil) {
		err = &skep.Error{Op: opBorrow, Kind: skep.Unavailable, Field: "socket", Value: o.Socket, Err: errProtocol}
	}
	var l *Loan
	if err == nil {
		l, err = take(o, c, *f.Welcome, file)
	}
	if file != nil {
		file.Close()
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	l.wg.Add(2)
	go l.listen()
	go l.renew()
	return l, nil
}

func take(o BorrowerOptions, c *net.UnixConn, w welcome, file *os.File) (*Loan, error) {
	if w.Lease <= 0 || w.Units < 1 || w.Unit.Bytes < 1 || w.Unit.Bytes > maxArena/int64(w.Units) {
		return nil, &skep.Error{Op: opBorrow, Kind: skep.Invalid, Field: "lender's arena", Value: fmt.Sprintf("%+v", w)}
	}
	l := &Loan{o: o, c: c, welcome: w, done: make(chan struct{}), machine: lend.NewBorrower(w.Borrower, w.Life)}
	var err error
	l.memory, err = o.Device.Import(file, int64(w.Units)*w.Unit.Bytes)
	return l, err
}

// Units is what it may use now, and Epoch the number of the agreement about it.
func (l *Loan) Units() (lend.Units, uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.machine.Units(now()), l.machine.Epoch()
}

// Done is closed when the loan is over.
func (l *Loan) Done() <-chan struct{} { return l.done }

// Err is why it is over; nil after Close.
func (l *Loan) Err() error {
	select {
	case <-l.done:
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.err
	default:
		return nil
	}
}

func (l *Loan) usable() bool { return int64(now()) < l.until.Load() }

// listen takes the lender's messages to the end of the connection, and then lets go of all
// there is.
func (l *Loan) listen() {
	defer l.wg.Done()
	defer close(l.done)
	for {
		f, file, err := receive(l.c)
		if file != nil {
			file.Close()
		}
		if err == nil && f.Message == nil {
			err = errProtocol
		}
		if err == nil {
			err = l.receive(*f.Message)
		}
		if err != nil {
			l.over(err)
			return
		}
	}
}

// receive carries a message out, and answers it.
func (l *Loan) receive(m lend.Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.machine.Has()
	out := l.machine.Receive(m)
	return l.followLocked(before, out)
}

// followLocked has the tier use what the machine has, and then says what is to be said of
// it. What the tier cannot let go of is not acknowledged.
func (l *Loan) followLocked(before lend.Units, out []lend.Message) error {
	after := l.machine.Has()
	l.until.Store(int64(l.machine.Until()))
	var err error
	switch {
	case before == after:
	case before.Len() == 0:
		if err = l.attachLocked(after); err != nil {
			// It cannot use them: they go back, and no more are taken.
			l.o.Log.Error("lent GPU memory cannot be used", "lender", l.welcome.Name, "err", err)
			l.leaving, l.err, err = true, err, nil
			out = append(out, l.machine.Return()...)
		}
	case after.Len() == 0:
		err = l.o.Tier.Detach(l.pool)
	default:
		err = l.o.Tier.Reclaim(l.pool, after.From-before.From)
	}
	if err != nil || l.stuck {
		l.stuck = true
		return err
	}
	for _, m := range out {
		if err := send(l.c, frame{Message: &m}, nil); err != nil {
			return err
		}
	}
	return nil
}

func (l *Loan) attachLocked(u lend.Units) (err error) {
	l.pool, err = l.o.Tier.Attach(gpu.Lender{Device: l.o.Device, Unit: l.welcome.Unit, Units: u.To, Keep: u.From, Memory: l.memory, Usable: l.usable})
	return err
}

// renew keeps the lease while there are units.
func (l *Loan) renew() {
	defer l.wg.Done()
	t := time.NewTicker(max(l.welcome.Lease/4, time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-l.done:
			return
		case <-t.C:
			l.mu.Lock()
			m, say := l.machine.Renew(), !l.stuck && !l.leaving
			l.mu.Unlock()
			if say {
				_ = send(l.c, frame{Message: &m}, nil) // the reader sees what is wrong with it
			}
		}
	}
}

// over ends the loan: nothing of it is used any more.
func (l *Loan) over(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.c.Close()
	var err error
	if l.machine.Has().Len() > 0 && !l.stuck {
		if err = l.o.Tier.Detach(l.pool); err != nil {
			l.stuck = true
		}
		l.machine.Return()
	}
	if !l.leaving || l.stuck {
		l.err = errors.Join(&skep.Error{Op: opBorrow, Kind: skep.Unavailable, Field: "lender", Value: l.welcome.Name, Err: why}, err)
	}
	if !l.stuck { // else something may still write there
		err = l.memory.Free()
		l.err = errors.Join(l.err, err)
	}
}

// Close gives everything back and waits until the lender has heard it. NotReleased when the
// tier cannot let go of units: this process should end.
func (l *Loan) Close() error {
	l.mu.Lock()
	var err error
	if !l.leaving {
		l.leaving = true
		before := l.machine.Has()
		err = l.followLocked(before, l.machine.Return())
	}
	l.mu.Unlock()
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), longest)
		defer cancel()
		select {
		case <-l.done: // the lender ended the connection
		case <-ctx.Done(): // it hangs: it hears that we are gone when it reads again
		}
	}
	l.c.Close()
	l.wg.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stuck {
		return &skep.Error{Op: opBorrow, Kind: skep.NotReleased, Field: "lender", Value: l.welcome.Name, Err: errors.Join(err, l.err)}
	}
	return nil
}
