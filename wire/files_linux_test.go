package wire

import (
	"encoding/binary"
	"math"
	"net"
	"slices"
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

// waitingFiles makes sockets whose last close waits until drop is called: bytes are on their way that nobody takes.
func waitingFiles(t *testing.T) (one func() int, drop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var others []net.Conn
	one = func() int {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		other, err := l.Accept()
		require.NoError(t, err)
		others = append(others, other)
		defer c.Close()
		var fd int
		raw, err := c.(*net.TCPConn).SyscallConn()
		require.NoError(t, err)
		require.NoError(t, raw.Control(func(s uintptr) {
			fd, err = unix.Dup(int(s))
			for range 1000 { // until nothing is taken
				if _, werr := unix.Write(fd, make([]byte, 1<<20)); werr != nil {
					break
				}
			}
		}))
		require.NoError(t, err)
		require.NoError(t, unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 600}))
		return fd
	}
	return one, func() {
		for _, c := range others {
			c.Close()
		}
		l.Close()
	}
}

// A client sends descriptors of files that wait for it whatever is done with them, before and after it has said who it
// is: other clients are served, and the server ends.
func TestDescriptorsThatWaitHoldUpNobody(t *testing.T) {
	t.Parallel()
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{Drain: 10 * time.Millisecond})
	c := r.dial(t, r.options())
	ch := chainOf(t, c, "t", 4)
	one, drop := waitingFiles(t)
	t.Cleanup(drop)
	for i := range 12 {
		x := rawDial(t, r.addr)
		var frame []byte
		var err error
		if i%2 == 0 {
			x.hello(t, operator)
			frame, err = frames.AppendFrame(nil, frames.Header{Type: frames.TypeAttach, Call: 1},
				&frames.AttachRequest{Size: 1 << 20, Entries: 64})
		} else {
			frame, err = frames.AppendFrame(nil, frames.Header{Type: frames.TypeHello},
				&frames.Hello{Min: 1, Max: 1, Token: operator})
		}
		require.NoError(t, err)
		a, b := one(), one()
		// With half the frame, so that the server still has them when they are closed here.
		if err := link.SendFiles(x.Conn, frame[:frames.HeaderSize], a, b); err != nil {
			require.ErrorIs(t, err, unix.EPERM, "the system keeps descriptors from who has not said hello")
			require.Equal(t, 1, i%2)
			for _, fd := range []int{a, b} {
				require.NoError(t, unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}))
				unix.Close(fd)
			}
			continue
		}
		unix.Close(a)
		unix.Close(b)
		_, err = x.Write(frame[frames.HeaderSize:])
		require.NoError(t, err)
		_, _, err = x.next()
		require.NoError(t, err)
		x.Close()
		requireHits(t, c, ch)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.stop()
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the server does not end")
	}
	drop()
	<-ended
}

// A client that attaches memory rules over the eventfd: it fills it up, has calls on it wait, and never reads it.
func TestEventfdOfAClientHoldsUpNobody(t *testing.T) {
	t.Parallel()
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{})
	c := r.dial(t, r.options())
	ch := chainOf(t, c, "t", 4)
	bad := r.dial(t, r.options())
	mem, err := shm.Create(1 << 20)
	require.NoError(t, err)
	defer mem.Close()
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(event)
	require.NoError(t, attachRaw(t, bad, &frames.AttachRequest{Size: 1 << 20, Entries: 64}, mem.Fd(), event))
	flags, err := unix.FcntlInt(uintptr(event), unix.F_GETFL, 0)
	require.NoError(t, err)
	require.Zero(t, flags&unix.O_NONBLOCK, "it is the client's: the server leaves it as it is")
	_, err = unix.Write(event, binary.NativeEndian.AppendUint64(nil, math.MaxUint64-1))
	require.NoError(t, err)
	x := bad.slots[0].conn
	for range 8 {
		m := &frames.RestoreRequest{Window: 1 << 20, Ring: true,
			Chains: []frames.RestoreChain{{Scope: ch.Scope, Keys: ch.Keys, To: frames.ToMemory,
				Memory: frames.Area{Offset: 1 << 19, Len: 1 << 19}, Stride: blockSize}}}
		_, err := x.call(t.Context(), frames.TypeRestore, m, nil, nil)
		require.NoError(t, err)
		requireHits(t, c, ch)
	}
	require.NoError(t, c.Close())
	require.NoError(t, bad.Close())
	r.stop()
	require.Zero(t, r.Stats().Regions)
	_, err = r.st.Lookup(t.Context(), &skep.LookupRequest{Scope: ch.Scope, Keys: ch.Keys})
	require.NoError(t, err)
}

// A client sends more descriptors than any frame has, again and again: the server keeps none of them.
//
// Alone: descriptors of the whole process are counted.
func TestDescriptorsThatAreTooManyAreClosed(t *testing.T) {
	r := serve(t, "unix", newMemstore(storetest.Config{}), server.Options{})
	x := rawDial(t, r.addr)
	x.hello(t, operator)
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(null)
	before := descriptors(t)
	for i := range uint64(10) {
		frame, err := frames.AppendFrame(nil, frames.Header{Type: frames.TypeAttach, Call: i + 1},
			&frames.AttachRequest{Size: 1 << 20, Entries: 64})
		require.NoError(t, err)
		require.NoError(t, link.SendFiles(x.Conn, frame, slices.Repeat([]int{null}, link.MostSent)...))
		h, _, err := x.next()
		require.NoError(t, err)
		require.Equal(t, frames.TypeError, h.Type, "/dev/null is no memory")
	}
	require.Eventually(t, func() bool { return descriptors(t) <= before+link.MaxFiles }, time.Minute, time.Millisecond,
		"they are closed behind the client's back")
}
