package wired

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/drawn"
	"github.com/skepkv/skep/tools/internal/redistest"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/hostile"
)

// A tenant that takes all it can get of everything that is counted takes nothing from another: what
// the other calls succeeds. make greedy runs it for long, and judges time too.
func TestGreedyTenant(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	var long time.Duration
	if v := os.Getenv("SKEP_GREEDY_TIME"); v != "" {
		var err error
		long, err = time.ParseDuration(v)
		require.NoError(t, err)
	}
	t.Logf("SKEP_SEED=%d, for %v", seed, long)
	st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), DeviceCount: 2, CapacityBytes: 256 << 20, SegmentBytes: 4 << 20, BlockBytes: 2 << 20, IOBytes: 64 << 20,
		CacheBytes: 32 << 20, TenantNamespaces: 64, WriterBytes: 16 << 20, PinnedBytes: 8 << 20, LeasedBytes: 1 << 40,
		CallBytes: greedyCalls})
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "skep-greedy")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	s, err := hostile.Serve(st, dir)
	require.NoError(t, err)

	m := newModest(t, s, seed)
	alone := m.rounds(t, 20, long/4)
	g := newGreedy(t, s, long)
	g.readOn(t)
	m.rounds(t, 1, 0)
	g.stall(t)
	g.takeAll(t)
	held := m.rounds(t, 20, long/2)
	g.keepOn()
	beside := m.rounds(t, 20, long/4)
	g.end(t)
	m.end()
	require.NoError(t, s.Close())
	require.NoError(t, st.Close())

	var slow []string
	for _, name := range m.names {
		a, h, b := median(alone[name]), median(held[name]), median(beside[name])
		t.Logf("%-24s alone %8v, all held %8v (%.1f x), greedy calls beside %8v (%.1f x)", name, a, h, float64(h)/float64(a), b, float64(b)/float64(a))
		if h > 2*a && h > a+syncs {
			slow = append(slow, name)
		}
	}
	if long > 0 {
		require.Empty(t, slow, "calls that take more than twice their time while another tenant holds all it can get")
	}
}

// syncs is by how much more or less a call takes that a drive syncs for, on a machine that does more than this.
const syncs = 2 * time.Millisecond

func median(list []time.Duration) time.Duration {
	slices.Sort(list)
	return list[len(list)/2]
}

// spaceOf is a namespace of a tenant's.
func spaceOf(tenant, name string) skep.NamespaceSpec {
	return skep.NamespaceSpec{Tenant: tenant, Name: name, Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}, Chained: true}
}

func dial(t *testing.T, s *hostile.Server, token string, change func(*wire.Options)) *wire.Client {
	t.Helper()
	at := s.Addrs[hostile.Wire][0]
	o := wire.Options{Addr: at.String(), Token: token, Conns: 1, Timeout: 20 * time.Second, Patience: 20 * time.Second, Silence: time.Minute}
	if change != nil {
		o.Addr = "unix:" + s.Addrs[hostile.Wire][1].String()
		change(&o)
	}
	c, err := wire.Dial(t.Context(), o)
	require.NoError(t, err)
	return c
}

func redisTo(s *hostile.Server, token string) *redistest.Client {
	return redistest.New(redistest.Options{Addr: s.Addrs[hostile.Resp][0].String(), Password: token, Timeout: 20 * time.Second})
}

// modest is a tenant that makes every kind of call, one after the other.
type modest struct {
	s     *hostile.Server
	c     *wire.Client
	rc    *redistest.Client
	web   *http.Client
	space skep.NamespaceInfo
	names []string
	n     uint64
	keys  []skep.Key
}

func newModest(t *testing.T, s *hostile.Server, seed uint64) *modest {
	m := &modest{s: s, c: dial(t, s, hostile.TokenHonest, nil), rc: redisTo(s, hostile.TokenHonest), web: &http.Client{Transport: &http.Transport{}, Timeout: 20 * time.Second}, n: seed}
	var err error
	m.space, err = m.c.OpenNamespace(t.Context(), spaceOf(hostile.HonestTenant, "work"))
	require.NoError(t, err)
	return m
}

func (m *modest) end() {
	_ = m.rc.Close()
	_ = m.c.Close()
	m.web.CloseIdleConnections()
}

const (
	modestBlock = 16 << 10
	modestValue = 256 << 10
)

// rounds makes all calls n times, or for as long as given, and says how long each took.
func (m *modest) rounds(t *testing.T, n int, long time.Duration) map[string][]time.Duration {
	t.Helper()
	took := map[string][]time.Duration{}
	m.names = nil
	for end := time.Now().Add(long); n > 0 || time.Now().Before(end); n-- {
		m.n++
		for _, call := range m.calls() {
			if !slices.Contains(m.names, call.name) {
				m.names = append(m.names, call.name)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			began := time.Now()
			err := call.do(ctx)
			took[call.name] = append(took[call.name], time.Since(began))
			cancel()
			require.NoError(t, err, call.name)
		}
	}
	return took
}

type modestCall struct {
	name string
	do   func(ctx context.Context) error
}

// calls are those of a round, in order: a later one goes by what earlier ones did.
func (m *modest) calls() []modestCall {
	sc := skep.Scope{Namespace: m.space.ID}
	m.keys = []skep.Key{skep.KeyOf(fmt.Append(nil, "a", m.n)), skep.KeyOf(fmt.Append(nil, "b", m.n))}
	data := bytes.Repeat([]byte{byte(m.n)}, modestBlock)
	value := bytes.Repeat([]byte{byte(m.n)}, modestValue)
	var lease skep.Lease
	var fresh skep.NamespaceInfo
	var events skep.EventStream
	name := fmt.Sprint("k", m.n)
	return []modestCall{
		{"put", func(ctx context.Context) error {
			res, err := m.c.Put(ctx, &skep.PutRequest{Scope: sc, Ack: skep.AckCommitted, Blocks: []skep.Block{{Key: m.keys[0], Parts: []skep.Part{{Bytes: data}}}}})
			return errors.Join(err, outcome(res...))
		}},
		{"begin, write and commit", func(ctx context.Context) error {
			w, err := m.c.Begin(ctx, &skep.BeginRequest{Scope: sc, Key: m.keys[1], Parent: &m.keys[0], Depth: 1, Manifest: skep.Manifest{{Name: skep.PartKV, Size: modestBlock}}})
			if err != nil {
				return err
			}
			err = w.Write(ctx, skep.PartKV, 0, data)
			res, e := w.Commit(ctx, skep.AckCommitted)
			return errors.Join(err, e, outcome(res))
		}},
		{"lookup with a lease", func(ctx context.Context) error {
			r, err := m.c.Lookup(ctx, &skep.LookupRequest{Scope: sc, Keys: m.keys, Lease: time.Minute})
			if err == nil && (r.Blocks != 2 || r.LeaseDenied) {
				err = fmt.Errorf("%d of 2 blocks found, lease denied: %v", r.Blocks, r.LeaseDenied)
			}
			lease = r.Lease
			return err
		}},
		{"restore", func(ctx context.Context) error {
			mem := make([]byte, 2*modestBlock)
			ses, err := m.c.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: sc, Keys: m.keys, Dest: skep.Destination{Memory: mem, Stride: modestBlock}}}})
			if err != nil {
				return err
			}
			into := make([]skep.Chunk, 4)
			for {
				n, e := ses.Next(ctx, into)
				for i := range into[:n] {
					err = errors.Join(err, into[i].Err)
					into[i].Release()
				}
				if errors.Is(e, io.EOF) {
					break
				}
				if e != nil {
					return errors.Join(err, e, ses.Close(ctx))
				}
			}
			if !bytes.Equal(mem, append(slices.Clone(data), data...)) {
				err = errors.Join(err, errors.New("other bytes than were put"))
			}
			return errors.Join(err, ses.Close(ctx))
		}},
		{"release", func(ctx context.Context) error { return m.c.Release(ctx, lease.ID) }},
		{"hint", func(ctx context.Context) error {
			n, err := m.c.Hint(ctx, sc, m.keys, skep.Hint{NextUse: time.Minute})
			return errors.Join(err, all(n, 2))
		}},
		{"pin", func(ctx context.Context) error {
			n, err := m.c.Hint(ctx, sc, m.keys[:1], skep.Hint{Pin: time.Millisecond})
			return errors.Join(err, all(n, 1))
		}},
		{"events", func(ctx context.Context) (err error) { events, err = m.c.Events(ctx, skep.Cursor{}, false); return err }},
		{"delete", func(ctx context.Context) error {
			n, err := m.c.Delete(ctx, sc, m.keys)
			return errors.Join(err, all(n, 2))
		}},
		{"the event of it", func(ctx context.Context) error {
			_, err := events.Next(ctx, make([]skep.Event, 8))
			return errors.Join(err, events.Close())
		}},
		{"open namespace", func(ctx context.Context) (err error) {
			fresh, err = m.c.OpenNamespace(ctx, spaceOf(hostile.HonestTenant, name))
			return err
		}},
		{"delete namespace", func(ctx context.Context) error { return m.c.DeleteNamespace(ctx, fresh.ID) }},
		{"a new connection", func(ctx context.Context) error {
			c, err := wire.Dial(ctx, wire.Options{Addr: m.s.Addrs[hostile.Wire][0].String(), Token: hostile.TokenHonest, Conns: 1, Timeout: 20 * time.Second})
			if err != nil {
				return err
			}
			_, err = c.Namespaces(ctx)
			return errors.Join(err, c.Close())
		}},
		{"shared memory", func(ctx context.Context) error {
			c, err := wire.Dial(ctx, wire.Options{Addr: "unix:" + m.s.Addrs[hostile.Wire][1].String(), Token: hostile.TokenHonest, Conns: 1, Timeout: 20 * time.Second, SharedMemory: 1 << 20})
			if err != nil {
				return err
			}
			_, err = c.Namespaces(ctx)
			return errors.Join(err, c.Close())
		}},
		{"SET", func(ctx context.Context) error { return m.rc.Set(ctx, name, value, 0) }},
		{"GET", func(ctx context.Context) error {
			b, err := m.rc.Get(ctx, name)
			if err == nil && !bytes.Equal(b, value) {
				err = errors.New("other bytes than were set")
			}
			return err
		}},
		{"DEL", func(ctx context.Context) error { _, err := m.rc.Do(ctx, "DEL", name); return err }},
		{"a new RESP connection", func(ctx context.Context) error {
			c := redisTo(m.s, hostile.TokenHonest)
			return errors.Join(c.Ping(ctx), c.Close())
		}},
		{"a new HTTP connection", func(ctx context.Context) error {
			web := &http.Client{Transport: &http.Transport{}}
			defer web.CloseIdleConnections()
			return askHTTP(ctx, m.s, web, hostile.TokenHonest)
		}},
		{"HTTP", func(ctx context.Context) error { return askHTTP(ctx, m.s, m.web, hostile.TokenHonest) }},
	}
}

func askHTTP(ctx context.Context, s *hostile.Server, web *http.Client, token string) error {
	r, err := http.NewRequestWithContext(ctx, "GET", "http://"+s.Addrs[hostile.HTTP][0].String()+"/api/v1/namespaces", nil)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	a, err := web.Do(r)
	if err != nil {
		return err
	}
	b, err := io.ReadAll(a.Body)
	if a.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("status %d: %s", a.StatusCode, b))
	}
	return errors.Join(err, a.Body.Close())
}

func outcome(list ...skep.PutResult) error {
	for _, r := range list {
		if r.Outcome == skep.Declined {
			return &skep.Error{Op: "put", Kind: r.Reason}
		}
	}
	return nil
}

func all(n, of int) error {
	if n != of {
		return fmt.Errorf("%d blocks, should be %d", n, of)
	}
	return nil
}

// greedy is a tenant that takes all it can get, and keeps it.
type greedy struct {
	s      *hostile.Server
	ctx    context.Context
	stop   context.CancelFunc
	most   time.Duration // that one kind of thing is taken for
	wg     sync.WaitGroup
	mu     sync.Mutex
	undo   []func()
	c      *wire.Client
	space  skep.NamespaceInfo
	keys   []skep.Key
	called atomic.Int64
}

const greedyBlocks = 2000

func newGreedy(t *testing.T, s *hostile.Server, long time.Duration) *greedy {
	g := &greedy{s: s, c: dial(t, s, hostile.TokenHostile, nil), most: max(time.Second, long/8)}
	g.ctx, g.stop = context.WithCancel(context.Background())
	var err error
	g.space, err = g.c.OpenNamespace(t.Context(), spaceOf(hostile.HostileTenant, "mine"))
	require.NoError(t, err)
	for i := range greedyBlocks {
		g.keys = append(g.keys, skep.KeyOf(fmt.Append(nil, "greedy", i)))
	}
	r := &skep.PutRequest{Scope: g.scope(), Ack: skep.AckCommitted}
	for _, k := range g.keys {
		r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: bytes.Repeat([]byte{1}, 5<<10)}}})
	}
	res, err := g.c.Put(t.Context(), r)
	require.NoError(t, err)
	require.NoError(t, outcome(res...))
	return g
}

func (g *greedy) scope() skep.Scope { return skep.Scope{Namespace: g.space.ID} }

// keep has something let go at the end.
func (g *greedy) keep(undo func()) {
	g.mu.Lock()
	g.undo = append(g.undo, undo)
	g.mu.Unlock()
}

// kinds are the things it takes: each function takes the n-th of a kind.
func (g *greedy) kinds() map[string]func(ctx context.Context, n int) error {
	key := func(n int) []skep.Key { return g.keys[n%len(g.keys):][:1] }
	client := func(ctx context.Context, change func(*wire.Options)) error {
		o := wire.Options{Addr: g.s.Addrs[hostile.Wire][0].String(), Token: hostile.TokenHostile, Conns: 1, Timeout: 5 * time.Second, Patience: time.Millisecond}
		if change != nil {
			o.Addr = "unix:" + g.s.Addrs[hostile.Wire][1].String()
			change(&o)
		}
		c, err := wire.Dial(ctx, o)
		if err != nil {
			return err
		}
		g.keep(func() { _ = c.Close() })
		_, err = c.Namespaces(ctx)
		return err
	}
	return map[string]func(ctx context.Context, n int) error{
		"namespaces": func(ctx context.Context, n int) error {
			_, err := g.c.OpenNamespace(ctx, spaceOf(hostile.HostileTenant, fmt.Sprint("space ", n)))
			return err
		},
		"leases": func(ctx context.Context, n int) error {
			r, err := g.c.Lookup(ctx, &skep.LookupRequest{Scope: g.scope(), Keys: g.keys[:1+n%8], Lease: skep.MaxLease})
			if err == nil && r.LeaseDenied {
				err = &skep.Error{Op: "lookup", Kind: skep.Quota, Field: "lease"}
			}
			return err
		},
		"pins": func(ctx context.Context, n int) error {
			_, err := g.c.Hint(ctx, g.scope(), key(n), skep.Hint{Pin: skep.MaxPin})
			return err
		},
		"hints": func(ctx context.Context, n int) error {
			_, err := g.c.Hint(ctx, g.scope(), key(n), skep.Hint{NextUse: time.Hour})
			return err
		},
		"open blocks": func(ctx context.Context, n int) error {
			w, err := g.c.Begin(ctx, &skep.BeginRequest{Scope: g.scope(), Key: skep.KeyOf(fmt.Append(nil, "open", n)), Timeout: time.Hour, Manifest: skep.Manifest{{Name: skep.PartKV, Size: 64 << 10}}})
			if err == nil {
				g.keep(func() { _ = w.Abort(context.Background()) })
			}
			return err
		},
		"streams of events": func(ctx context.Context, n int) error {
			e, err := g.c.Events(ctx, skep.Cursor{}, n%2 == 0)
			if err == nil {
				g.keep(func() { _ = e.Close() })
			}
			return err
		},
		"sessions": func(ctx context.Context, n int) error {
			ses, err := g.c.Restore(ctx, &skep.RestoreRequest{Window: 1 << 20, Chains: []skep.Chain{{Scope: g.scope(), Keys: g.keys[:64]}}})
			if err == nil {
				g.keep(func() { _ = ses.Close(context.Background()) })
			}
			return err
		},
		"connections": func(ctx context.Context, n int) error { return client(ctx, nil) },
		"regions": func(ctx context.Context, n int) error {
			return client(ctx, func(o *wire.Options) { o.SharedMemory = 1 << 20 })
		},
		"RESP connections": func(ctx context.Context, n int) error {
			c := redisTo(g.s, hostile.TokenHostile)
			g.keep(func() { _ = c.Close() })
			return c.Ping(ctx)
		},
		"HTTP connections": func(ctx context.Context, n int) error {
			c := &http.Client{Transport: &http.Transport{}, Timeout: 5 * time.Second}
			g.keep(c.CloseIdleConnections)
			return askHTTP(ctx, g.s, c, hostile.TokenHostile)
		},
	}
}

// greedyCalls is what calls may keep in all, and callKey what a restore is counted as for a key.
const (
	greedyCalls = 16 << 20
	callKey     = 320
)

// readOn restores more unknown keys than may be under way together, in few sessions, and ends none of them when it
// has been told of all its keys.
func (g *greedy) readOn(t *testing.T) {
	t.Helper()
	into := make([]skep.Chunk, 256)
	for n := greedyCalls * 15 / 16 / callKey; n > 0; n /= 2 {
		keys := make([]skep.Key, n)
		for i := range keys {
			keys[i] = skep.KeyOf(fmt.Append(nil, "unknown", i))
		}
		r := &skep.RestoreRequest{Window: 64 << 10, Chains: []skep.Chain{{Scope: g.scope(), Keys: keys}}}
		ses, err := g.c.Restore(t.Context(), r)
		if skep.KindOf(err) == skep.Overloaded {
			continue
		}
		require.NoError(t, err)
		g.keep(func() { _ = ses.Close(context.Background()) })
		for err == nil {
			_, err = ses.Next(t.Context(), into)
		}
		if skep.KindOf(err) != skep.Overloaded {
			require.ErrorIs(t, err, io.EOF)
		}
	}
}

// stall has connections that send half of a value, or ask for one and do not read it, again and again: the
// server cuts each in time.
func (g *greedy) stall(t *testing.T) {
	t.Helper()
	const big = 12 << 20
	rc := redisTo(g.s, hostile.TokenHostile)
	defer rc.Close()
	require.NoError(t, rc.Set(t.Context(), "big", make([]byte, big), 0))
	half := hostile.Command("SET", []byte("half"), make([]byte, 4<<20))
	for i := range 24 {
		g.wg.Go(func() {
			for g.ctx.Err() == nil {
				c, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(g.ctx, "tcp", g.s.Addrs[hostile.Resp][0].String())
				if err != nil {
					continue
				}
				_ = c.SetDeadline(time.Now().Add(10 * time.Second))
				ends := context.AfterFunc(g.ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
				_, _ = c.Write(hostile.Command("AUTH", []byte(hostile.TokenHostile)))
				if i%2 == 0 {
					_, _ = c.Write(half[:len(half)/8])
					_, _ = io.Copy(io.Discard, c) // until it is cut
				} else {
					_, _ = c.Write(hostile.Command("GET", []byte("big")))
					_, _ = io.CopyN(io.Discard, c, 64) // and no more
					select {
					case <-g.ctx.Done():
					case <-time.After(10 * time.Second):
					}
				}
				ends()
				_ = c.Close()
			}
		})
	}
}

// takeAll takes of every kind until it is refused a few times in a row.
func (g *greedy) takeAll(t *testing.T) {
	t.Helper()
	const refusals = 5
	var mu sync.Mutex
	var lines []string
	var wg sync.WaitGroup
	for name, take := range g.kinds() {
		wg.Go(func() {
			end := time.Now().Add(g.most)
			var taken, refused int
			var last error
			for n := 0; refused < refusals && time.Now().Before(end); n++ {
				ctx, cancel := context.WithTimeout(g.ctx, g.most)
				if err := take(ctx, n); err != nil {
					refused++
					last = err
				} else {
					taken++
				}
				cancel()
			}
			mu.Lock()
			defer mu.Unlock()
			lines = append(lines, fmt.Sprintf("%-18s %6d taken, then %v", name, taken, last))
		})
	}
	wg.Wait()
	slices.Sort(lines)
	t.Logf("the greedy tenant has\n%s", strings.Join(lines, "\n"))
}

// keepOn has it call without end: long lists of keys, small values, and values that do not come or are not read.
func (g *greedy) keepOn() {
	for w := range 3 {
		g.wg.Go(func() {
			long := make([]skep.Key, 16<<10)
			copy(long, g.keys)
			rc := redisTo(g.s, hostile.TokenHostile)
			defer rc.Close()
			for n := 0; g.ctx.Err() == nil; n++ {
				ctx, cancel := context.WithTimeout(g.ctx, 5*time.Second)
				switch w {
				case 0:
					_, _ = g.c.Lookup(ctx, &skep.LookupRequest{Scope: g.scope(), Keys: long, Lease: skep.NoLease})
				case 1:
					_ = rc.Set(ctx, fmt.Sprint("small", n%5000), "v", 0)
				case 2:
					_, _ = g.c.Delete(ctx, g.scope(), long[greedyBlocks:])
				}
				cancel()
				g.called.Add(1)
			}
		})
	}
}

func (g *greedy) end(t *testing.T) {
	g.stop()
	g.wg.Wait()
	t.Logf("the greedy tenant made %d calls beside", g.called.Load())
	for _, f := range slices.Backward(g.undo) {
		f()
	}
	_ = g.c.Close()
}
