package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/server"
)

// hasty are options of a client that waits for nothing long.
func hasty(addr string) Options {
	return Options{Addr: addr, Token: operator, Timeout: 200 * time.Millisecond, Patience: time.Second, Silence: 200 * time.Millisecond, Conns: 2}
}

// patient is a client of tests where what breaks shows at once: no wait of it is a verdict, however
// busy the machine.
func patient(addr string) Options {
	return Options{Addr: addr, Token: operator, Timeout: time.Minute, Patience: time.Minute, Silence: time.Minute, Conns: 1}
}

// requireMisses requires what an engine gets of a server that is not there: nothing
// found, nothing wanted, nothing stored, chunks that miss, and no error.
func requireMisses(t *testing.T, c *Client, ch skep.Chain) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	found, err := c.Lookup(ctx, &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys})
	require.NoError(t, err)
	require.Zero(t, found.Blocks)
	want, err := c.Want(ctx, &skep.WantRequest{Scope: ch.Scope, Keys: ch.Keys})
	require.NoError(t, err)
	require.Len(t, want, len(ch.Keys))
	for _, w := range want {
		require.False(t, w.Wanted)
	}
	s, err := c.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.NoError(t, err)
	chunks := collect(t, s)
	require.Len(t, chunks, len(ch.Keys))
	for _, x := range chunks {
		require.ErrorIs(t, x.Err, skep.Unavailable)
	}
	require.NoError(t, s.Stop(ctx, -1))
	require.NoError(t, s.Close(ctx))
	require.Positive(t, c.Misses())
}

func requireHits(t testing.TB, c *Client, ch skep.Chain) {
	t.Helper()
	require.Equal(t, len(ch.Keys), hits(t, c, ch))
}

// hits is how many blocks of a chain a client finds and is sent, each byte as it was put; 0 where
// less than all is found. The namespace is known to it, or is asked for.
func hits(t testing.TB, c *Client, ch skep.Chain) (n int) {
	t.Helper()
	found, err := c.Lookup(t.Context(), &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys, Lease: skep.NoLease})
	require.NoError(t, err)
	if _, err := c.namespace(t.Context(), "restore", ch.Namespace); err != nil || found.Blocks < len(ch.Keys) {
		return 0
	}
	s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.NoError(t, err)
	each(t, s, func(x *skep.Chunk) {
		if x.Err != nil {
			require.ErrorIs(t, x.Err, skep.Unavailable)
			return
		}
		n++
		var got []byte
		for _, d := range x.Data {
			got = append(got, d...)
		}
		require.Equal(t, storetest.Payload(ch.Keys[x.Block], skep.PartKV, blockSize), got)
		x.Release()
	})
	require.NoError(t, s.Close(t.Context()))
	return n
}

// A server that goes away, comes back, says nothing, or is cut off costs misses, and
// afterwards all is as before.
func TestServerThatIsNotThereIsAMiss(t *testing.T) {
	t.Parallel()
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{})
	for name, fault := range map[string]func(p *proxy) (mend func()){
		"cut and refused": func(p *proxy) func() {
			p.down.Store(true)
			p.cut()
			return func() { p.down.Store(false) }
		},
		"half open": func(p *proxy) func() {
			p.silent.Store(true)
			return func() { p.silent.Store(false); p.cut() }
		},
		"too slow": func(p *proxy) func() {
			p.delay.Store(int64(time.Second))
			return func() { p.delay.Store(0); p.cut() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t, r.addr)
			ch := chainOf(t, r.dial(t, r.options()), name, 4)
			c, err := NewClient(hasty(p.addr))
			require.NoError(t, err)
			defer func() { require.NoError(t, c.Close()) }()
			// A busy machine may cost a hasty client a miss; in time it is served.
			served := func() bool { return hits(t, c, ch) == len(ch.Keys) }
			storetest.Eventually(t, "it is served", served)
			mend := fault(p)
			requireMisses(t, c, ch)
			o := hasty(p.addr)
			o.Strict = true
			if name == "cut and refused" {
				_, err := Dial(t.Context(), o)
				require.ErrorIs(t, err, skep.Unavailable)
				res, err := c.Put(t.Context(), &skep.PutRequest{Scope: ch.Scope, Blocks: make([]skep.Block, 2)})
				require.NoError(t, err)
				require.Equal(t, []skep.PutResult{{Reason: skep.Unavailable}, {Reason: skep.Unavailable}}, res)
			}
			mend()
			storetest.Eventually(t, "it comes back", served)
		})
	}
}

func TestStrictClientsAreToldWhy(t *testing.T) {
	t.Parallel()
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{})
	p := newProxy(t, r.addr)
	o := patient(p.addr)
	o.Strict = true
	c := r.dial(t, o)
	ch := chainOf(t, c, "t", 2)
	p.down.Store(true)
	p.cut()
	_, err := c.Lookup(t.Context(), &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys})
	require.ErrorIs(t, err, skep.Unavailable)
	_, err = c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.ErrorIs(t, err, skep.Unavailable)
	_, err = c.Put(t.Context(), &skep.PutRequest{Scope: ch.Scope})
	require.ErrorIs(t, err, skep.Unavailable)
}

// A connection cut in the middle of a restore: what landed is right, the rest are
// misses, and no byte is written once Stop has returned.
func TestCutInTheMiddleOfARestore(t *testing.T) {
	t.Parallel()
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{})
	p := newProxy(t, r.addr)
	o := patient(p.addr)
	o.Conns, o.Window = 1, frames.LeastWindow
	c := r.dial(t, o)
	ch := chainOf(t, c, "t", 64) // 4 MiB behind a window of 1
	for range 5 {
		mem := make([]byte, 64*blockSize)
		ch.Dest = skep.Destination{Memory: mem}
		s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
		require.NoError(t, err)
		into := make([]skep.Chunk, 4)
		n, err := s.Next(t.Context(), into)
		require.NoError(t, err)
		p.cut()
		got := append(into[:n:n], collect(t, s)...)
		require.NoError(t, s.Stop(t.Context(), -1))
		require.Len(t, got, 64)
		misses := 0
		for _, x := range got {
			if x.Err != nil {
				misses++
				require.ErrorIs(t, x.Err, skep.Unavailable)
				continue
			}
			require.Equal(t, storetest.Payload(ch.Keys[x.Block], skep.PartKV, blockSize), mem[x.Block*blockSize:(x.Block+1)*blockSize])
		}
		require.Positive(t, misses)
		require.NoError(t, s.Close(t.Context()))
	}
	require.Eventually(t, func() bool { return r.Stats().Sessions == 0 }, time.Minute, time.Millisecond)
}

// One flipped bit anywhere on the way is a miss or a broken connection, never bytes.
func TestBitsFlippedOnTheWayAreSeen(t *testing.T) {
	t.Parallel()
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{})
	p := newProxy(t, r.addr)
	o := patient(p.addr)
	o.Conns = 1
	c := r.dial(t, o)
	ch := chainOf(t, c, "t", 4)
	seen := map[skep.Kind]int{}
	for i := range 60 {
		requireHits(t, c, ch) // the connection stands
		p.flip.Store(int64(1 + i*i*97%(4*blockSize+500)))
		s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
		require.NoError(t, err)
		for _, x := range collect(t, s) {
			if x.Err != nil {
				seen[skep.KindOf(x.Err)]++
				continue
			}
			var got []byte
			for _, d := range x.Data {
				got = append(got, d...)
			}
			require.Equal(t, storetest.Payload(ch.Keys[x.Block], skep.PartKV, blockSize), got)
			x.Release()
		}
		p.flip.Store(0)
		require.NoError(t, s.Close(t.Context()))
	}
	require.Positive(t, seen[skep.Damaged], "%v", seen)
	require.Zero(t, c.memory.Used())
}

// A put whose bytes do not match what the client computed stores nothing.
func TestPutOfDamagedBytesIsRefused(t *testing.T) {
	t.Parallel()
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{})
	c := r.dial(t, r.options())
	ch := chainOf(t, c, "t", 1)
	x, err := c.conn(t.Context(), 0)
	require.NoError(t, err)
	key := skep.KeyOf([]byte("new"))
	m := &frames.PutRequest{Scope: ch.Scope, Parent: &ch.Keys[0], Depth: 1,
		Blocks: []frames.PutBlock{{Key: key, Parts: []frames.PutPart{{Name: "kv", Size: blockSize, Sum: frames.SumXXH3,
			Check: 1}}}}}
	_, err = x.call(t.Context(), frames.TypePut, m, net.Buffers{make([]byte, blockSize)}, nil)
	require.ErrorIs(t, err, skep.Damaged)
	st, err := r.st.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, st.Blocks)
	require.Eventually(t, func() bool { return r.Stats().Memory == 0 }, time.Minute, time.Millisecond, "it is given back after the answer")
}

// A session without credit, and a connection that reads nothing at all, hold up nobody
// else; the latter is closed, and everything comes back.
func TestSlowReadersStallThemselvesOnly(t *testing.T) {
	t.Parallel()
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{Limits: server.Limits{Stall: 5 * time.Second, Rate: 64 << 20}})
	c := r.dial(t, r.options())
	ch := chainOf(t, c, "t", 256)
	// On one connection: a session that gives no credit beside one that does.
	one := r.options()
	one.Conns, one.Window = 1, frames.LeastWindow
	same := r.dial(t, one)
	stuck, err := same.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.NoError(t, err)
	requireHits(t, same, ch)
	// Sockets that nobody reads.
	var slow []*rawConn
	for range 8 {
		x := rawDial(t, r.addr)
		x.hello(t, operator)
		x.send(t, frames.Header{Type: frames.TypeRestore, Call: 1}, &frames.RestoreRequest{Window: 1 << 40,
			Chains: []frames.RestoreChain{{Scope: ch.Scope, Keys: ch.Keys}}}, "")
		slow = append(slow, x)
	}
	requireHits(t, c, ch)
	requireHits(t, same, ch)
	require.Eventually(t, func() bool { return r.Stats().Connections <= 8 }, time.Minute, 10*time.Millisecond, "who takes nothing is closed")
	for _, x := range slow {
		x.Close()
	}
	got := collect(t, stuck) // ended for want of credit: misses
	require.Len(t, got, 256)
	require.NoError(t, stuck.Close(t.Context()))
	require.Eventually(t, func() bool { s := r.Stats(); return s.Sessions == 0 && s.Memory == 0 }, time.Minute, time.Millisecond)
}

// Who sends a byte now and then is closed, before and after the hello.
func TestSlowLorisIsClosed(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]server.Limits{"before": {Hello: 100 * time.Millisecond}, "after": {Hello: time.Minute, Stall: 100 * time.Millisecond}} {
		r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{Limits: l})
		x := rawDial(t, r.addr)
		typ := frames.TypeHello
		if name == "after" {
			x.hello(t, operator)
			typ = frames.TypeLookup
		}
		b, err := frames.AppendFrame(nil, frames.Header{Type: typ, Call: 1},
			&frames.Document{Bytes: make([]byte, 4000)})
		require.NoError(t, err)
		closed := make(chan struct{})
		go func() {
			_, _, _ = x.next()
			close(closed)
		}()
		for i := 0; ; i++ {
			_, err := x.Write(b[i%len(b) : i%len(b)+1])
			select {
			case <-closed:
			case <-time.After(10 * time.Millisecond):
				if err == nil && i < 3000 {
					continue
				}
			}
			break
		}
		<-closed
		require.Eventually(t, func() bool { return r.Stats().Connections == 0 }, time.Minute, time.Millisecond, name)
	}
}

// What does not fit into the server's memory is refused at once, with a time to come
// back, and nothing of it is done.
func TestOverloadIsRefused(t *testing.T) {
	t.Parallel()
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{Limits: server.Limits{Memory: 3 << 20, Calls: 8}})
	o := r.options()
	o.Strict, o.Conns = true, 1
	c := r.dial(t, o)
	ch := chainOf(t, c, "t", 32)
	var open []skep.Session
	x, err := c.conn(t.Context(), 0)
	require.NoError(t, err)
	for {
		_, err = x.call(t.Context(), frames.TypeRestore,
			&frames.RestoreRequest{Chains: []frames.RestoreChain{{Scope: ch.Scope, Keys: ch.Keys}}}, nil, nil)
		if err != nil {
			break
		}
		open = append(open, nil)
	}
	require.Less(t, len(open), 4)
	require.ErrorIs(t, err, skep.Overloaded)
	var e *skep.Error
	require.True(t, errors.As(err, &e))
	require.Positive(t, e.RetryAfter)
	res, err := c.Put(t.Context(), &skep.PutRequest{Scope: ch.Scope, Parent: &ch.Keys[31], Depth: 32, Blocks: []skep.Block{
		{Key: skep.KeyOf([]byte("x")), Parts: []skep.Part{{Bytes: make([]byte, blockSize)}}}}})
	if err == nil {
		require.Equal(t, skep.Committed, res[0].Outcome) // it fitted
	} else {
		require.ErrorIs(t, err, skep.Overloaded)
	}
	require.LessOrEqual(t, r.Stats().Memory, int64(3<<20))
	require.Positive(t, r.Stats().Shed)
}

// A session whose chunks were all sent holds no window, however long its client leaves it open.
func TestASessionThatIsSentHoldsNoWindow(t *testing.T) {
	t.Parallel()
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{})
	c := r.dial(t, r.options())
	ch := chainOf(t, c, "t", 4)
	s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.NoError(t, err)
	for _, x := range collect(t, s) {
		x.Release()
	}
	require.Eventually(t, func() bool { return r.Stats().Memory < frames.LeastWindow }, time.Minute, time.Millisecond)
	require.Equal(t, 1, r.Stats().Sessions)
	require.NoError(t, s.Close(t.Context()))
	require.Eventually(t, func() bool { return r.Stats().Memory == 0 }, time.Minute, time.Millisecond)
}

// Frames over the limits, of other versions, with wrong checksums and unknown types.
func TestFramesThatAreNotTheProtocol(t *testing.T) {
	t.Parallel()
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{Limits: server.Limits{Body: 1 << 20, Payload: 1 << 20, Keys: 10}})
	ask := func(t *testing.T, b []byte) (frames.Header, error) {
		x := rawDial(t, r.addr)
		x.hello(t, operator)
		_, err := x.Write(b)
		require.NoError(t, err)
		h, body, err := x.next()
		if err != nil {
			return h, err
		}
		if h.Type == frames.TypeError {
			return h, errorIn(t, body)
		}
		return h, nil
	}
	frame := func(h frames.Header, m frames.Message) []byte {
		b, err := frames.AppendFrame(nil, h, m)
		require.NoError(t, err)
		return b
	}
	ping := frame(frames.Header{Type: frames.TypePing, Call: 1}, nil)
	for i := range ping {
		bad := append([]byte(nil), ping...)
		bad[i] ^= 1
		_, err := ask(t, bad)
		require.Error(t, err, "byte %d", i)
	}
	big := frames.Header{Version: frames.Version, Type: frames.TypeLookup, Call: 1, Body: 1<<20 + 1}
	_, err := ask(t, big.Append(nil))
	require.ErrorIs(t, err, skep.Invalid)
	big = frames.Header{Version: frames.Version, Type: frames.TypePut, Call: 1, Payload: 1<<20 + 1}
	_, err = ask(t, big.Append(nil))
	require.ErrorIs(t, err, skep.Invalid)
	big = frames.Header{Version: frames.Version, Type: frames.TypePing, Call: 1, Payload: 1}
	_, err = ask(t, big.Append(nil))
	require.ErrorIs(t, err, skep.Invalid)
	for _, typ := range []frames.Type{frames.TypeSelect, frames.TypeAppend, 0x7e, frames.TypeChunks, frames.TypeHello,
		frames.TypeError} {
		_, err = ask(t, frame(frames.Header{Type: typ, Call: 1}, nil))
		require.ErrorIs(t, err, skep.Unsupported, "%v", typ)
	}
	_, err = ask(t, frame(frames.Header{Type: frames.TypeLookup, Call: 1}, &frames.Document{Bytes: []byte("rubbish")}))
	require.ErrorIs(t, err, skep.Invalid)
	_, err = ask(t, frame(frames.Header{Type: frames.TypeLookup, Call: 1},
		&frames.LookupRequest{LookupRequest: skep.LookupRequest{Keys: make([]skep.Key, 11)}}))
	require.ErrorIs(t, err, skep.Invalid)
	require.Eventually(t, func() bool { return r.Stats().Connections == 0 || r.Stats().Memory == 0 }, time.Minute, time.Millisecond)
}

// Two versions apart, both sides say so.
func TestVersionsThatDoNotMeet(t *testing.T) {
	t.Parallel()
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{})
	x := rawDial(t, r.addr)
	x.send(t, frames.Header{Type: frames.TypeHello}, &frames.Hello{Min: 2, Max: 9, Token: operator}, "")
	h, body, err := x.next()
	require.NoError(t, err)
	require.Equal(t, frames.TypeError, h.Type)
	require.ErrorIs(t, errorIn(t, body), skep.Version)
	_, _, err = x.next()
	require.Error(t, err, "closed")
}

// Many clients at once, coming and going in every way there is: nothing is left.
//
// Alone: goroutines of the whole process are counted.
func TestManyConnectionsLeaveNothing(t *testing.T) {
	total := 1000
	if testing.Short() {
		total = 300
	}
	if v := os.Getenv("SKEP_CONNECTIONS"); v != "" { // 10000, once in a while: it takes most of a minute
		var err error
		total, err = strconv.Atoi(v)
		require.NoError(t, err)
	}
	r := serve(t, "tcp", newMemstore(storetest.Config{}), server.Options{})
	keeper := r.dial(t, r.options())
	ch := chainOf(t, keeper, "t", 16)
	goroutines := settled(t)
	fds := descriptors(t)
	var wait sync.WaitGroup
	errs := make(chan error, 64)
	for w := range 64 {
		wait.Go(func() {
			for i := w; i < total; i += 64 {
				if err := oneVisit(r, ch, i); err != nil {
					select {
					case errs <- fmt.Errorf("visit %d: %w", i, err):
					default:
					}
				}
			}
		})
	}
	wait.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { s := r.Stats(); return s.Connections <= 4 && s.Sessions+s.Streams == 0 && s.Memory == 0 }, time.Minute, time.Millisecond)
	require.GreaterOrEqual(t, r.Stats().Accepted, int64(total))
	require.Eventually(t, func() bool { st, err := r.st.Stats(t.Context()); return err == nil && st.Leases == 0 }, time.Minute, 10*time.Millisecond)
	storetest.Eventually(t, fmt.Sprintf("no more than %d goroutines and %d descriptors", goroutines, fds), func() bool {
		return runtime.NumGoroutine() <= goroutines && descriptors(t) <= fds
	})
}

// oneVisit is one connection: a lookup with a lease, a restore that is read, stopped, cut
// off or left alone, a stream of events, an open block, or a hello that never comes.
func oneVisit(r *rig, ch skep.Chain, i int) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if i%7 == 6 {
		c, err := net.Dial("tcp", r.addr)
		if err != nil {
			return err
		}
		if i%2 == 0 {
			_, _ = c.Write(make([]byte, 30))
		}
		return c.Close()
	}
	c, err := Dial(ctx, patient(r.addr))
	if err != nil {
		return err
	}
	c.leave = time.Minute // however busy the machine
	defer c.Close()
	// Who says goodbye needs no time for the lease; who is cut off has one that ends soon.
	lease := time.Hour / 10
	if i%7 == 3 {
		lease = 50 * time.Millisecond
	}
	if _, err := c.Lookup(ctx, &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys, Lease: lease}); err != nil {
		return err
	}
	if i%7 == 0 {
		return nil
	}
	s, err := c.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	if err != nil {
		return err
	}
	switch i % 7 {
	case 1:
		if _, err := s.Next(ctx, make([]skep.Chunk, 1)); err != nil {
			return err
		}
		return s.Close(ctx)
	case 2:
		return s.Stop(ctx, -1)
	case 3:
		return c.slots[0].conn.l.Conn.Close()
	case 4:
		_, err = c.Events(ctx, skep.Cursor{}, true)
	case 5:
		_, err = c.Begin(ctx, &skep.BeginRequest{Scope: ch.Scope, Key: skep.KeyOf(fmt.Append(nil, i)), Manifest: skep.Manifest{{Name: "kv", Size: blockSize}}})
	}
	return err
}

// A block that is larger than the session's window, and comes in several frames, arrives whole,
// lent or in the reader's memory.
func TestABlockLargerThanTheWindow(t *testing.T) {
	t.Parallel()
	const size, window = 13 << 20, 1 << 20
	st := newMemstore(storetest.Config{})
	r := serve(t, "tcp", st, server.Options{Limits: server.Limits{Stall: time.Minute}})
	o := r.options()
	o.Window = window
	c := r.dial(t, o)
	ns, err := c.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: skep.Shape{BlockTokens: 16, Bytes: size}, Chained: true})
	require.NoError(t, err)
	sc := skep.Scope{Namespace: ns.ID}
	key := skep.ChainKey(nil, []uint32{1})
	want := storetest.Payload(key, skep.PartKV, size)
	_, err = c.Put(t.Context(), &skep.PutRequest{Scope: sc, Blocks: []skep.Block{{Key: key, Parts: []skep.Part{{Bytes: want}}}}})
	require.NoError(t, err)
	for _, memory := range [][]byte{nil, make([]byte, size)} {
		ch := skep.Chain{Scope: sc, Keys: []skep.Key{key}}
		if memory != nil {
			ch.Dest = skep.Destination{Memory: memory, Stride: size}
		}
		s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
		require.NoError(t, err)
		for _, x := range collect(t, s) {
			require.NoError(t, x.Err)
			got := memory
			if memory == nil {
				got = slices.Concat(x.Data...)
			}
			require.True(t, bytes.Equal(want, got))
			x.Release()
		}
		require.NoError(t, s.Close(t.Context()))
	}
}
