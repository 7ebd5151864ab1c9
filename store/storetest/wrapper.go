package storetest

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Wrapper checks that a Store in front of another hides nothing of it: each call of Store, and each of a Session that
// Restore gives, reaches the call of the same name of the Store behind, or is refused as Unsupported by its name. wrap puts
// the Store under test in front of behind; closing it closes all it made. own are the calls that it answers itself and
// answers rightly, like Alloc of a client that has memory of its own.
func Wrapper(t *testing.T, behind skep.Store, wrap func(t *testing.T, behind skep.Store) skep.Store, own ...string) {
	in := &reached{Store: behind}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out := wrap(t, in)
	w := &wrapped{ctx: ctx, out: out, mem: make([]byte, 4096)}
	try := func(kind reflect.Type, calls []wrappedCall) {
		var named []string
		for _, c := range calls {
			named = append(named, c.name)
			name := kind.Name() + "." + c.name
			if c.do == nil { // it is the last
				continue
			}
			was := in.count(name)
			err := c.do()
			if slices.Contains(own, name) {
				assert.NoError(t, err, name)
				continue
			}
			var refused *skep.Error
			if errors.Is(err, skep.Unsupported) && assert.ErrorAs(t, err, &refused, name) {
				assert.NotEmpty(t, refused.Op, "%s is refused by its name", name)
				continue
			}
			assert.NoError(t, err, name)
			assert.Greater(t, in.count(name), was, "%s comes to the Store behind", name)
		}
		for i := range kind.NumMethod() {
			assert.Contains(t, named, kind.Method(i).Name, "each call of %s is tried", kind)
		}
	}
	try(reflect.TypeFor[skep.Store](), w.store())
	require.NotNil(t, w.ses)
	try(reflect.TypeFor[skep.Session](), w.session())
	assert.NoError(t, out.Close())
	if !slices.Contains(own, "Store.Close") {
		assert.Positive(t, in.count("Store.Close"))
	}
}

type wrappedCall struct {
	name string
	do   func() error
}

// wrapped makes the calls to the outer Store. Each goes on from what those before it made.
type wrapped struct {
	ctx   context.Context
	out   skep.Store
	mem   []byte
	sc    skep.Scope
	keys  []skep.Key
	lease skep.LeaseID
	ses   skep.Session
}

func (w *wrapped) store() []wrappedCall {
	spec := skep.NamespaceSpec{Tenant: "t", Name: "n", Model: "m@1", Shape: pages4K, Chained: true}
	gone := skep.NamespaceSpec{Tenant: "t", Name: "gone", Model: "m@1", Shape: pages4K, Chained: true}
	for i := range 4 {
		w.keys = append(w.keys, skep.KeyOf([]byte{byte(i)}))
	}
	payload := make([]byte, pageBytes(pages4K)*2*pages4K.Layers)
	return []wrappedCall{
		{"OpenNamespace", func() error {
			ns, err := w.out.OpenNamespace(w.ctx, spec)
			w.sc.Namespace = ns.ID
			return err
		}},
		{"FindNamespace", func() error { _, err := w.out.FindNamespace(w.ctx, w.sc.Namespace); return err }},
		{"Namespaces", func() error { _, err := w.out.Namespaces(w.ctx); return err }},
		{"NamespacesOf", func() error { _, err := w.out.NamespacesOf(w.ctx, "t"); return err }},
		{"Want", func() error {
			_, err := w.out.Want(w.ctx, &skep.WantRequest{Scope: w.sc, Keys: w.keys, Bytes: int64(len(payload))})
			return err
		}},
		{"Put", func() error {
			r := &skep.PutRequest{Scope: w.sc}
			for _, k := range w.keys {
				r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: payload}}})
			}
			_, err := w.out.Put(w.ctx, r)
			return err
		}},
		{"Begin", func() error {
			b, err := w.out.Begin(w.ctx, &skep.BeginRequest{Scope: w.sc, Key: skep.KeyOf([]byte("another")),
				Manifest: skep.Manifest{{Name: skep.PartKV, Size: int64(len(payload))}}})
			if err != nil {
				return err
			}
			return b.Abort(w.ctx)
		}},
		{"Flush", func() error { return w.out.Flush(w.ctx) }},
		{"Lookup", func() error {
			found, err := w.out.Lookup(w.ctx, &skep.LookupRequest{Scope: w.sc, Keys: w.keys})
			w.lease = found.Lease.ID
			return err
		}},
		{"LookupRuns", func() error {
			_, err := w.out.LookupRuns(w.ctx, &skep.RunsRequest{Scope: w.sc, Runs: [][]skep.Key{w.keys, w.keys[:1]}})
			return err
		}},
		{"Renew", func() error { _, err := w.out.Renew(w.ctx, w.lease, time.Minute); return err }},
		{"Release", func() error { return w.out.Release(w.ctx, w.lease) }},
		{"Restore", func() error {
			var err error
			w.ses, err = w.out.Restore(w.ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: w.sc, Keys: w.keys, Direction: skep.Auto,
				Compute: &skep.Compute{Cost: skep.RecomputeCost{PerToken: time.Second}}}}})
			return err
		}},
		{"Hint", func() error { _, err := w.out.Hint(w.ctx, w.sc, w.keys, skep.Hint{Steps: 1}); return err }},
		{"CountBlocks", func() error { _, err := w.out.CountBlocks(w.ctx, w.sc.Namespace); return err }},
		{"ListKeys", func() error { _, _, err := w.out.ListKeys(w.ctx, w.sc.Namespace, 0, 10); return err }},
		{"PutSidecar", func() error {
			return w.out.PutSidecar(w.ctx, w.sc, w.keys[0], []skep.SidecarPiece{{Kind: skep.SidecarHeader, Bytes: payload}})
		}},
		{"Sidecar", func() error { _, err := w.out.Sidecar(w.ctx, w.sc, w.keys[0]); return err }},
		{"Alloc", func() error {
			m, err := w.out.Alloc(w.ctx, 4096)
			if err == nil {
				m.Release()
			}
			return err
		}},
		{"Register", func() error {
			undo, err := w.out.Register(w.mem)
			if err == nil {
				undo()
			}
			return err
		}},
		{"DeviceCount", func() error { _, err := w.out.DeviceCount(); return err }},
		{"DeviceOf", func() error { _, err := w.out.DeviceOf(w.sc, w.keys[0]); return err }},
		{"Stats", func() error { _, err := w.out.Stats(w.ctx); return err }},
		{"Events", func() error {
			e, err := w.out.Events(w.ctx, skep.Cursor{}, true)
			if err != nil {
				return err
			}
			return e.Close()
		}},
		{"Delete", func() error { _, err := w.out.Delete(w.ctx, w.sc, w.keys[3:]); return err }},
		{"Purge", func() error {
			return w.out.Purge(w.ctx, skep.Purge{Salt: &skep.Scope{Namespace: w.sc.Namespace, Salt: "s"}})
		}},
		{"DeleteNamespace", func() error {
			ns, err := w.out.OpenNamespace(w.ctx, gone)
			if err != nil {
				return err
			}
			return w.out.DeleteNamespace(w.ctx, ns.ID)
		}},
		{"Close", nil},
	}
}

func (w *wrapped) session() []wrappedCall {
	return []wrappedCall{
		{"Direction", func() error { _, err := w.ses.Direction(w.ctx, 0); return err }},
		{"Claim", func() error { _, err := w.ses.Claim(w.ctx, 0, skep.Only(0, 1), skep.Idle); return err }},
		{"Computed", func() error {
			return w.ses.Computed(w.ctx, 0, skep.Range{From: 0, To: 0}, time.Microsecond, 0)
		}},
		{"ShareClaimWord", func() error { return w.ses.ShareClaimWord(w.ctx, 0, new(atomic.Uint64)) }},
		{"Reprioritise", func() error { return w.ses.Reprioritise(w.ctx, 0, 1, time.Time{}) }},
		{"Next", func() error {
			into := make([]skep.Chunk, 1)
			n, err := w.ses.Next(w.ctx, into)
			for i := range into[:n] {
				into[i].Release()
			}
			return err
		}},
		{"Stop", func() error { return w.ses.Stop(w.ctx, 0) }},
		{"Close", func() error { return w.ses.Close(w.ctx) }},
	}
}

// reached is a Store that counts the calls that come to it, and to the sessions it gives, by name.
type reached struct {
	skep.Store
	mu    sync.Mutex
	calls map[string]int
}

func (r *reached) note(name string) skep.Store {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		r.calls = map[string]int{}
	}
	r.calls[name]++
	return r.Store
}

func (r *reached) count(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[name]
}

func (r *reached) OpenNamespace(ctx context.Context, spec skep.NamespaceSpec) (skep.NamespaceInfo, error) {
	return r.note("Store.OpenNamespace").OpenNamespace(ctx, spec)
}

func (r *reached) FindNamespace(ctx context.Context, id skep.NamespaceID) (skep.NamespaceInfo, error) {
	return r.note("Store.FindNamespace").FindNamespace(ctx, id)
}

func (r *reached) Namespaces(ctx context.Context) ([]skep.NamespaceInfo, error) {
	return r.note("Store.Namespaces").Namespaces(ctx)
}

func (r *reached) NamespacesOf(ctx context.Context, tenant string) ([]skep.NamespaceInfo, error) {
	return r.note("Store.NamespacesOf").NamespacesOf(ctx, tenant)
}

func (r *reached) DeleteNamespace(ctx context.Context, id skep.NamespaceID) error {
	return r.note("Store.DeleteNamespace").DeleteNamespace(ctx, id)
}

func (r *reached) Lookup(ctx context.Context, q *skep.LookupRequest) (skep.LookupResult, error) {
	return r.note("Store.Lookup").Lookup(ctx, q)
}

func (r *reached) LookupRuns(ctx context.Context, q *skep.RunsRequest) (skep.RunsResult, error) {
	return r.note("Store.LookupRuns").LookupRuns(ctx, q)
}

func (r *reached) Renew(ctx context.Context, id skep.LeaseID, d time.Duration) (skep.Lease, error) {
	return r.note("Store.Renew").Renew(ctx, id, d)
}

func (r *reached) Release(ctx context.Context, id skep.LeaseID) error {
	return r.note("Store.Release").Release(ctx, id)
}

func (r *reached) Want(ctx context.Context, q *skep.WantRequest) ([]skep.Want, error) {
	return r.note("Store.Want").Want(ctx, q)
}

func (r *reached) Put(ctx context.Context, q *skep.PutRequest) ([]skep.PutResult, error) {
	return r.note("Store.Put").Put(ctx, q)
}

func (r *reached) Begin(ctx context.Context, q *skep.BeginRequest) (skep.BlockWriter, error) {
	return r.note("Store.Begin").Begin(ctx, q)
}

func (r *reached) Flush(ctx context.Context) error {
	return r.note("Store.Flush").Flush(ctx)
}

func (r *reached) Delete(ctx context.Context, sc skep.Scope, keys []skep.Key) (int, error) {
	return r.note("Store.Delete").Delete(ctx, sc, keys)
}

func (r *reached) Purge(ctx context.Context, p skep.Purge) error {
	return r.note("Store.Purge").Purge(ctx, p)
}

func (r *reached) Hint(ctx context.Context, sc skep.Scope, keys []skep.Key, h skep.Hint) (int, error) {
	return r.note("Store.Hint").Hint(ctx, sc, keys, h)
}

func (r *reached) CountBlocks(ctx context.Context, id skep.NamespaceID) (int64, error) {
	return r.note("Store.CountBlocks").CountBlocks(ctx, id)
}

func (r *reached) ListKeys(ctx context.Context, id skep.NamespaceID, from uint64, n int) ([]skep.Key, uint64, error) {
	return r.note("Store.ListKeys").ListKeys(ctx, id, from, n)
}

func (r *reached) PutSidecar(ctx context.Context, sc skep.Scope, key skep.Key, pieces []skep.SidecarPiece) error {
	return r.note("Store.PutSidecar").PutSidecar(ctx, sc, key, pieces)
}

func (r *reached) Sidecar(ctx context.Context, sc skep.Scope, key skep.Key) ([]skep.SidecarPiece, error) {
	return r.note("Store.Sidecar").Sidecar(ctx, sc, key)
}

func (r *reached) Alloc(ctx context.Context, n int64) (skep.Memory, error) {
	return r.note("Store.Alloc").Alloc(ctx, n)
}

func (r *reached) Register(mem []byte) (func(), error) {
	return r.note("Store.Register").Register(mem)
}

func (r *reached) DeviceCount() (int, error) {
	return r.note("Store.DeviceCount").DeviceCount()
}

func (r *reached) DeviceOf(sc skep.Scope, key skep.Key) (int, error) {
	return r.note("Store.DeviceOf").DeviceOf(sc, key)
}

func (r *reached) Stats(ctx context.Context) (skep.Stats, error) {
	return r.note("Store.Stats").Stats(ctx)
}

func (r *reached) Events(ctx context.Context, from skep.Cursor, snapshot bool) (skep.EventStream, error) {
	return r.note("Store.Events").Events(ctx, from, snapshot)
}

func (r *reached) Restore(ctx context.Context, q *skep.RestoreRequest) (skep.Session, error) {
	s, err := r.note("Store.Restore").Restore(ctx, q)
	if err != nil {
		return nil, err
	}
	return &reachedSession{s, r}, nil
}

func (r *reached) Close() error { return r.note("Store.Close").Close() }

type reachedSession struct {
	skep.Session
	in *reached
}

func (s *reachedSession) Next(ctx context.Context, into []skep.Chunk) (int, error) {
	s.in.note("Session.Next")
	return s.Session.Next(ctx, into)
}

func (s *reachedSession) Direction(ctx context.Context, chain int) (skep.Direction, error) {
	s.in.note("Session.Direction")
	return s.Session.Direction(ctx, chain)
}

func (s *reachedSession) Claim(ctx context.Context, chain int, want skep.Subset, load skep.EngineLoad) (skep.Claim, error) {
	s.in.note("Session.Claim")
	return s.Session.Claim(ctx, chain, want, load)
}

func (s *reachedSession) ShareClaimWord(ctx context.Context, chain int, word *atomic.Uint64) error {
	s.in.note("Session.ShareClaimWord")
	return s.Session.ShareClaimWord(ctx, chain, word)
}

func (s *reachedSession) Computed(ctx context.Context, chain int, done skep.Range, d time.Duration, other time.Duration) error {
	s.in.note("Session.Computed")
	return s.Session.Computed(ctx, chain, done, d, other)
}

func (s *reachedSession) Reprioritise(ctx context.Context, chain int, priority int, deadline time.Time) error {
	s.in.note("Session.Reprioritise")
	return s.Session.Reprioritise(ctx, chain, priority, deadline)
}

func (s *reachedSession) Stop(ctx context.Context, chain int) error {
	s.in.note("Session.Stop")
	return s.Session.Stop(ctx, chain)
}

func (s *reachedSession) Close(ctx context.Context) error {
	s.in.note("Session.Close")
	return s.Session.Close(ctx)
}
