package fence

import (
	"context"
	"time"

	"github.com/skepkv/skep"
)

// lease is how long the node serves without being heard. Whoever leads may know of the lease that the node asked to be
// noted last, or of the one before: while that is not known the shorter one counts.
type lease struct {
	after uint32        // seconds of silence, of which it is half; 0: there is none
	since uint32        // clustermap.Silence.Epoch of the map whose lease is noted
	heard time.Duration // by the Clock: from when it counts
}

// over says whether it has ended.
func (l *lease) over(now time.Duration) bool {
	return l.after != 0 && now-l.heard >= l.length()
}

func (l *lease) length() time.Duration { return time.Duration(l.after) * time.Second / 2 }

// promise keeps to a lease, from before it is noted anywhere.
func (f *Fence) promise(after uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case after == 0:
	case f.lease.after == 0:
		f.lease.after, f.lease.heard = after, f.Clock()
	case after < f.lease.after:
		f.lease.after = after
	}
}

// The lease is renewed four times before it ends. The node looks every lookEvery whether it is to be, for it may have
// another lease now.
const (
	renewals      = 4
	lookEvery     = 500 * time.Millisecond
	renewPatience = 5 * time.Second // for who leads, at most
)

// KeepHeard renews the lease until ctx ends. It calls back where most voters agree that the node is down, which then is
// to Return.
func (f *Fence) KeepHeard(ctx context.Context, down func()) {
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-wait.C:
		case <-ctx.Done():
			return
		}
		every, isDown := f.renew(ctx)
		if isDown {
			down()
		}
		wait.Reset(every)
	}
}

// renew renews the lease, where there is one, and says when it is to be done again.
func (f *Fence) renew(ctx context.Context) (again time.Duration, down bool) {
	f.mu.Lock()
	reg, l := f.reg, f.lease
	f.mu.Unlock()
	if reg == nil || l.after == 0 {
		return lookEvery, false
	}
	from := f.Clock()
	every := l.length() / renewals
	if due := l.heard + every - from; due > 0 {
		return min(due, lookEvery), false
	}
	ctx, cancel := context.WithTimeout(ctx, min(every, renewPatience))
	defer cancel()
	err := reg.Renew(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil && from > f.lease.heard:
		f.lease.heard = from
	case skep.KindOf(err) == skep.Behind:
		f.open = false
		return lookEvery, true
	}
	return lookEvery, false
}
