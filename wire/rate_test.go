package wire

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
	"github.com/skepkv/skep/wire/server"
)

// rated is a directory whose tenant "a" has limits, and a clock that stands until it is moved.
func rated(t *testing.T, l auth.Limits) (d *auth.Directory, a *auth.Tenant, advance func(time.Duration)) {
	h, err := auth.TokenHash(tokenA)
	require.NoError(t, err)
	var passed atomic.Int64
	began := time.Now()
	list := []auth.Credential{{Name: "a", Tenant: "a", Rights: auth.All, TokenSHA256: h}}
	d, err = auth.New(list, map[string]auth.Limits{"a": l}, func() time.Time { return began.Add(time.Duration(passed.Load())) })
	require.NoError(t, err)
	who, err := d.Identify(t.Context(), auth.Presented{Token: tokenA})
	require.NoError(t, err)
	return d, who.Limits(), func(by time.Duration) { passed.Add(int64(by)) }
}

// A stream of events is a request of its tenant.
func TestStreamsOfEventsAreRated(t *testing.T) {
	t.Parallel()
	d, _, advance := rated(t, auth.Limits{RequestsPerSecond: 1})
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{Auth: d})
	x := rawDial(t, r.addr)
	x.hello(t, tokenA)
	begin := func(call uint64) error {
		x.send(t, frames.Header{Type: frames.TypeEvents, Call: call}, &frames.EventsRequest{Credit: 1}, "")
		h, body, err := x.next()
		require.NoError(t, err)
		if h.Type == frames.TypeError {
			return errorIn(t, body)
		}
		return nil
	}
	require.NoError(t, begin(1))
	require.ErrorIs(t, begin(2), skep.Overloaded)
	advance(time.Second)
	require.NoError(t, begin(3))
}

// A Reprioritise that is refused for its tenant's rate is sent again, and what gives back what a call took is not refused.
func TestWhatASessionIsToldAtItsRate(t *testing.T) {
	t.Parallel()
	d, a, advance := rated(t, auth.Limits{RequestsPerSecond: 1000})
	spent := func() {
		for ok := true; ok; {
			_, ok = a.Admit(1, 0)
		}
	}
	var refused atomic.Int64
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{Auth: d, Observe: func(c server.Call) {
		if c.Type == frames.TypeReprioritise && c.Err != nil {
			refused.Add(1)
			advance(time.Second)
		}
	}})
	o := r.options()
	o.Token, o.Conns = tokenA, 1
	c := r.dial(t, o)
	ch := chainOf(t, c, "a", 1)
	s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.NoError(t, err)
	x := c.slots[0].conn
	spent()
	require.NoError(t, s.Reprioritise(t.Context(), 0, 1, time.Time{}))
	require.EqualValues(t, 1, refused.Load())
	spent()
	_, err = x.call(t.Context(), frames.TypeEnd, &frames.Number{N: s.(*clientSession).id}, nil, nil)
	require.NoError(t, err)
	_, err = x.call(t.Context(), frames.TypeLookup, &frames.LookupRequest{}, nil, nil)
	require.ErrorIs(t, err, skep.Overloaded)
}

// scans is a store whose snapshots go on until the test lets them end, and which counts those that are being read.
type scans struct {
	skep.Store
	reading, most atomic.Int64
	read          chan struct{} // a token: a snapshot is being read
	end           chan struct{} // a token: one of them ends
}

type scan struct {
	of   *scans
	told chan struct{}
}

func (s *scans) Events(context.Context, skep.Cursor, bool) (skep.EventStream, error) {
	return &scan{s, make(chan struct{})}, nil
}

func (s *scan) Told() (<-chan struct{}, error) { return s.told, nil }
func (s *scan) Close() error                   { return nil }

func (s *scan) Next(ctx context.Context, _ []skep.Event) (int, error) {
	if link.IsClosed(s.told) {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	now := s.of.reading.Add(1)
	s.of.most.Store(max(s.of.most.Load(), now))
	s.of.read <- struct{}{}
	select {
	case <-s.of.end:
	case <-ctx.Done():
	}
	s.of.reading.Add(-1)
	close(s.told) // there is no more to tell of
	<-ctx.Done()  // and nothing happens
	return 0, ctx.Err()
}

// A snapshot is read from what all tenants have. Of one tenant one is read at a time, however many are asked for; one
// that has been told of holds up no other, though nothing happens from then on.
func TestATenantReadsOneSnapshotAtATime(t *testing.T) {
	t.Parallel()
	st := &scans{Store: newMemstore(storetest.Config{}), read: make(chan struct{}, 8), end: make(chan struct{}, 8)}
	r := serve(t, "tcp", st, server.Options{Auth: directory(t)})
	for _, token := range []string{tokenA, tokenA, tokenB, tokenA} {
		x := rawDial(t, r.addr)
		x.hello(t, token)
		x.send(t, frames.Header{Type: frames.TypeEvents, Call: 1}, &frames.EventsRequest{Snapshot: true, Credit: 1}, "")
		h, _, err := x.next()
		require.NoError(t, err)
		require.Equal(t, frames.TypeEvents|frames.Answer, h.Type)
	}
	for i := range 4 {
		select {
		case <-st.read:
		case <-time.After(time.Minute):
			t.Fatalf("after %d of 4 nobody reads a snapshot", i)
		}
		st.end <- struct{}{}
	}
	require.LessOrEqual(t, st.most.Load(), int64(2), "one of each tenant")
}
