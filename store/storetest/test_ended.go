package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// everyCall is each call of a Store that takes a context, with good arguments. What the Store cannot do is left out.
func (e *env) everyCall(c *chain) map[string]func(context.Context) error {
	calls := map[string]func(ctx context.Context) error{
		"open namespace": func(ctx context.Context) error { _, err := e.st.OpenNamespace(ctx, c.n.NamespaceSpec); return err },
		"find namespace": func(ctx context.Context) error { _, err := e.st.FindNamespace(ctx, c.n.ID); return err },
		"namespaces":     func(ctx context.Context) error { _, err := e.st.Namespaces(ctx); return err },
		"namespaces of":  func(ctx context.Context) error { _, err := e.st.NamespacesOf(ctx, c.n.Tenant); return err },
		"count blocks":   func(ctx context.Context) error { _, err := e.st.CountBlocks(ctx, c.n.ID); return err },
		"list keys":      func(ctx context.Context) error { _, _, err := e.st.ListKeys(ctx, c.n.ID, 0, 1); return err },
		"put sidecar": func(ctx context.Context) error {
			return e.st.PutSidecar(ctx, c.scope, c.keys[0], []skep.SidecarPiece{{Kind: skep.SidecarHeader, Bytes: c.payload(0)}})
		},
		"sidecar": func(ctx context.Context) error { _, err := e.st.Sidecar(ctx, c.scope, c.keys[0]); return err },
		"lookup of runs": func(ctx context.Context) error {
			_, err := e.st.LookupRuns(ctx, &skep.RunsRequest{Scope: c.scope, Runs: [][]skep.Key{c.keys}})
			return err
		},
		"lookup": func(ctx context.Context) error {
			_, err := e.st.Lookup(ctx, &skep.LookupRequest{Scope: c.scope, Keys: c.keys})
			return err
		},
		"renew":   func(ctx context.Context) error { _, err := e.st.Renew(ctx, 1, time.Second); return err },
		"release": func(ctx context.Context) error { return e.st.Release(ctx, 1) },
		"want": func(ctx context.Context) error {
			_, err := e.st.Want(ctx, &skep.WantRequest{Scope: c.scope, Keys: c.keys})
			return err
		},
		"put":   func(ctx context.Context) error { _, err := e.st.Put(ctx, c.request(0, len(c.keys))); return err },
		"begin": func(ctx context.Context) error { _, err := e.st.Begin(ctx, c.beginRequest(0)); return err },
		"flush": func(ctx context.Context) error { return e.st.Flush(ctx) },
		"restore": func(ctx context.Context) error {
			_, err := e.st.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: c.scope, Keys: c.keys}}})
			return err
		},
		"delete":           func(ctx context.Context) error { _, err := e.st.Delete(ctx, c.scope, c.keys); return err },
		"purge":            func(ctx context.Context) error { return e.st.Purge(ctx, skep.Purge{Namespace: c.n.ID}) },
		"delete namespace": func(ctx context.Context) error { return e.st.DeleteNamespace(ctx, 1<<30) },
		"hint":             func(ctx context.Context) error { _, err := e.st.Hint(ctx, c.scope, c.keys, skep.Hint{}); return err },
		"stats":            func(ctx context.Context) error { _, err := e.st.Stats(ctx); return err },
		"events":           func(ctx context.Context) error { _, err := e.st.Events(ctx, skep.Cursor{}, false); return err },
		"alloc":            func(ctx context.Context) error { _, err := e.st.Alloc(ctx, 1); return err },
	}
	for _, name := range []string{"count blocks", "list keys", "put sidecar", "sidecar"} {
		if errors.Is(calls[name](e.ctx), skep.Unsupported) {
			delete(calls, name)
		}
	}
	return calls
}

// everyBadCall is calls of a Store with arguments that are refused whatever it holds.
func (e *env) everyBadCall(c *chain) map[string]func() error {
	many := make([]skep.Key, skep.MaxChainKeys+1)
	return map[string]func() error{
		"open namespace": func() error { _, err := e.st.OpenNamespace(e.ctx, skep.NamespaceSpec{}); return err },
		"list keys":      func() error { _, _, err := e.st.ListKeys(e.ctx, c.n.ID, 0, 0); return err },
		"put sidecar":    func() error { return e.st.PutSidecar(e.ctx, c.scope, c.keys[0], nil) },
		"lookup": func() error {
			_, err := e.st.Lookup(e.ctx, &skep.LookupRequest{Scope: c.scope, Keys: c.keys, Lease: -2})
			return err
		},
		"lookup of runs": func() error {
			_, err := e.st.LookupRuns(e.ctx, &skep.RunsRequest{Scope: c.scope, Runs: [][]skep.Key{nil}})
			return err
		},
		"renew":               func() error { _, err := e.st.Renew(e.ctx, 1, -1); return err },
		"renew for two hours": func() error { _, err := e.st.Renew(e.ctx, 1, 2*time.Hour); return err },
		"want": func() error {
			_, err := e.st.Want(e.ctx, &skep.WantRequest{Scope: c.scope, Keys: many})
			return err
		},
		"put": func() error {
			_, err := e.st.Put(e.ctx, &skep.PutRequest{Scope: c.scope, Blocks: make([]skep.Block, skep.MaxPutBlocks+1)})
			return err
		},
		"begin": func() error {
			_, err := e.st.Begin(e.ctx, &skep.BeginRequest{Scope: c.scope, Key: c.keys[0], Timeout: -1})
			return err
		},
		"begin for two hours": func() error {
			_, err := e.st.Begin(e.ctx, &skep.BeginRequest{Scope: c.scope, Key: c.keys[0], Timeout: 2 * time.Hour})
			return err
		},
		"restore": func() error {
			_, err := e.st.Restore(e.ctx, &skep.RestoreRequest{Chains: make([]skep.Chain, skep.MaxChains+1)})
			return err
		},
		"restore of nothing": func() error { _, err := e.st.Restore(e.ctx, &skep.RestoreRequest{}); return err },
		"delete":             func() error { _, err := e.st.Delete(e.ctx, c.scope, many); return err },
		"purge":              func() error { return e.st.Purge(e.ctx, skep.Purge{}) },
		"hint":               func() error { _, err := e.st.Hint(e.ctx, c.scope, c.keys, skep.Hint{Steps: -1}); return err },
		"alloc":              func() error { _, err := e.st.Alloc(e.ctx, 0); return err },
	}
}

// testEnded: closed stores and ended contexts.
func testEnded(t *testing.T, open Open) {
	t.Run("closing twice is not an error, and every call on a closed store says so", func(t *testing.T) {
		e := start(t, open, Config{})
		c := e.chain(e.space(hnd), 4).put(0, 4)
		require.NoError(e, e.st.Close())
		require.NoError(e, e.st.Close())
		for name, call := range e.everyCall(c) {
			requireKind(e, skep.Closed, call(e.ctx), name)
		}
	})
	t.Run("what is invalid whatever a store holds is refused as that, of a closed one too", func(t *testing.T) {
		e := start(t, open, Config{})
		c := e.chain(e.space(hnd), 4).put(0, 4)
		calls := e.everyBadCall(c)
		for name, call := range calls {
			if err := call(); errors.Is(err, skep.Unsupported) {
				delete(calls, name)
			} else {
				requireKind(e, skep.Invalid, err, name)
			}
		}
		require.NoError(e, e.st.Close())
		for name, call := range calls {
			requireKind(e, skep.Invalid, call(), name)
		}
	})
	t.Run("closing the store ends what is open", func(t *testing.T) {
		e := start(t, open, Config{})
		c := e.chain(e.space(pages4K), 8).put(0, 7)
		mem := make([]byte, 8*c.size())
		s, err := e.st.Restore(e.ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: c.scope, Keys: c.keys, Dest: skep.Destination{Memory: mem}}}})
		require.NoError(e, err)
		w := c.begin(7)
		require.NoError(e, w.Write(e.ctx, skep.PartKV, 0, c.payload(7)))
		events, err := e.st.Events(e.ctx, skep.Cursor{}, false)
		require.NoError(e, err)
		waits, began := make(chan error), make(chan struct{})
		go func() {
			close(began)
			into := make([]skep.Event, 8)
			for {
				if _, err := events.Next(e.ctx, into); err != nil {
					waits <- err
					return
				}
			}
		}()
		<-began // most likely it waits now
		require.NoError(e, e.st.Close())
		requireKind(e, skep.Closed, <-waits, "events")
		copy(mem, poison(len(mem)))
		_, err = s.Next(e.ctx, make([]skep.Chunk, 1))
		requireKind(e, skep.Closed, err, "session")
		_, err = w.Commit(e.ctx, skep.AckCommitted)
		requireKind(e, skep.Closed, err, "block writer")
		_ = s.Close(e.ctx)
		_ = w.Abort(e.ctx)
		_ = events.Close()
		c.requireSame(poison(len(mem)), mem, "after the store was closed")
	})
	t.Run("a call whose context is over returns its error", func(t *testing.T) {
		e := start(t, open, Config{})
		c := e.chain(e.space(hnd), 4).put(0, 2)
		ctx, cancel := context.WithCancel(e.ctx)
		cancel()
		for name, call := range e.everyCall(c) {
			require.ErrorIs(e, call(ctx), context.Canceled, name)
		}
		require.LessOrEqual(e, 2, c.found(), "nothing was deleted; what was put is in doubt")
		c.check(0, c.found())
	})
	t.Run("a call of a session whose context is over returns its error, and nothing was claimed", func(t *testing.T) {
		e := start(t, open, Config{})
		c := e.chain(e.space(hnd), 4).put(0, 4)
		s, err := e.st.Restore(e.ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: c.scope, Keys: c.keys, Direction: skep.TailFirst,
			Compute: &skep.Compute{Cost: skep.RecomputeCost{PerToken: time.Second}, LoadOnly: true}}}})
		require.NoError(e, err)
		ctx, cancel := context.WithCancel(e.ctx)
		cancel()
		for name, call := range map[string]func() error{
			"claim":        func() error { _, err := s.Claim(ctx, 0, skep.All, skep.Idle); return err },
			"busy claim":   func() error { _, err := s.Claim(ctx, 0, skep.All, skep.Busy); return err },
			"computed":     func() error { return s.Computed(ctx, 0, skep.Range{From: 0, To: 4}, 0, 0) },
			"reprioritise": func() error { return s.Reprioritise(ctx, 0, 1, time.Time{}) },
		} {
			require.ErrorIs(e, call(), context.Canceled, name)
		}
		for _, p := range e.drain(s) {
			require.NoError(e, p.Err)
		}
		require.NoError(e, s.Close(e.ctx))
	})
	t.Run("a wait for events ends with its context", func(t *testing.T) {
		e := start(t, open, Config{})
		st, err := e.st.Events(e.ctx, skep.Cursor{}, false)
		require.NoError(e, err)
		defer st.Close()
		ctx, cancel := context.WithTimeout(e.ctx, 20*time.Millisecond)
		defer cancel()
		for {
			if _, err = st.Next(ctx, make([]skep.Event, 4)); err != nil {
				break
			}
		}
		require.ErrorIs(e, err, context.DeadlineExceeded)
	})
}
