//go:build cgo

package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/skepkv/skep"
)

// events is a stream of events that a C program follows. Threads take turns.
type events struct {
	of     *opened
	stream skep.EventStream
	mu     sync.Mutex // of who reads
}

var streams sync.Map // of *events, by number

// follow begins a stream, and gives its number.
func (o *opened) follow(ctx context.Context, from skep.Cursor, snapshot bool) (uint64, error) {
	st, err := o.Events(ctx, from, snapshot)
	if err != nil {
		return 0, err
	}
	id, err := o.keep(&streams, &events{of: o, stream: st})
	if err != nil {
		_ = st.Close() // the store is being closed, which ends it too
	}
	return id, err
}

func eventsOf(id uint64) (*events, error) {
	if x, ok := streams.Load(id); ok {
		return x.(*events), nil
	}
	return nil, skep.Invalidf(op, "stream of events", id, "one that is open")
}

// next takes events, and none where none came in so long.
func (e *events) next(wait time.Duration, into []skep.Event) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	n, err := e.stream.Next(ctx, into)
	if n > 0 || errors.Is(err, skep.Deadline) && ctx.Err() != nil {
		err = nil
	}
	return n, err
}

// endEvents ends the streams of a store that is closed. Those of servers end with their connections, without a word to
// a server that may not answer.
func (o *opened) endEvents() {
	streams.Range(func(id, x any) bool {
		if e := x.(*events); e.of == o {
			streams.Delete(id)
			if o.client == nil {
				_ = e.stream.Close() // closing the store says what there is to say
			}
		}
		return true
	})
}
