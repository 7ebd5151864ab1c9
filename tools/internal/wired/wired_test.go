package wired

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/store/unjudged"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/server"
)

// TestMain has no drive be judged: what was put is to be there, however busy the machine is.
func TestMain(m *testing.M) {
	unjudged.Drives()
	os.Exit(m.Run())
}

const operator = "the operator's token"

// rig is an engine behind a server, and a client of it.
type rig struct {
	*wire.Client
	st   skep.Store
	srv  *server.Server
	addr string
	stop func()
}

// Close closes the client, the server and the engine, as the contract test expects.
func (r *rig) Close() error {
	err := r.Client.Close()
	r.stop()
	return errors.Join(err, r.st.Close())
}

// options are of a client that gives nothing up, however busy the machine.
func options(addr string) wire.Options {
	return wire.Options{Addr: addr, Token: operator, Timeout: time.Minute, Patience: time.Minute, Silence: time.Minute}
}

func open(t *testing.T, o store.Options, change func(*wire.Options)) *rig {
	t.Helper()
	o.Dir = t.TempDir()
	st, err := store.Open(t.Context(), o)
	require.NoError(t, err)
	h, err := auth.TokenHash(operator)
	require.NoError(t, err)
	d, err := auth.New([]auth.Credential{{Name: "operator", Tenant: auth.AnyTenant, Rights: auth.All, TokenSHA256: h}}, nil, nil)
	require.NoError(t, err)
	srv, err := server.New(st, server.Options{Auth: d, Drain: 2 * time.Second})
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "skep")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l) }()
	r := &rig{st: st, srv: srv, addr: "unix:" + path}
	stopped := false
	r.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-done)
		}
	}
	wo := options(r.addr)
	if change != nil {
		change(&wo)
	}
	r.Client, err = wire.Dial(t.Context(), wo)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func shared(o *wire.Options) { o.SharedMemory = 64 << 20 }

// small is an engine that costs little.
func small() store.Options {
	return store.Options{CapacityBytes: 512 << 20, DeviceCount: 2, BlockBytes: 1 << 20, IOBytes: 64 << 20, CacheBytes: -1, LeasedBytes: 1 << 40}
}

func TestContractWithAnEngineBehind(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("the contract of the engine and of the wire are tested by themselves")
	}
	for name, change := range map[string]func(*wire.Options){"Unix socket": nil, "shared memory": shared} {
		t.Run(name, func(t *testing.T) {
			if change != nil && runtime.GOOS != "linux" {
				t.Skip("no memfd on this system")
			}
			storetest.Test(t, func(t *testing.T, c storetest.Config) skep.Store {
				return open(t, store.Options{CapacityBytes: c.CapacityBytes, BlockBytes: 64 << 10, IOBytes: 64 << 20, CacheBytes: 32 << 20,
					LeasedBytes: cmp.Or(c.TenantLeaseBytes, 1<<40), PinnedBytes: cmp.Or(c.TenantPinBytes, 1<<40), TenantNamespaces: c.TenantNamespaces}, change)
			})
		})
	}
}

// model is an 8B model's blocks of 4 tokens: 512 KiB.
var model = skep.Shape{Kind: skep.Attention, Layers: 32, KVHeads: 8, HeadDim: 128, Element: skep.BF16, BlockTokens: 4}

const blockBytes = 512 << 10

func putChain(t *testing.T, st skep.Store, n int) skep.Chain {
	t.Helper()
	ns, err := st.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: t.Name(), Shape: model, Chained: true})
	require.NoError(t, err)
	c := skep.Chain{Scope: skep.Scope{Namespace: ns.ID}}
	req := &skep.PutRequest{Scope: c.Scope}
	for i := range n {
		c.Keys = append(c.Keys, skep.KeyOf([]byte{byte(i), byte(i >> 8)}))
		req.Blocks = append(req.Blocks, skep.Block{Key: c.Keys[i], Parts: []skep.Part{{Bytes: storetest.Payload(c.Keys[i], skep.PartKV, blockBytes)}}})
	}
	res, err := st.Put(t.Context(), req)
	require.NoError(t, err)
	for _, r := range res {
		require.Equal(t, skep.Committed, r.Outcome)
	}
	return c
}

func each(t *testing.T, ses skep.Session, f func(*skep.Chunk)) {
	t.Helper()
	var into [8]skep.Chunk
	for {
		n, err := ses.Next(t.Context(), into[:])
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		for i := range into[:n] {
			f(&into[i])
		}
	}
}

// Blocks from drives and from the DRAM tier, several times over, into memory and lent:
// their checksums are those of the put, wherever they come from.
func TestWhatWasComputedAtPutIsWhatTheClientChecks(t *testing.T) {
	t.Parallel()
	for name, cache := range map[string]int64{"from drives": -1, "from the DRAM tier": 256 << 20} {
		t.Run(name, func(t *testing.T) {
			o := small()
			o.CacheBytes = cache
			r := open(t, o, nil)
			c := putChain(t, r, 64)
			mem := make([]byte, 64*blockBytes)
			for round := range 3 {
				for _, d := range []skep.Direction{skep.HeadFirst, skep.TailFirst, skep.LayersUp} {
					c.Direction, c.Dest = d, skep.Destination{}
					if round > 0 {
						c.Dest = skep.Destination{Memory: mem, Stride: blockBytes}
						clear(mem)
					}
					ses, err := r.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{c}})
					require.NoError(t, err)
					each(t, ses, func(ch *skep.Chunk) {
						require.NoError(t, ch.Err, "round %d, %v, block %d, layers %v, from %v", round, d, ch.Block, ch.Layers, ch.Tier)
						if round == 0 && d != skep.LayersUp {
							require.Equal(t, storetest.Payload(c.Keys[ch.Block], skep.PartKV, blockBytes), slices.Concat(ch.Data...))
						}
						ch.Release()
					})
					require.NoError(t, ses.Close(t.Context()))
					if round > 0 {
						for i, k := range c.Keys {
							require.Equal(t, storetest.Payload(k, skep.PartKV, blockBytes), mem[i*blockBytes:(i+1)*blockBytes])
						}
					}
				}
			}
			st, err := r.Stats(t.Context())
			require.NoError(t, err)
			require.Zero(t, st.Damaged)
		})
	}
}

// bytesRead is what the drives have read so far.
func bytesRead(t *testing.T, st skep.Store) (n int64) {
	t.Helper()
	s, err := st.Stats(t.Context())
	require.NoError(t, err)
	for _, d := range s.Devices {
		n += d.BytesRead
	}
	return n
}

// quiet waits until the drives read no more and gives what they have read.
func quiet(t *testing.T, st skep.Store) int64 {
	t.Helper()
	last, same := bytesRead(t, st), 0
	for same < 10 {
		time.Sleep(20 * time.Millisecond)
		if now := bytesRead(t, st); now == last {
			same++
		} else {
			last, same = now, 0
		}
	}
	return last
}

// Without credit, after a stop, an end, a cancelled connection: the drives read little
// more than the window, of a chain many times as long, and then nothing.
func TestStopReallyStopsTheDrives(t *testing.T) {
	t.Parallel()
	r := open(t, small(), nil)
	c := putChain(t, r, 256) // 128 MiB
	const window = 2 << 20
	for name, end := range map[string]func(t *testing.T, x *wire.Client, s skep.Session){
		"stop": func(t *testing.T, _ *wire.Client, s skep.Session) {
			require.NoError(t, s.Stop(t.Context(), -1))
			misses := 0
			each(t, s, func(ch *skep.Chunk) {
				if ch.Err != nil {
					require.ErrorIs(t, ch.Err, skep.Stopped)
					misses++
				}
				ch.Release()
			})
			require.Greater(t, misses, 200)
			require.NoError(t, s.Close(t.Context()))
		},
		"end":                       func(t *testing.T, _ *wire.Client, s skep.Session) { require.NoError(t, s.Close(t.Context())) },
		"the end of the connection": func(t *testing.T, x *wire.Client, _ skep.Session) { require.NoError(t, x.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			o := options(r.addr)
			o.Window, o.Conns = window, 1
			x, err := wire.Dial(t.Context(), o)
			require.NoError(t, err)
			before := quiet(t, r.st)
			s, err := x.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{c}})
			require.NoError(t, err)
			_, err = s.Next(t.Context(), make([]skep.Chunk, 1)) // lent and not given back: no credit
			require.NoError(t, err)
			stalled := quiet(t, r.st)
			require.Less(t, stalled-before, int64(24<<20), "a reader that gives no credit is not read for")
			end(t, x, s)
			require.NoError(t, x.Close())
			require.Eventually(t, func() bool { return r.srv.Stats().Sessions == 0 }, time.Minute, time.Millisecond)
			// What was asked of the drives before the end may still come in; the 100 MiB
			// and more that were left may not.
			require.Less(t, quiet(t, r.st)-before, int64(24<<20), "nothing is asked for after it")
		})
	}
}

// A session whose reader gives no credit, on the same connection and on others, leaves
// the others what they need: they come to their end.
func TestSlowReadersLeaveTheEngineToOthers(t *testing.T) {
	t.Parallel()
	r := open(t, small(), nil) // 64 MiB of I/O memory
	c := putChain(t, r, 64)
	for range 12 {
		o := options(r.addr)
		o.Conns = 1
		x, err := wire.Dial(t.Context(), o)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, x.Close()) })
		s, err := x.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{c}, Window: 1 << 20})
		require.NoError(t, err)
		_, err = s.Next(t.Context(), make([]skep.Chunk, 1))
		require.NoError(t, err)
	}
	for range 3 {
		s, err := r.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{c}})
		require.NoError(t, err)
		n := 0
		each(t, s, func(ch *skep.Chunk) {
			require.NoError(t, ch.Err)
			n++
			ch.Release()
		})
		require.Equal(t, 64, n)
		require.NoError(t, s.Close(t.Context()))
	}
}

// Into shared memory nothing is copied: what the drives read is what lands.
func TestNothingIsCopiedThroughSharedMemory(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("no memfd on this system")
	}
	r := open(t, small(), shared)
	c := putChain(t, r, 64)
	mem, err := r.Alloc(t.Context(), 64*blockBytes)
	require.NoError(t, err)
	defer mem.Release()
	before, err := r.Stats(t.Context())
	require.NoError(t, err)
	sent := r.srv.Stats().SentBytes
	for _, d := range []skep.Direction{skep.HeadFirst, skep.LayersDown} {
		clear(mem.Bytes())
		c.Direction, c.Dest = d, skep.Destination{Memory: mem.Bytes(), Stride: blockBytes}
		s, err := r.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{c}})
		require.NoError(t, err)
		each(t, s, func(ch *skep.Chunk) { require.NoError(t, ch.Err) })
		require.NoError(t, s.Close(t.Context()))
		for i, k := range c.Keys {
			require.Equal(t, storetest.Payload(k, skep.PartKV, blockBytes), mem.Bytes()[i*blockBytes:(i+1)*blockBytes])
		}
	}
	after, err := r.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, before.CopiedBytes, after.CopiedBytes)
	require.Equal(t, sent, r.srv.Stats().SentBytes)
	require.Equal(t, int64(2*64*blockBytes), after.RestoredBytes-before.RestoredBytes)
}
