package puts

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/locks"
)

// Flight is a put of one key under way: whoever puts the same key meanwhile waits
// for it, so that the first writer wins.
type Flight struct {
	done chan struct{}
}

// Flights are the puts under way of keys whose first writer wins. Make it with NewFlights.
type Flights struct {
	mu locks.Mutex[locks.Flights]
	m  map[index.Fingerprint]*Flight
}

// NewFlights has none under way.
func NewFlights() *Flights { return &Flights{m: map[index.Fingerprint]*Flight{}} }

// Done is closed when the put has ended.
func (f *Flight) Done() <-chan struct{} { return f.done }

// Join enters fp, or gives the flight that is there.
func (f *Flights) Join(fp index.Fingerprint) (mine *Flight, other *Flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if other = f.m[fp]; other != nil {
		return nil, other
	}
	mine = &Flight{done: make(chan struct{})}
	f.m[fp] = mine
	return mine, nil
}

// Wait returns when the put of fp that is under way, if one is, has ended. Error: Deadline (ctx).
func (f *Flights) Wait(ctx context.Context, fp index.Fingerprint) error {
	f.mu.Lock()
	fl := f.m[fp]
	f.mu.Unlock()
	if fl == nil {
		return nil
	}
	select {
	case <-fl.done:
		return nil
	case <-ctx.Done():
		return &skep.Error{Op: "wait for a put", Kind: skep.Deadline, Err: ctx.Err()}
	}
}

// Leave ends a flight that was entered.
func (f *Flights) Leave(fp index.Fingerprint, fl *Flight) {
	f.mu.Lock()
	delete(f.m, fp)
	f.mu.Unlock()
	close(fl.done)
}

// Len is how many are under way.
func (f *Flights) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.m)
}
