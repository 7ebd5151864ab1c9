package sparse

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/skepkv/skep"
)

// followAgain is how long follow waits before it asks for events again.
const followAgain = time.Second

// follow drops the clustered form of every chain whose last block the Store says is gone,
// whether its context is open or not, until ctx ends. Salted blocks are told of by names that
// mean nothing here: of those, and of what happened while nobody followed, only open contexts are
// looked at; others go when they are next used. begun is closed once it follows, or cannot yet.
func (s *Sparse) follow(ctx context.Context, begun chan<- struct{}) {
	var once sync.Once
	for ctx.Err() == nil {
		events, err := s.st.Events(ctx, skep.Cursor{}, false)
		once.Do(func() { close(begun) })
		if err == nil {
			s.lookAfter(ctx, s.places())
			s.read(ctx, events)
			_ = events.Close()
		}
		t := time.NewTimer(followAgain)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
}

// read takes events until the stream ends.
func (s *Sparse) read(ctx context.Context, events skep.EventStream) {
	into := make([]skep.Event, 64)
	for {
		n, err := events.Next(ctx, into)
		if err != nil {
			return
		}
		for i := range into[:n] {
			switch e := &into[i]; e.Kind {
			case skep.EventDeleted, skep.EventEvicted, skep.EventDamaged:
				if e.Salted {
					s.lookAfter(ctx, s.places())
				} else {
					s.lookAfter(ctx, []place{{skep.Scope{Namespace: e.Namespace}, e.Key}})
				}
			case skep.EventGap:
				s.lookAfter(ctx, s.places())
			}
		}
	}
}

// places are those of open contexts.
func (s *Sparse) places() (all []place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.open {
		all = append(all, p)
	}
	return all
}

// lookAfter buries the contexts among places whose chain is not stored any more. What cannot
// be told now is left to whoever uses the context next.
func (s *Sparse) lookAfter(ctx context.Context, places []place) {
	for _, p := range places {
		if !s.mayHave(ctx, p) {
			continue
		}
		release, err := s.claim(ctx, p)
		if err != nil {
			return
		}
		if c, err := s.opened(ctx, p); err == nil {
			if _, err := s.tokens(ctx, p.scope, c.head.Chain); errors.Is(err, skep.NotFound) {
				_ = s.buryClaimed(ctx, c)
			}
		}
		release()
	}
}

// mayHave says whether there is a context at p, or could be.
func (s *Sparse) mayHave(ctx context.Context, p place) bool {
	s.mu.Lock()
	c := s.open[p]
	s.mu.Unlock()
	if c != nil {
		return true
	}
	info, err := s.namespace(ctx, p.scope.Namespace)
	if err != nil || !info.Chained {
		return false
	}
	_, ok, err := s.sibling(ctx, info, metaSuffix)
	return ok && err == nil
}
