package wire

import (
	"bytes"
	"context"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
	"github.com/skepkv/skep/wire/server"
)

// gated is a Store that carries puts and restores out when its gate is opened, however long nobody
// waits for them any more.
type gated struct {
	skep.Store
	reached chan struct{} // by a call that waits

	mu   sync.Mutex
	gate chan struct{} // nil: open
}

func newGated() *gated {
	return &gated{Store: newMemstore(storetest.Config{}), reached: make(chan struct{}, 8)}
}

func (g *gated) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gate = make(chan struct{})
}

func (g *gated) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gate != nil {
		close(g.gate)
		g.gate = nil
	}
}

func (g *gated) wait() {
	g.mu.Lock()
	gate := g.gate
	g.mu.Unlock()
	if gate != nil {
		g.reached <- struct{}{}
		<-gate
	}
}

func (g *gated) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	g.wait()
	return g.Store.Restore(ctx, r)
}

func (g *gated) Put(ctx context.Context, r *skep.PutRequest) ([]skep.PutResult, error) {
	g.wait()
	return g.Store.Put(context.WithoutCancel(ctx), r)
}

// late is a client of a gated Store, which gives nothing up before a test says so.
func late(t *testing.T, g *gated, change func(*Options)) (*rig, *Client) {
	r := serve(t, "unix", g, server.Options{})
	o := patient(r.addr)
	if change != nil {
		change(&o)
	}
	c := r.dial(t, o)
	t.Cleanup(g.open) // of a test that failed
	return r, c
}

func sharing(o *Options) { o.SharedMemory = 8 << 20 }

// A server that begins a restore after the client has given it up: every block is a miss, and what
// the server sends then is taken off the connection and goes nowhere.
func TestRestoreThatIsBegunTooLate(t *testing.T) {
	t.Parallel()
	g := newGated()
	r, c := late(t, g, nil)
	ch := chainOf(t, c, "t", 16)
	mem := make([]byte, 16*blockSize)
	for name, dest := range map[string]skep.Destination{"lent": {}, "into memory": {Memory: mem}} {
		t.Run(name, func(t *testing.T) {
			g.shut()
			c.opt.Timeout = 50 * time.Millisecond
			x := ch
			x.Dest = dest
			s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{x}})
			require.NoError(t, err)
			got := collect(t, s)
			require.Len(t, got, 16)
			for _, k := range got {
				require.ErrorIs(t, k.Err, skep.Unavailable)
			}
			require.NoError(t, s.Close(t.Context()))
			c.opt.Timeout = time.Minute
			g.open()
			requireHits(t, c, ch) // behind it, on the same connection
			require.EqualValues(t, 1, r.Stats().Accepted)
			require.Equal(t, make([]byte, len(mem)), mem)
		})
	}
	require.Eventually(t, func() bool { return r.Stats().Sessions == 0 }, time.Minute, time.Millisecond)
}

// The same into shared memory, which the server's drives write to: it is the caller's when Close
// says so.
func TestRestoreThatIsBegunTooLateInSharedMemory(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("no memfd on this system")
	}
	for name, givenUp := range map[string]bool{"by the client": false, "by the caller": true} {
		t.Run(name, func(t *testing.T) {
			g := newGated()
			r, c := late(t, g, sharing)
			ch := chainOf(t, c, "t", 16)
			mem, err := c.Alloc(t.Context(), 8<<20)
			require.NoError(t, err)
			ch.Dest = skep.Destination{Memory: mem.Bytes()}
			g.shut()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if givenUp {
				go func() {
					<-g.reached
					cancel()
				}()
			} else {
				c.opt.Timeout = time.Second // enough to send it
			}
			s, err := c.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{ch}})
			c.opt.Timeout = time.Minute
			if givenUp {
				require.ErrorIs(t, err, skep.NotReleased)
				mem.Release()
				require.Nil(t, c.shared.alloc(8<<20), "it is not lent again while it may be written to")
				g.open()
				require.Eventually(t, func() bool {
					m := c.shared.alloc(8 << 20)
					return m != nil
				}, time.Minute, time.Millisecond, "and is, once the server has ended the session")
				return
			}
			require.NoError(t, err)
			for left := len(ch.Keys); left > 0; {
				var into [4]skep.Chunk
				n, err := s.Next(t.Context(), into[:])
				require.NoError(t, err)
				for _, k := range into[:n] {
					require.ErrorIs(t, k.Err, skep.Unavailable)
				}
				left -= n
			}
			soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			_, err = s.Next(soon, make([]skep.Chunk, 1))
			require.ErrorIs(t, err, skep.NotReleased, "the end says that the memory is the caller's")
			require.ErrorIs(t, s.Close(soon), skep.NotReleased)
			g.open()
			require.NoError(t, s.Close(t.Context()))
			require.Eventually(t, func() bool { return r.Stats().Sessions == 0 }, time.Minute, time.Millisecond)
			mem.Release()
			require.NotNil(t, c.shared.alloc(8<<20))
		})
	}
}

// A put out of shared memory that the caller gives up is over when the server has answered; when
// that takes too long the memory is not lent again.
func TestPutOutOfSharedMemoryThatIsGivenUp(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("no memfd on this system")
	}
	g := newGated()
	_, c := late(t, g, sharing)
	ns, err := c.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: skep.Shape{BlockTokens: 16, Bytes: blockSize}})
	require.NoError(t, err)
	put := func(name string, mem []byte, then func()) ([]skep.PutResult, error) {
		ctx, cancel := context.WithCancel(t.Context())
		g.shut()
		go func() {
			<-g.reached
			cancel()
			then()
		}()
		return c.Put(ctx, &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}, Blocks: []skep.Block{{Key: skep.KeyOf([]byte(name)), Parts: []skep.Part{{Bytes: mem}}}}})
	}
	mem, err := c.Alloc(t.Context(), 8<<20)
	require.NoError(t, err)
	b := mem.Bytes()[:blockSize]
	copy(b, storetest.Payload(skep.KeyOf([]byte("a")), skep.PartKV, blockSize))

	res, err := put("a", b, g.open)
	require.NoError(t, err, "the server had it, and its answer says what became of it")
	require.Equal(t, skep.Committed, res[0].Outcome)

	c.opt.Patience = 50 * time.Millisecond
	_, err = put("b", b, func() {})
	require.ErrorIs(t, err, skep.NotReleased)
	mem.Release()
	require.Nil(t, c.shared.alloc(8<<20), "the server may read it still")
	require.ErrorIs(t, c.Close(), skep.NotReleased)
	require.NoError(t, c.Close(), "it is closed all the same")
	g.open()
}

// A server without room for the client's memory gets what lies there in frames as large as it takes.
func TestPutOfSharedMemoryThatIsNotAttached(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("no memfd on this system")
	}
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{Limits: server.Limits{Payload: 2 * blockSize, SharedMemory: frames.PageSize}})
	o := patient(r.addr)
	sharing(&o)
	c := r.dial(t, o)
	require.Zero(t, r.Stats().Regions)
	ns, err := c.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: skep.Shape{BlockTokens: 16, Bytes: blockSize}})
	require.NoError(t, err)
	mem, err := c.Alloc(t.Context(), 8*blockSize)
	require.NoError(t, err)
	defer mem.Release()
	req := &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}}
	for i := range 8 {
		req.Blocks = append(req.Blocks, skep.Block{Key: skep.KeyOf([]byte{byte(i)}), Parts: []skep.Part{{Bytes: mem.Bytes()[i*blockSize : (i+1)*blockSize]}}})
	}
	res, err := c.Put(t.Context(), req)
	require.NoError(t, err)
	for _, x := range res {
		require.Equal(t, skep.Committed, x.Outcome)
	}
	require.EqualValues(t, 8*blockSize, r.Stats().TakenBytes)
}

// The ring of a server that is attached anew has all its credit: what was taken off the ring before
// it is not given back to it.
func TestRingCreditIsOfOneRing(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("no memfd on this system")
	}
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{})
	o := patient(r.addr)
	sharing(&o)
	c := r.dial(t, o)
	ch := chainOf(t, c, "t", 64)
	mem, err := c.Alloc(t.Context(), 64*blockSize)
	require.NoError(t, err)
	defer mem.Release()
	ch.Dest = skep.Destination{Memory: mem.Bytes()}
	restore := func(times int) {
		for range times {
			s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
			require.NoError(t, err)
			require.Len(t, collect(t, s), 64)
			require.NoError(t, s.Close(t.Context()))
		}
	}
	restore(8) // 65 entries each: half of what is given back at once
	c.slots[0].conn.l.Conn.Close()
	<-c.slots[0].conn.stopped
	restore(9)
	_, err = c.Namespaces(t.Context()) // the server has read what went before
	require.NoError(t, err)
	require.EqualValues(t, 2, r.Stats().Accepted, "it cuts off who gives back more than the ring has")
}

// A server that says of two pieces of a chunk that it is of two sizes is cut off; nothing is written
// past the first.
func TestPiecesOfOneChunkAgreeOnItsSize(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go func() { _, _ = b.Write(make([]byte, 1000)) }()
	x, err := layout.PlanChain(&skep.Chain{Keys: make([]skep.Key, 1)}, skep.Shape{BlockTokens: 1})
	require.NoError(t, err)
	s := &clientSession{c: &Client{}, chains: []*layout.ChainPlan{x}, got: [][]uint64{{0}}, left: 1, credit: 1 << 20, stopped: make([]bool, 1), landed: make(chan struct{}, 1)}
	l := link.New(a, time.Minute, frames.SlowestRate)
	require.NoError(t, s.piece(l, &frames.Piece{Bytes: 3000, Len: 1000}))
	require.ErrorIs(t, s.piece(l, &frames.Piece{Bytes: 1 << 20, Offset: 1000, Len: 1 << 19}), skep.Damaged)
	require.ErrorIs(t, s.piece(l, &frames.Piece{Bytes: 3000, Offset: 1 << 63, Len: 1<<63 + 100}), skep.Damaged)
}

// A chain is stopped in the middle of a chunk: the rest of it, which comes behind the answer to the Stop, is written
// nowhere.
func TestTheRestOfAChunkOfAStoppedChain(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	payload := bytes.Repeat([]byte{7}, 3000)
	go func() { _, _ = b.Write(payload) }()
	mem := make([]byte, 4096)
	x, err := layout.PlanChain(&skep.Chain{Keys: make([]skep.Key, 1),
		Dest: skep.Destination{Memory: mem, Stride: 4096}}, skep.Shape{BlockTokens: 1})
	require.NoError(t, err)
	s := &clientSession{c: &Client{}, chains: []*layout.ChainPlan{x}, got: [][]uint64{{0}}, left: 1, credit: 1 << 20,
		stopped: make([]bool, 1), landed: make(chan struct{}, 1)}
	piece := func(off, n uint64) *frames.Piece {
		sum := frames.Sum{Kind: frames.SumCRC32, Len: n, Check: link.SumOver(frames.SumCRC32, payload[off:off+n])}
		return &frames.Piece{Bytes: 3000, Offset: off, Len: n, Sums: []frames.Sum{sum}}
	}
	l := link.New(a, time.Minute, frames.SlowestRate)
	require.NoError(t, s.piece(l, piece(0, 1000)))
	require.Equal(t, payload[:1000], mem[:1000])
	s.stopped[0] = true // as Stop does
	require.NoError(t, s.piece(l, piece(1000, 2000)))
	require.Equal(t, make([]byte, 3096), mem[1000:])
	require.Len(t, s.ready, 1)
	require.ErrorIs(t, s.ready[0].Err, skep.Stopped)
}

// A caller waits for a connection that others are making no longer than its own context.
func TestNobodyWaitsForAnothersDial(t *testing.T) {
	t.Parallel()
	dialling := make(chan struct{}, 8)
	o := patient("nowhere:1")
	o.Strict = true
	o.Dialer = func(ctx context.Context) (net.Conn, error) {
		dialling <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	c, err := NewClient(o)
	require.NoError(t, err)
	first := make(chan error, 1)
	go func() {
		_, err := c.Lookup(context.Background(), &skep.LookupRequest{})
		first <- err
	}()
	<-dialling
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = c.Lookup(ctx, &skep.LookupRequest{})
	require.ErrorIs(t, err, skep.Deadline)
	require.Empty(t, first, "the other goes on")
	require.NoError(t, c.Close())
	require.ErrorIs(t, <-first, skep.Closed)
}

// patientSessions are a Store's whose Reprioritise waits until the gate opens.
type patientSessions struct{ *gated }

type patientSession struct {
	skep.Session
	of *gated
}

func (p patientSessions) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	s, err := p.gated.Restore(ctx, r)
	return patientSession{s, p.gated}, err
}

func (p patientSession) Reprioritise(ctx context.Context, chain, priority int, deadline time.Time) error {
	p.of.wait()
	return p.Session.Reprioritise(ctx, chain, priority, deadline)
}

// A Store may take its time to reprioritise: nobody else on the connection waits for that.
func TestNobodyWaitsForAReprioritise(t *testing.T) {
	t.Parallel()
	g := newGated()
	r := serve(t, "tcp", patientSessions{g}, server.Options{})
	c := r.dial(t, patient(r.addr))
	t.Cleanup(g.open)
	ch := chainOf(t, c, "t", 4)
	s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.NoError(t, err)
	g.shut()
	done := make(chan error, 1)
	go func() { done <- s.Reprioritise(t.Context(), 0, 7, time.Time{}) }()
	<-g.reached
	within, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err = c.Lookup(within, &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys})
	require.NoError(t, err)
	require.Empty(t, done)
	g.open()
	require.NoError(t, <-done)
	require.NoError(t, s.Close(t.Context()))
}
