package merge

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// brief is a node whose streams end at once.
type brief struct {
	gone  atomic.Bool
	opens atomic.Int64
	some  bool // an event comes before
}

func (n *brief) Name() string                       { return "brief" }
func (n *brief) Gone() bool                         { return n.gone.Load() }
func (n *brief) Life(context.Context) (Life, error) { return life{n}, nil }

// Events gives a stream that begins with a gap, as one of a run that never was does.
func (n *brief) Events(context.Context, skep.Cursor, bool) (skep.EventStream, error) {
	return &events{some: true}, nil
}

type life struct{ n *brief }

func (l life) Only()                                  {}
func (l life) Translate(context.Context, *skep.Event) {}

func (l life) Events(context.Context, skep.Cursor, bool) (skep.EventStream, error) {
	l.n.opens.Add(1)
	return &events{some: l.n.some}, nil
}

// events is a stream that ends, after a gap or at once.
type events struct{ some bool }

func (e *events) Next(_ context.Context, into []skep.Event) (int, error) {
	if !e.some {
		return 0, io.EOF
	}
	e.some = false
	into[0] = skep.Event{Kind: skep.EventGap, Cursor: skep.Cursor{Epoch: 1, Seq: 1}}
	return 1, nil
}

func (e *events) Told() (<-chan struct{}, error) { return nil, nil }
func (e *events) Close() error                   { return nil }

// newBrief is a merger of such nodes that has begun to follow them.
func newBrief(t *testing.T, nodes func() []*brief) *Merger[*brief] {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); synctest.Wait() })
	m := New(Options[*brief]{Buffer: 8, Epoch: 1, Sources: nodes, Ctx: ctx, Log: slog.New(slog.DiscardHandler),
		Start: func(f func()) bool { go f(); return true }})
	require.NoError(t, m.follow(ctx))
	return m
}

// A node whose streams end at once is asked ever less often, unless something comes of them.
func TestStreamsThatEndAtOnce(t *testing.T) {
	t.Parallel()
	for _, some := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := &brief{some: some}
			newBrief(t, func() []*brief { return []*brief{n} })
			<-time.After(time.Minute)
			synctest.Wait()
			if most := int64(time.Minute / mostPause); some {
				require.Greater(t, n.opens.Load(), 10*most)
			} else {
				require.Less(t, n.opens.Load(), 2*most)
			}
		})
	}
}

// What follows a node that is gone goes, too.
func TestNodesThatGo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var nodes []*brief
		for range 10 {
			nodes = append(nodes, &brief{})
		}
		m := newBrief(t, func() []*brief { return nodes })
		require.Len(t, m.pumps, 10)
		for _, n := range nodes[1:] {
			n.gone.Store(true)
		}
		nodes = nodes[:1]
		<-time.After(2 * mostPause)
		synctest.Wait()
		m.KeepUp()
		require.Len(t, m.pumps, 1)
	})
}
