//go:build linux

package wire

import (
	"context"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
	"github.com/skepkv/skep/wire/server"
	"github.com/skepkv/skep/wire/shm"
)

// Restores into shared memory send nothing through the socket: what lands is told of in
// the ring.
func TestSharedMemoryTakesTheBytesPastTheSocket(t *testing.T) {
	t.Parallel()
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{})
	o := r.options()
	o.SharedMemory = 8 << 20
	c := r.dial(t, o)
	ch := chainOf(t, c, "t", 64)
	require.Equal(t, 1, r.Stats().Regions)
	mem, err := c.Alloc(t.Context(), 64*blockSize)
	require.NoError(t, err)
	before := r.Stats().SentBytes
	for range ringEntries/64 + 2 { // the ring goes round
		clear(mem.Bytes())
		ch.Dest = skep.Destination{Memory: mem.Bytes()}
		s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
		require.NoError(t, err)
		for _, x := range collect(t, s) {
			require.NoError(t, x.Err)
		}
		require.NoError(t, s.Close(t.Context()))
	}
	for i, k := range ch.Keys {
		require.Equal(t, storetest.Payload(k, skep.PartKV, blockSize), mem.Bytes()[i*blockSize:(i+1)*blockSize])
	}
	require.Equal(t, before, r.Stats().SentBytes)
	mem.Release()
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool { return r.Stats().Regions == 0 && r.Stats().SharedBytes == 0 }, time.Minute, time.Millisecond)
}

// A client that says why its shared memory is not used: none was asked for, or the server takes none of that size.
func TestAttachedSaysWhyNot(t *testing.T) {
	t.Parallel()
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{Limits: server.Limits{SharedMemory: 4 << 20}})
	o := r.options()
	require.ErrorIs(t, r.dial(t, o).Attached(t.Context()), skep.Unsupported)
	o.SharedMemory = 1 << 20
	require.NoError(t, r.dial(t, o).Attached(t.Context()))
	o.SharedMemory = 8 << 20
	err := r.dial(t, o).Attached(t.Context())
	require.ErrorIs(t, err, skep.Invalid)
	require.ErrorContains(t, err, "size in bytes")
}

func TestSharedMemoryIsAttachedAgain(t *testing.T) {
	t.Parallel()
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{})
	o := r.options()
	o.SharedMemory, o.Conns = 8<<20, 1
	c := r.dial(t, o)
	ch := chainOf(t, c, "t", 16)
	mem, err := c.Alloc(t.Context(), 16*blockSize)
	require.NoError(t, err)
	defer mem.Release()
	ch.Dest = skep.Destination{Memory: mem.Bytes()}
	for range 5 {
		s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
		require.NoError(t, err)
		for _, x := range collect(t, s) {
			require.NoError(t, x.Err)
		}
		require.NoError(t, s.Close(t.Context()))
		require.True(t, c.shared.attachedTo(c.slots[0].conn))
		c.slots[0].conn.l.Conn.Close() // cut
		<-c.slots[0].conn.stopped
	}
}

// attachRaw offers descriptors to a server the way a client does.
func attachRaw(t *testing.T, c *Client, m *frames.AttachRequest, fds ...int) error {
	t.Helper()
	x := c.slots[0].conn
	p := &pendingCall{t: frames.TypeAttach, reply: make(chan reply, 1)}
	id, err := x.enlist(p)
	require.NoError(t, err)
	b, err := frames.AppendFrame(nil, frames.Header{Type: frames.TypeAttach, Call: id}, m)
	require.NoError(t, err)
	<-x.l.Write
	require.NoError(t, link.SendFiles(x.l.Conn, b, fds...))
	x.l.Write <- struct{}{}
	return (<-p.reply).err
}

// Clients choose what they are called: of two tenants' under one name each has its region.
func TestClientsOfOneNameAttachEachTheirs(t *testing.T) {
	t.Parallel()
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{Auth: directory(t)})
	attach := func(token string) frames.Type {
		x := rawDial(t, r.addr)
		x.hello(t, token)
		mem, err := shm.Create(1 << 20)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, mem.Close()) })
		event, err := shm.NewEvent()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, event.Close()) })
		b, err := frames.AppendFrame(nil, frames.Header{Type: frames.TypeAttach, Call: 1},
			&frames.AttachRequest{Size: 1 << 20, Entries: 64})
		require.NoError(t, err)
		require.NoError(t, link.SendFiles(x.Conn, b, mem.Fd(), event.Fd()))
		h, _, err := x.next()
		require.NoError(t, err)
		return h.Type
	}
	require.Equal(t, frames.TypeAttach|frames.Answer, attach(tokenA))
	require.Equal(t, frames.TypeAttach|frames.Answer, attach(tokenB))
	require.Equal(t, frames.TypeError, attach(tokenA), "what is mapped stays until its connection is gone")
}

// The server maps only what cannot be taken away under it, and is what it says it is.
//
// Alone: mappings of the whole process are looked at.
func TestServerRefusesMemoryThatIsNotSealed(t *testing.T) {
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{})
	event, err := shm.NewEvent()
	require.NoError(t, err)
	defer event.Close()
	const size, memory = 1 << 20, "what a server refuses"
	memfd := func(flags, seals int) int {
		fd, err := unix.MemfdCreate(memory, flags|unix.MFD_CLOEXEC)
		require.NoError(t, err)
		t.Cleanup(func() { unix.Close(fd) })
		require.NoError(t, unix.Ftruncate(fd, size))
		if seals != 0 {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
			require.NoError(t, err)
		}
		return fd
	}
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, file.Truncate(size))
	good := memfd(unix.MFD_ALLOW_SEALING, shm.Seals)
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	ok := frames.AttachRequest{Size: size, Entries: 64}
	for name, x := range map[string]struct {
		m   frames.AttachRequest
		fds []int
	}{
		"no seals":                    {ok, []int{memfd(unix.MFD_ALLOW_SEALING, 0), event.Fd()}},
		"sealed against growing only": {ok, []int{memfd(unix.MFD_ALLOW_SEALING, unix.F_SEAL_GROW), event.Fd()}},
		"sealed against shrinking":    {ok, []int{memfd(unix.MFD_ALLOW_SEALING, unix.F_SEAL_SHRINK), event.Fd()}},
		"a file":                      {ok, []int{int(file.Fd()), event.Fd()}},
		"another size":                {frames.AttachRequest{Size: 2 * size, Entries: 64}, []int{good, event.Fd()}},
		"no page":                     {frames.AttachRequest{Size: 100, Entries: 64}, []int{good, event.Fd()}},
		"larger than the limit":       {frames.AttachRequest{Size: 1 << 62, Entries: 64}, []int{good, event.Fd()}},
		"a ring past the end": {frames.AttachRequest{Size: size, Ring: size - 64, Entries: 64},
			[]int{good, event.Fd()}},
		"a ring far past the end": {frames.AttachRequest{Size: size, Ring: 1<<64 - 64, Entries: 64},
			[]int{good, event.Fd()}},
		"a ring of no power of two": {frames.AttachRequest{Size: size, Entries: 63}, []int{good, event.Fd()}},
		"a pipe for an eventfd":     {ok, []int{good, pipe[1]}},
		"one descriptor":            {ok, []int{good}},
		"three descriptors":         {ok, []int{event.Fd(), good, event.Fd()}},
	} {
		t.Run(name, func(t *testing.T) {
			c := r.dial(t, r.options())
			require.ErrorIs(t, attachRaw(t, c, &x.m, x.fds...), skep.Invalid)
			require.Zero(t, r.Stats().Regions)
			maps, err := os.ReadFile("/proc/self/maps")
			require.NoError(t, err)
			require.False(t, strings.Contains(string(maps), memory), "it stays mapped")
		})
	}
	c := r.dial(t, r.options())
	require.NoError(t, attachRaw(t, c, &ok, good, event.Fd()))
	require.ErrorIs(t, attachRaw(t, c, &ok, good, event.Fd()), skep.Conflict)
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool { return r.Stats().Regions == 0 }, time.Minute, time.Millisecond)
}

// What a client writes into the ring reaches nobody: the server does not read it.
func TestServerDoesNotReadTheRing(t *testing.T) {
	t.Parallel()
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{})
	o := r.options()
	o.SharedMemory = 4 << 20
	c := r.dial(t, o)
	ch := chainOf(t, c, "t", 32)
	mem, err := c.Alloc(t.Context(), 32*blockSize)
	require.NoError(t, err)
	defer mem.Release()
	ch.Dest = skep.Destination{Memory: mem.Bytes()}
	ring := c.shared.mem.Bytes()[:ringBytes]
	for i := 2 * shm.EntrySize; i < len(ring); i++ { // everything but the next entries
		ring[i] = 0xff
	}
	s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.NoError(t, err)
	for _, x := range collect(t, s) {
		require.NoError(t, x.Err)
	}
	require.NoError(t, s.Close(t.Context()))
}

// Ranges of the shared memory that are not in it are refused.
func TestServerRefusesRangesOutsideTheSharedMemory(t *testing.T) {
	t.Parallel()
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{})
	o := r.options()
	o.SharedMemory, o.Conns = 4<<20, 1
	c := r.dial(t, o)
	ch := chainOf(t, c, "t", 4)
	x := c.slots[0].conn
	for _, a := range []frames.Area{{Offset: 1 << 40, Len: 4 * blockSize}, {Offset: 1<<64 - 1, Len: 2},
		{Offset: 0, Len: 1 << 63}, {Offset: uint64(c.shared.size) - 1, Len: 2}, {Offset: 0,
			Len: 1<<64 - 1}, {Offset: ringBytes, Len: 10}} {
		m := &frames.RestoreRequest{Window: 1 << 20, Ring: true,
			Chains: []frames.RestoreChain{{Scope: ch.Scope, Keys: ch.Keys, To: frames.ToMemory, Memory: a,
				Stride: blockSize}}}
		_, err := x.call(t.Context(), frames.TypeRestore, m, nil, nil)
		require.ErrorIs(t, err, skep.Invalid)
		m.Chains[0].To, m.Chains[0].Planes = frames.ToPages, []frames.Area{a, a}
		_, err = x.call(t.Context(), frames.TypeRestore, m, nil, nil)
		require.ErrorIs(t, err, skep.Invalid)
		put := &frames.PutRequest{Scope: ch.Scope, Blocks: []frames.PutBlock{{Parts: []frames.PutPart{{Size: a.Len,
			Shared: true, Offset: a.Offset}}}}}
		_, err = x.call(t.Context(), frames.TypePut, put, nil, nil)
		require.ErrorIs(t, err, skep.Invalid)
	}
}

// A put out of shared memory sends nothing either.
func TestSharedMemoryIsPutFromWhereItIs(t *testing.T) {
	t.Parallel()
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{Limits: server.Limits{Payload: 4096}})
	o := r.options()
	o.SharedMemory = 8 << 20
	c := r.dial(t, o)
	ns, err := c.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n", Shape: skep.Shape{BlockTokens: 16, Bytes: blockSize}, Chained: true})
	require.NoError(t, err)
	mem, err := c.Alloc(t.Context(), 8*blockSize)
	require.NoError(t, err)
	defer mem.Release()
	req := &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}}
	for i := range 8 {
		k := skep.KeyOf([]byte{byte(i)})
		b := mem.Bytes()[i*blockSize : (i+1)*blockSize]
		copy(b, storetest.Payload(k, skep.PartKV, blockSize))
		req.Blocks = append(req.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: b}}})
	}
	before := r.Stats().TakenBytes
	res, err := c.Put(t.Context(), req)
	require.NoError(t, err)
	for _, x := range res {
		require.Equal(t, skep.Committed, x.Outcome)
	}
	require.Equal(t, before, r.Stats().TakenBytes)
	clear(mem.Bytes())
	ch := skep.Chain{Scope: req.Scope}
	for _, b := range req.Blocks {
		ch.Keys = append(ch.Keys, b.Key)
	}
	s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.NoError(t, err)
	for _, x := range collect(t, s) {
		require.NoError(t, x.Err)
		var got []byte
		for _, d := range x.Data {
			got = append(got, d...)
		}
		require.Equal(t, storetest.Payload(ch.Keys[x.Block], skep.PartKV, blockSize), got)
		x.Release()
	}
	require.NoError(t, s.Close(t.Context()))
}

// cutting is a client with shared memory of a gated Store's server, which it can be cut off from and kept from.
func cutting(t *testing.T, g *gated) (c *Client, away *atomic.Bool, cut func()) {
	t.Helper()
	away = new(atomic.Bool)
	_, c = late(t, g, func(o *Options) {
		sharing(o)
		path := strings.TrimPrefix(o.Addr, "unix:")
		o.Retries = -1
		o.Dialer = func(ctx context.Context) (net.Conn, error) {
			if away.Load() {
				return nil, net.ErrClosed
			}
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	})
	return c, away, func() {
		x := c.slots[0].conn
		x.l.Conn.Close()
		<-x.stopped
	}
}

// requireLentAgain waits until a client has attached its memory anew, and requires that all of it is lent then.
func requireLentAgain(t *testing.T, c *Client) {
	t.Helper()
	require.Eventually(t, func() bool { return c.Attached(context.Background()) == nil }, time.Minute, time.Millisecond)
	m := c.shared.alloc(c.shared.size - ringBytes)
	require.NotNil(t, m, "what nobody uses is not lent again")
	require.Zero(t, c.Withheld())
	m.Release()
}

// A server takes a client's memory again only when no session of the connection before uses it: one that is closed after
// that has released it.
func TestASessionClosedAfterTheNextAttachIsReleased(t *testing.T) {
	t.Parallel()
	c, _, cut := cutting(t, newGated())
	ch := chainOf(t, c, "t", 16)
	mem, err := c.Alloc(t.Context(), 16*blockSize)
	require.NoError(t, err)
	ch.Dest = skep.Destination{Memory: mem.Bytes()}
	s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.NoError(t, err)
	cut()
	require.Eventually(t, func() bool { return c.Attached(context.Background()) == nil }, time.Minute, time.Millisecond)
	require.NoError(t, s.Close(t.Context()))
	mem.Release()
	requireLentAgain(t, c)
}

// A restore whose answer is lost may have been begun: its destinations are the server's until that has taken the memory
// anew, whatever became of the call.
func TestARestoreWhoseAnswerIsLostIsNotReleased(t *testing.T) {
	t.Parallel()
	for name, strict := range map[string]bool{"a miss": false, "an error": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGated()
			c, away, cut := cutting(t, g)
			c.strict.Store(strict)
			ch := chainOf(t, c, "t", 16)
			mem, err := c.Alloc(t.Context(), 16*blockSize)
			require.NoError(t, err)
			ch.Dest = skep.Destination{Memory: mem.Bytes()}
			g.shut()
			go func() {
				<-g.reached
				away.Store(true)
				cut()
			}()
			s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
			if strict {
				require.ErrorIs(t, err, skep.NotReleased)
			} else {
				require.NoError(t, err)
				require.ErrorIs(t, skep.Drain(t.Context(), s, nil), skep.NotReleased)
				require.ErrorIs(t, s.Stop(t.Context(), -1), skep.NotReleased)
				require.ErrorIs(t, s.Close(t.Context()), skep.NotReleased)
			}
			mem.Release()
			require.Nil(t, c.shared.alloc(c.shared.size-ringBytes), "the server may write to it")
			require.EqualValues(t, 16*blockSize, c.Withheld())
			g.open()
			away.Store(false)
			requireLentAgain(t, c)
			if !strict {
				require.NoError(t, s.Close(t.Context()))
			}
		})
	}
}

// A put that was cut off is told of as released once its server has taken the memory anew, and not before.
func TestAPutThatWasCutOffIsReleased(t *testing.T) {
	t.Parallel()
	g := newGated()
	c, away, cut := cutting(t, g)
	space, err := c.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n",
		Shape: skep.Shape{BlockTokens: 1}})
	require.NoError(t, err)
	mem, err := c.Alloc(t.Context(), blockSize)
	require.NoError(t, err)
	g.shut()
	go func() {
		<-g.reached
		away.Store(true)
		cut()
	}()
	released := make(chan struct{}, 1)
	_, err = c.Put(t.Context(), &skep.PutRequest{Scope: skep.Scope{Namespace: space.ID},
		Released: func() { released <- struct{}{} },
		Blocks:   []skep.Block{{Key: skep.KeyOf([]byte("a")), Parts: []skep.Part{{Bytes: mem.Bytes()}}}}})
	require.ErrorIs(t, err, skep.NotReleased)
	mem.Release()
	require.Nil(t, c.shared.alloc(c.shared.size-ringBytes), "the server may read it")
	require.Empty(t, released)
	g.open()
	away.Store(false)
	requireLentAgain(t, c)
	<-released
}

// Threads may ask of memory where it lies while another closes the client. (The race detector looks.)
func TestMemoryIsAskedOfWhileItIsClosed(t *testing.T) {
	t.Parallel()
	_, c := late(t, newGated(), sharing)
	mem, err := c.Alloc(t.Context(), frames.PageSize)
	require.NoError(t, err)
	piece := mem.Bytes()
	mem.Release()
	asked, ended := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		for i := range 1000 {
			_ = c.Shares(piece)
			if i == 10 {
				asked <- struct{}{}
			}
		}
	}()
	<-asked
	require.NoError(t, c.Close())
	<-ended
}
