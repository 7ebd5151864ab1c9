package wire

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
	"github.com/skepkv/skep/wire/server"
)

// inMemory is a file in /dev/shm, as an engine has one, mapped.
func inMemory(t *testing.T, n int) (*os.File, []byte) {
	t.Helper()
	f, err := os.CreateTemp("/dev/shm", "skep-test-")
	require.NoError(t, err)
	t.Cleanup(func() { f.Close(); os.Remove(f.Name()) })
	require.NoError(t, f.Truncate(int64(n)))
	mem, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(mem)) })
	return f, mem
}

// attaching is a server, and a client with the least of shared memory of its own.
func attaching(t *testing.T, o server.Options) (*rig, *Client) {
	t.Helper()
	r := serve(t, "unix", newMemstore(storetest.Config{}), o)
	c := r.options()
	c.SharedMemory, c.Conns, c.Retries = 1, 1, -1
	return r, r.dial(t, c)
}

func putFrom(c *Client, sc skep.Scope, name string, mem []byte) ([]skep.PutResult, error) {
	return c.Put(context.Background(), &skep.PutRequest{Scope: sc,
		Blocks: []skep.Block{{Key: skep.KeyOf([]byte(name)), Parts: []skep.Part{{Bytes: mem}}}}})
}

// requireMapped waits until a server maps files of so many bytes, beside the least of shared memory.
func requireMapped(t *testing.T, r *rig, files int64) {
	t.Helper()
	least := int64(ringBytes + 2<<20)
	require.Eventually(t, func() bool { return r.Stats().SharedBytes <= least+files && r.Stats().SharedBytes >= files },
		time.Minute, time.Millisecond)
}

// An engine's file, found by the address it is mapped at: blocks go from it and to it past the socket, also when
// its name is gone, and over the connection after the one it was attached to.
func TestAFileInMemoryIsAttached(t *testing.T) {
	t.Parallel()
	r, c := attaching(t, server.Options{})
	file, whole := inMemory(t, 4<<20)
	mem := whole[1<<20:]
	a, err := c.AttachFound(t.Context(), mem)
	require.NoError(t, err)
	require.NoError(t, a.Attached())
	require.True(t, c.Shares(mem[:1]) && c.Shares(mem[len(mem)-1:]))
	require.False(t, c.Shares(whole[:1]) || c.Shares(whole[1<<20-1:1<<20+1]))
	require.NoError(t, os.Remove(file.Name()))

	ch := chainOf(t, c, "t", 16)
	space, err := c.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "loose",
		Shape: skep.Shape{BlockTokens: 1}})
	require.NoError(t, err)
	loose := skep.Scope{Namespace: space.ID}
	sent, taken := r.Stats().SentBytes, r.Stats().TakenBytes
	for round := range 3 {
		require.Eventually(t, func() bool { return c.Attached(t.Context()) == nil && a.Attached() == nil },
			time.Minute, time.Millisecond)
		clear(mem)
		at := mem[4096*round:] // where drives read to, and not
		if round == 2 {
			at = mem[100:]
		}
		ch.Dest = skep.Destination{Memory: at[:16*blockSize], Stride: blockSize}
		s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
		require.NoError(t, err)
		for _, x := range collect(t, s) {
			require.NoError(t, x.Err)
		}
		require.NoError(t, s.Close(t.Context()))
		for i, k := range ch.Keys {
			require.Equal(t, storetest.Payload(k, skep.PartKV, blockSize), at[i*blockSize:(i+1)*blockSize])
		}
		res, err := putFrom(c, loose, string(rune('a'+round)), at[:blockSize])
		require.NoError(t, err)
		require.Equal(t, skep.Committed, res[0].Outcome)
		one := skep.Chain{Scope: loose, Keys: []skep.Key{skep.KeyOf([]byte(string(rune('a' + round))))},
			Dest: skep.Destination{Memory: at[2<<20:][:blockSize], Stride: blockSize}}
		s, err = c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{one}})
		require.NoError(t, err)
		require.NoError(t, collect(t, s)[0].Err)
		require.NoError(t, s.Close(t.Context()))
		require.Equal(t, at[:blockSize], at[2<<20:][:blockSize])
		c.slots[0].conn.l.Conn.Close() // cut
		<-c.slots[0].conn.stopped
	}
	require.Equal(t, sent, r.Stats().SentBytes)
	require.Equal(t, taken, r.Stats().TakenBytes)
	require.NoError(t, c.Attached(t.Context()))
	require.NoError(t, a.Detach(t.Context()))
	require.NoError(t, a.Detach(t.Context()), "it is over")
	require.False(t, c.Shares(mem[:1]))
	requireMapped(t, r, 0)
}

// A file is cut short under a server that reads a put out of it: the put says so and stores nothing, the server
// takes no more of the file, and everything else goes on. Attached anew, as long as it is, it works again.
func TestAFileIsCutShortUnderAPut(t *testing.T) {
	t.Parallel()
	r, c := attaching(t, server.Options{})
	file, mem := inMemory(t, 2<<20)
	_, other := inMemory(t, 1<<20)
	a, err := c.AttachFound(t.Context(), mem)
	require.NoError(t, err)
	b, err := c.AttachFound(t.Context(), other)
	require.NoError(t, err)
	space, err := c.OpenNamespace(t.Context(), skep.NamespaceSpec{Tenant: "t", Name: "n",
		Shape: skep.Shape{BlockTokens: 1}})
	require.NoError(t, err)
	sc := skep.Scope{Namespace: space.ID}
	require.NoError(t, file.Truncate(1<<20))
	_, err = putFrom(c, sc, "across the end", mem[1<<20-4096:1<<20+4096])
	require.ErrorIs(t, err, skep.Invalid)
	require.ErrorContains(t, err, "a page that is not there any more")
	_, err = putFrom(c, sc, "before the end", mem[:blockSize])
	require.ErrorIs(t, err, skep.Invalid)
	require.ErrorContains(t, err, "attach it anew")
	for i := range blockSize {
		other[i] = byte(i)
	}
	res, err := putFrom(c, sc, "elsewhere", other[:blockSize])
	require.NoError(t, err)
	require.Equal(t, skep.Committed, res[0].Outcome)
	found, err := c.Lookup(t.Context(), &skep.LookupRequest{Scope: sc,
		Keys: []skep.Key{skep.KeyOf([]byte("across the end"))}, Lease: skep.NoLease})
	require.NoError(t, err)
	require.Zero(t, found.Blocks)

	require.NoError(t, a.Detach(t.Context()))
	a, err = c.Attach(t.Context(), mem[:1<<20], int(file.Fd()), 0)
	require.NoError(t, err)
	res, err = putFrom(c, sc, "before the end", mem[:blockSize])
	require.NoError(t, err)
	require.Equal(t, skep.Committed, res[0].Outcome)
	require.NoError(t, a.Detach(t.Context()))
	require.NoError(t, b.Detach(t.Context()))
	require.Zero(t, r.Stats().Memory)
}

// What a server does not attach, and says why.
func TestAttachRefuses(t *testing.T) {
	t.Parallel()
	_, c := attaching(t, server.Options{Limits: server.Limits{SharedMemory: 16 << 20}})
	file, whole := inMemory(t, 1<<20+4096)
	mem, fd := whole[:1<<20], int(file.Fd())
	readOnly, err := os.Open(file.Name())
	require.NoError(t, err)
	defer readOnly.Close()
	onDisk, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer onDisk.Close()
	require.NoError(t, onDisk.Truncate(1<<20))
	private, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer unix.Munmap(private)
	large, many := inMemory(t, 32<<20)
	for name, tt := range map[string]struct {
		mem    []byte
		fd     int
		offset int64
		kind   skep.Kind
		says   string
	}{
		"no descriptor":     {mem, -1, 0, skep.Invalid, "descriptor"},
		"not whole pages":   {mem[:5000], fd, 0, skep.Invalid, "multiples of 4096"},
		"an odd offset":     {mem[:4096], fd, 5, skep.Invalid, "multiples of 4096"},
		"past the end":      {mem, fd, 8192, skep.Invalid, "within the file's 1052672 bytes"},
		"read only":         {mem, int(readOnly.Fd()), 0, skep.Invalid, "open for reading and writing"},
		"on a disk":         {mem, int(onDisk.Fd()), 0, skep.Unsupported, "in memory"},
		"over the limit":    {many, int(large.Fd()), 0, skep.Invalid, "size in bytes"},
		"where there is no": {mem[:0], fd, 0, skep.Invalid, "memory"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.Attach(t.Context(), tt.mem, tt.fd, tt.offset)
			require.ErrorIs(t, err, tt.kind)
			require.ErrorContains(t, err, tt.says)
			require.Empty(t, c.shared.files)
		})
	}
	_, err = c.AttachFound(t.Context(), private)
	require.ErrorIs(t, err, skep.Unsupported)
	a, err := c.AttachFound(t.Context(), mem)
	require.NoError(t, err)
	_, err = c.AttachFound(t.Context(), mem[4096:])
	require.ErrorContains(t, err, "attached already")
	_, err = c.Attach(t.Context(), whole, int(file.Fd()), 0)
	require.ErrorContains(t, err, "attached already")
	// What its limit leaves is less than 10 MiB: not now, but later.
	x := c.slots[0].conn
	for i := range 2 {
		err = x.sendWith(t.Context(), frames.TypeAttachMemory, &frames.AttachMemoryRequest{Memory: uint64(10 + i),
			Size: 10 << 20},
			int(large.Fd()))
	}
	require.ErrorIs(t, err, skep.Overloaded)
	err = x.sendWith(t.Context(), frames.TypeAttachMemory, &frames.AttachMemoryRequest{Memory: 10, Size: 4096}, fd)
	require.ErrorIs(t, err, skep.Conflict)
	err = x.sendWith(t.Context(), frames.TypeAttachMemory, &frames.AttachMemoryRequest{Memory: 1 << 15, Size: 4096}, fd)
	require.ErrorIs(t, err, skep.Invalid)
	_, err = x.call(t.Context(), frames.TypeDetachMemory, &frames.Number{N: 77}, nil, nil)
	require.ErrorIs(t, err, skep.Invalid)
	require.NoError(t, a.Detach(t.Context()))

	x.hi.Features &^= frames.FeatureMemory // an older server
	_, err = c.AttachFound(t.Context(), mem)
	require.ErrorIs(t, err, skep.Unsupported)
	none, err := serveAgain(t, c).AttachFound(t.Context(), mem)
	require.ErrorIs(t, err, skep.Unsupported)
	require.Nil(t, none)
}

// A small file counts for a mapping and a place in what drives have registered: many of them are refused, too.
func TestSmallFilesAreCounted(t *testing.T) {
	t.Parallel()
	_, c := attaching(t, server.Options{Limits: server.Limits{SharedMemory: 16 << 20}})
	require.NoError(t, c.Attached(t.Context()))
	file, _ := inMemory(t, 4096)
	x, n := c.slots[0].conn, 0
	var err error
	for ; err == nil && n < frames.MostAttached; n++ {
		m := &frames.AttachMemoryRequest{Memory: uint64(10 + n), Size: 4096}
		err = x.sendWith(t.Context(), frames.TypeAttachMemory, m, int(file.Fd()))
	}
	require.ErrorIs(t, err, skep.Overloaded)
	require.Less(t, n, 17)
}

// serveAgain is a client of the same server without shared memory.
func serveAgain(t *testing.T, c *Client) *Client {
	o := c.opt
	o.SharedMemory = 0
	other, err := Dial(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	return other
}

// Places in a file that do not lie within it, or in one that is not attached, are refused, for restores, puts and
// words.
func TestPlacesOutsideAttachedFiles(t *testing.T) {
	t.Parallel()
	_, c := attaching(t, server.Options{})
	_, mem := inMemory(t, 1<<20)
	a, err := c.AttachFound(t.Context(), mem)
	require.NoError(t, err)
	ch := chainOf(t, c, "t", 1)
	x := c.slots[0].conn
	at := uint64(a.at())
	for _, off := range []uint64{at + 1<<20, at + 1<<20 - 1, at + 1<<frames.FileShift - 1, at + 1<<frames.FileShift, nowhere,
		1<<64 - 1} {
		req := &frames.RestoreRequest{Window: 1 << 20, Ring: true,
			Chains: []frames.RestoreChain{{Scope: ch.Scope, Keys: ch.Keys,
				To: frames.ToMemory, Memory: frames.Area{Offset: off, Len: blockSize}, Stride: blockSize}}}
		_, err := x.call(t.Context(), frames.TypeRestore, req, nil, nil)
		require.ErrorIs(t, err, skep.Invalid, "%#x", off)
		put := &frames.PutRequest{Scope: ch.Scope, Parent: &ch.Keys[0], Depth: 1,
			Blocks: []frames.PutBlock{{Key: skep.KeyOf([]byte("x")),
				Parts: []frames.PutPart{{Name: "kv", Size: blockSize,
					Shared: true, Offset: off}}}}}
		_, err = x.call(t.Context(), frames.TypePut, put, nil, nil)
		require.ErrorIs(t, err, skep.Invalid, "%#x", off)
	}
	huge := &frames.PutRequest{Scope: ch.Scope, Parent: &ch.Keys[0], Depth: 1,
		Blocks: []frames.PutBlock{{Key: skep.KeyOf([]byte("x")),
			Parts: []frames.PutPart{{Name: "kv", Size: 1 << 63, Shared: true,
				Offset: at}}}}}
	_, err = x.call(t.Context(), frames.TypePut, huge, nil, nil)
	require.ErrorContains(t, err, "bytes of parts in attached files")
	require.NoError(t, a.Detach(t.Context()))
}

// Detach waits for the sessions that use the file, and where it gives up the file stays.
func TestDetachWaitsForSessions(t *testing.T) {
	t.Parallel()
	r, c := attaching(t, server.Options{})
	file, mem := inMemory(t, 1<<20)
	a, err := c.AttachFound(t.Context(), mem)
	require.NoError(t, err)
	ch := chainOf(t, c, "t", 4)
	ch.Dest = skep.Destination{Memory: mem[:4*blockSize], Stride: blockSize}
	s, err := c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.NoError(t, err)
	waits := func() bool { return r.Stats().Leaving == 1 } // the server does, for the session
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Detach(ctx) }()
	require.Eventually(t, waits, time.Minute, time.Millisecond)
	cancel()
	require.Error(t, <-ended)
	require.Eventually(t, func() bool { return !waits() }, time.Minute, time.Millisecond)
	require.NoError(t, a.Attached())
	require.True(t, c.Shares(mem))

	unheard := *a // as if the answer of the Detach below were lost
	unheard.fd, err = link.DupFile(int(file.Fd()))
	require.NoError(t, err)
	go func() { ended <- a.Detach(t.Context()) }()
	require.Eventually(t, waits, time.Minute, time.Millisecond)
	select {
	case err := <-ended:
		t.Fatalf("detached under a session: %v", err)
	default:
	}
	for _, x := range collect(t, s) {
		require.NoError(t, x.Err)
	}
	require.NoError(t, s.Close(t.Context()))
	require.NoError(t, <-ended)
	requireMapped(t, r, 0)
	c.shared.mu.Lock()
	c.shared.files = append(c.shared.files, &unheard)
	c.shared.mu.Unlock()
	require.NoError(t, unheard.Detach(t.Context()))
	require.Empty(t, c.shared.files)
}

// When a client is gone, with a session under way, the server unmaps its files; while it was there it counted them.
func TestFilesOfAClientThatIsGone(t *testing.T) {
	t.Parallel()
	r, c := attaching(t, server.Options{})
	_, mem := inMemory(t, 8<<20)
	_, err := c.AttachFound(t.Context(), mem)
	require.NoError(t, err)
	requireMapped(t, r, 8<<20)
	ch := chainOf(t, c, "t", 4)
	ch.Dest = skep.Destination{Memory: mem[:4*blockSize], Stride: blockSize}
	_, err = c.Restore(t.Context(), &skep.RestoreRequest{Chains: []skep.Chain{ch}})
	require.NoError(t, err)
	if err := c.Close(); err != nil { // the session's last bytes may be on their way
		require.ErrorIs(t, err, skep.NotReleased)
	}
	require.Eventually(t, func() bool { return r.Stats().Regions == 0 && r.Stats().SharedBytes == 0 }, time.Minute,
		time.Millisecond)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(maps), mappedName(t, mem)), "the test's own")
}

// mappedName is the file that mem is mapped from.
func mappedName(t *testing.T, mem []byte) string {
	list, err := filepath.Glob("/dev/shm/skep-test-*")
	require.NoError(t, err)
	mem[0] ^= 1
	defer func() { mem[0] ^= 1 }()
	for _, name := range list {
		if b, err := os.ReadFile(name); err == nil && len(b) == len(mem) && b[0] == mem[0] &&
			string(b[:blockSize]) == string(mem[:blockSize]) {
			return name
		}
	}
	t.Fatal("no file has the memory's bytes")
	return ""
}

// A server takes files only from clients of its own user: a descriptor of another's is that one's to cut short.
func TestFilesOfAnotherUserAreRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("another user is needed")
	}
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{})
	path := strings.TrimPrefix(r.addr, "unix:")
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o755))
	require.NoError(t, os.Chmod(path, 0o777))
	o := r.options()
	o.SharedMemory, o.Conns = 1, 1
	o.Dialer = func(context.Context) (net.Conn, error) {
		type dialed struct {
			c   net.Conn
			err error
		}
		ended := make(chan dialed, 1)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread, another user's, ends with the goroutine
			const none, nobody = ^uintptr(0), 65534
			if _, _, no := unix.RawSyscall(unix.SYS_SETRESUID, none, nobody, none); no != 0 {
				ended <- dialed{nil, no}
				return
			}
			c, err := net.Dial("unix", path)
			ended <- dialed{c, err}
		}()
		d := <-ended
		return d.c, d.err
	}
	c := r.dial(t, o)
	require.NoError(t, c.Attached(t.Context()), "sealed memory it may attach")
	_, mem := inMemory(t, 1<<20)
	_, err := c.AttachFound(t.Context(), mem)
	require.ErrorIs(t, err, skep.Denied)
}

// lending is a client whose Alloc gives memory of an attached file, as long as that lasts.
type lending struct {
	*far
	mu   sync.Mutex
	left []byte
}

type lentFile struct{ mem []byte }

func (m lentFile) Bytes() []byte { return m.mem }
func (lentFile) Release()        {}

func (l *lending) Alloc(ctx context.Context, n int64) (skep.Memory, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	over := ctx.Err() != nil || l.ctx.Err() != nil
	if padded := (n + frames.PageSize - 1) &^ (frames.PageSize - 1); n > 0 && !over && padded <= int64(len(l.left)) {
		m := lentFile{l.left[:n:n]}
		l.left = l.left[padded:]
		return m, nil
	}
	return l.far.Alloc(ctx, n)
}

// A Store whose callers' memory lies in an attached file is a Store like any other.
func TestContractAttachedFile(t *testing.T) {
	t.Parallel()
	storetest.Test(t, func(t *testing.T, c storetest.Config) skep.Store {
		_, mem := inMemory(t, 32<<20)
		st, ok := contract("unix", func(o *Options) { o.SharedMemory = 1 })(t, c).(*far)
		require.True(t, ok)
		_, err := st.AttachFound(t.Context(), mem)
		require.NoError(t, err)
		return &lending{far: st, left: mem}
	})
}

// Memory is attached over a connection whose last large frame had its time long ago, and no longer than its caller waits
// while another frame is being written.
func TestMemoryIsAttachedLongAfterALargeFrame(t *testing.T) {
	t.Parallel()
	_, c := attaching(t, server.Options{})
	l := c.slots[0].conn.l
	require.NoError(t, l.Conn.SetWriteDeadline(time.Unix(1, 0))) // as such a frame leaves it
	_, mem := inMemory(t, 1<<20)
	a, err := c.AttachFound(t.Context(), mem)
	require.NoError(t, err)
	require.NoError(t, a.Detach(t.Context()))

	<-l.Write // by a frame that its server does not take
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, c.slots[0].conn.sendWith(ctx, frames.TypeAttachMemory, &frames.Number{N: 1}), skep.Deadline)
	l.Write <- struct{}{}
}

// A file is detached while it is being attached to another connection: what is sent is it, and no other that has its number
// by then.
func TestAFileThatIsDetachedIsSentAsItIs(t *testing.T) {
	t.Parallel()
	_, c := attaching(t, server.Options{})
	f, mem := inMemory(t, 1<<20)
	x, err := c.conn(t.Context(), 0)
	require.NoError(t, err)
	own, err := link.DupFile(int(f.Fd()))
	require.NoError(t, err)
	a := &AttachedMemory{c: c, mem: mem, fd: own}
	require.NoError(t, c.shared.enlistFile(a))
	end := busy(c)
	sent := make(chan error, 1)
	go func() { sent <- c.shared.offerFile(context.Background(), x, a) }()
	require.Eventually(t, func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		return len(x.pending) > 0
	}, time.Minute, time.Millisecond)
	require.NoError(t, a.Detach(t.Context()))
	var is, was unix.Stat_t
	require.NoError(t, unix.Fstat(int(f.Fd()), &is))
	require.Eventually(t, func() bool { return unix.Fstat(own, &was) != nil || was.Ino != is.Ino || was.Dev != is.Dev },
		time.Minute, time.Millisecond, "it is closed")
	end()
	require.ErrorIs(t, <-sent, skep.Closed)
	_, err = x.call(t.Context(), frames.TypeDetachMemory, &frames.Number{N: a.number}, nil, nil)
	require.ErrorIs(t, err, skep.Invalid, "the server has unmapped it")
}

// A file is attached to the next connection while Detach asks over the one before, which ends without an answer: the
// next one's server is asked, too.
func TestAFileThatIsAttachedAnewBesideADetach(t *testing.T) {
	t.Parallel()
	_, c := attaching(t, server.Options{})
	_, mem := inMemory(t, 1<<20)
	a, err := c.AttachFound(t.Context(), mem)
	require.NoError(t, err)
	before := c.slots[0].conn
	<-before.l.Write // by a frame that its server does not take
	ended := make(chan error, 1)
	go func() { ended <- a.Detach(context.Background()) }()
	require.Eventually(t, func() bool {
		before.mu.Lock()
		defer before.mu.Unlock()
		return len(before.pending) > 0
	}, time.Minute, time.Millisecond)
	before.l.Conn.Close()
	<-before.stopped
	next, err := c.conn(t.Context(), 0)
	require.NoError(t, err)
	require.NotSame(t, before, next)
	require.NoError(t, a.Attached())
	before.l.Write <- struct{}{}
	require.NoError(t, <-ended)
	require.Empty(t, c.shared.files)
	_, err = next.call(t.Context(), frames.TypeDetachMemory, &frames.Number{N: a.number}, nil, nil)
	require.ErrorIs(t, err, skep.Invalid, "the server has unmapped it")
}

// slowRegister is a Store that takes memory of one size when it is told to.
type slowRegister struct {
	skep.Store
	size    int
	entered chan struct{}
	goOn    chan struct{}
}

func (s *slowRegister) Register(mem []byte) (func(), error) {
	if len(mem) == s.size {
		s.entered <- struct{}{}
		<-s.goOn
	}
	return s.Store.Register(mem)
}

// Attach gives up before the server answers: what the server maps then is unmapped.
func TestAFileWhoseAttachEndedBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	st := &slowRegister{Store: newMemstore(storetest.Config{}), size: 8 << 20, entered: make(chan struct{}),
		goOn: make(chan struct{})}
	r := serve(t, "unix", st, server.Options{})
	o := r.options()
	o.SharedMemory, o.Conns, o.Retries = 1, 1, -1
	c := r.dial(t, o)
	require.NoError(t, c.Attached(t.Context()))
	_, mem := inMemory(t, st.size)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := c.AttachFound(ctx, mem)
		ended <- err
	}()
	<-st.entered
	cancel()
	require.ErrorIs(t, <-ended, skep.Deadline)
	require.GreaterOrEqual(t, r.Stats().SharedBytes, int64(st.size))
	close(st.goOn)
	requireMapped(t, r, 0)
}
