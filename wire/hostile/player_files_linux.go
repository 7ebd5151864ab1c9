package hostile

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/skepkv/skep/wire/frames"
)

func unixPlayers() []Player { return []Player{filesPlayer{}, memoryPlayer{}, &killedPlayer{}} }

// files are descriptors of a player.
type files []int

func (f *files) add(fd int, err error) int {
	if err != nil {
		return -1
	}
	*f = append(*f, fd)
	return fd
}

func (f *files) close() {
	for _, fd := range *f {
		unix.Close(fd)
	}
}

// memfd makes one of size bytes with these seals.
func (f *files) memfd(size int64, seals int) int {
	fd := f.add(unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))
	_ = unix.Ftruncate(fd, size)
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	return fd
}

const fixed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// wrong is a descriptor of some kind.
func (f *files) wrong(r *rand.Rand) int {
	var p [2]int
	switch r.IntN(14) {
	case 0:
		_ = unix.Pipe(p[:])
		f.add(p[1], nil)
		return f.add(p[0], nil)
	case 1: // full, and whoever writes waits
		_ = unix.Pipe2(p[:], unix.O_NONBLOCK)
		for {
			if _, err := unix.Write(p[1], make([]byte, 4096)); err != nil {
				break
			}
		}
		_, _ = unix.FcntlInt(uintptr(p[1]), unix.F_SETFL, 0)
		f.add(p[0], nil)
		return f.add(p[1], nil)
	case 2:
		return f.add(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0))
	case 3:
		return f.add(unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0))
	case 4:
		return f.add(unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0))
	case 5:
		return f.add(unix.Open("/dev/zero", unix.O_PATH|unix.O_CLOEXEC, 0))
	case 6: // at its end, and whoever writes waits
		return f.add(unix.Eventfd(0xfffffffe, 0))
	case 7:
		return f.add(unix.EpollCreate1(unix.EPOLL_CLOEXEC))
	case 8:
		return f.memfd(regionSize, 0)
	case 9:
		return f.memfd(regionSize, unix.F_SEAL_SHRINK)
	case 10:
		return f.memfd(regionSize, fixed|unix.F_SEAL_WRITE)
	case 11:
		return f.memfd(regionSize-4096*int64(r.IntN(2))+int64(r.IntN(2)), fixed)
	case 12:
		return f.memfd(1<<42, fixed)
	}
	fd, err := unix.Open("/dev/shm", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	_ = unix.Ftruncate(fd, regionSize)
	return f.add(fd, err)
}

const (
	regionSize  = 1 << 20
	ringEntries = 64
	ringAt      = regionSize - 64*ringEntries
)

func attachOf(size, ring uint64, entries uint32) []byte {
	return frame(frames.TypeAttach, 90, body{}.u64(size, ring).u32(entries), nil)
}

// dialFiles connects over a Unix socket.
func dialFiles(ctx context.Context, t *Target) (net.Conn, *net.UnixConn, error) {
	c, err := t.DialAt(ctx, t.Server.Addrs[Wire][1])
	if err != nil {
		return nil, nil, err
	}
	u, ok := Plain(c).(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, nil, errors.New("no Unix socket")
	}
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline)
	return c, u, nil
}

// filesPlayer passes descriptors of every kind, right and wrong ones, any number, before and after it said who it is, with
// frames that take them and with frames that do not, and changes them afterwards.
type filesPlayer struct{}

// Name implements Player.
func (filesPlayer) Name() string { return "files" }

// Play implements Player.
func (filesPlayer) Play(ctx context.Context, t *Target, r *rand.Rand) error {
	c, u, err := dialFiles(ctx, t)
	if err != nil {
		return nil
	}
	var mine files
	defer mine.close()
	w := newListening(c)
	if r.IntN(8) > 0 {
		_, _ = c.Write(hello(wireToken(r), byte(r.Uint32())))
		w.wait(1) // for the welcome
	}
	for range 1 + r.IntN(12) {
		var fds []int
		switch r.IntN(3) {
		case 0:
			for range []int{0, 1, 2, 2, 3, 60, 253}[r.IntN(7)] {
				if len(fds) < 4 {
					fds = append(fds, mine.wrong(r))
				} else {
					fds = append(fds, fds[0])
				}
			}
		case 1: // one of the two
			fds = append(fds, mine.wrong(r), mine.add(unix.Eventfd(0, unix.EFD_NONBLOCK)))
			if r.IntN(3) == 0 {
				fds[0], fds[1] = mine.memfd(regionSize, fixed), mine.wrong(r)
			}
		default:
			fds = append(fds, mine.memfd(regionSize, fixed), mine.add(unix.Eventfd(0, unix.EFD_NONBLOCK)))
			_, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_SETFL, 0)
		}
		f := attachOf(regionSize, ringAt, ringEntries)
		switch r.IntN(6) {
		case 0:
			f = sign(r, Mutate(r, [][]byte{f})[0])
		case 1:
			f = wireFrame(r, 91, t.aSpace(ctx, r))
		case 2:
			f = f[:1+r.IntN(len(f)-1)]
		}
		before := w.read.Load()
		if _, _, err := u.WriteMsgUnix(f, unix.UnixRights(fds...), nil); err != nil {
			break
		}
		if r.IntN(2) == 0 && !w.wait(before+1) {
			break
		}
		if len(fds) > 0 {
			_ = unix.Ftruncate(fds[0], 4096) // refused by the seals, or the server would end by a signal
			_ = unix.Fallocate(fds[0], unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, regionSize)
		}
		ns := t.own(ctx)[0]
		b, _ := putOf(r, ns, 8192, regionSize-8192)
		_, _ = c.Write(frame(frames.TypePut, 92, b, nil))
		_, _ = c.Write(frame(frames.TypeRestore, 93, restoreOf(r, ns, 0, true, 20, aim{1, 0, ringAt, 8192}), nil))
		if r.IntN(2) == 0 {
			_, _ = c.Write(frame(frames.TypeDetach, 94, body{}.u64(1), nil))
		}
	}
	if r.IntN(2) == 0 {
		_ = u.CloseWrite()
		select {
		case <-w.over:
		case <-time.After(timeUpTo(r, 500)):
		}
	}
	c.Close()
	return w.end()
}

// listening reads all that comes on a connection.
type listening struct {
	Watcher
	read atomic.Int64
	over chan struct{}
}

func newListening(c net.Conn) *listening {
	l := &listening{over: make(chan struct{})}
	go func() {
		defer close(l.over)
		_, _ = io.Copy(l, struct{ io.Reader }{c})
	}()
	return l
}

// Write implements io.Writer.
func (l *listening) Write(p []byte) (int, error) {
	l.read.Add(int64(len(p)))
	return l.Watcher.Write(p)
}

// wait waits until n bytes have come, a little; false when no more will.
func (l *listening) wait(n int64) bool {
	for late := time.Now().Add(500 * time.Millisecond); l.read.Load() < n && time.Now().Before(late); {
		select {
		case <-l.over:
			return false
		case <-time.After(time.Millisecond):
		}
	}
	return true
}

// end says what was seen, after the connection was closed.
func (l *listening) end() error {
	<-l.over
	return l.Err()
}

// memoryPlayer lends the server memory and turns words of it at random while the server reads and writes there: entries of
// the ring, words that claims are granted by, destinations that overlap, parts of puts. It leaves in the middle.
type memoryPlayer struct{}

// Name implements Player.
func (memoryPlayer) Name() string { return "memory" }

// Play implements Player.
func (memoryPlayer) Play(ctx context.Context, t *Target, r *rand.Rand) error {
	c, u, err := dialFiles(ctx, t)
	if err != nil {
		return nil
	}
	defer c.Close()
	var mine files
	defer mine.close()
	fds := []int{mine.memfd(regionSize, fixed), mine.add(unix.Eventfd(0, unix.EFD_NONBLOCK))}
	mem, err := unix.Mmap(fds[0], 0, regionSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil // so many are mapped already
	}
	defer func() { _ = unix.Munmap(mem) }()
	w := newListening(c)
	var flipping sync.WaitGroup
	_, _ = c.Write(hello(TokenHostile, byte(r.Uint32())))
	w.wait(1)
	if _, _, err := u.WriteMsgUnix(attachOf(regionSize, ringAt, ringEntries), unix.UnixRights(fds...), nil); err != nil {
		c.Close()
		return w.end()
	}
	over, stop := context.WithCancel(ctx)
	flip := rand.New(rand.NewPCG(r.Uint64(), 1))
	flipping.Go(func() {
		for n := 0; over.Err() == nil; n++ {
			at := 8 * flip.IntN(regionSize/8)
			if flip.IntN(2) == 0 {
				at = ringAt + 8*flip.IntN(8*ringEntries)
			}
			word := (*uint64)(unsafe.Pointer(&mem[at]))
			atomic.StoreUint64(word, []uint64{0, flip.Uint64(), atomic.LoadUint64(word) + 1, 1 << 60, oddNumber(flip)}[flip.IntN(5)])
			if n%64 == 0 {
				pause(over, time.Microsecond) // the machine is not all ours
			}
		}
	})
	for call := uint64(2); call < uint64(4+r.IntN(40)); call++ {
		var f []byte
		switch ns := t.aSpace(ctx, r); r.IntN(8) {
		case 0, 1, 2:
			b, _ := putOf(r, ns, []int{1024, 1024, 1, 4096, 60_000}[r.IntN(5)], regionSize)
			f = frame(frames.TypePut, call, b, nil)
		case 3, 4, 5:
			aims := make([]aim, 1+r.IntN(4)) // most of them in the same place
			for i := range aims {
				aims[i] = aim{uint8(1 + r.IntN(2)), uint64(4096 * r.IntN(3)), uint64(regionSize - 4096*r.IntN(40)), 4096 * int64(r.IntN(20))}
			}
			f = frame(frames.TypeRestore, call, restoreOf(r, ns, 1<<20, r.IntN(4) > 0, r.IntN(60), aims...), nil)
		case 6:
			f = frame(frames.TypeBoard, call,
				body{}.u64(uint64(2+r.IntN(20))).i64(int64(r.IntN(3))).u64(uint64(8*r.IntN(regionSize/8))), nil)
		default:
			f = frame(frames.TypeCredit, 0, body{}.u64(0, uint64(r.IntN(100))), nil)
			if r.IntN(4) == 0 {
				f = frame(frames.TypeDetach, call, body{}.u64(1), nil)
			}
		}
		if _, err := c.Write(f); err != nil {
			break
		}
		if r.IntN(4) == 0 {
			pause(ctx, timeUpTo(r, 5))
		}
	}
	pause(ctx, timeUpTo(r, 100))
	stop()
	flipping.Wait()
	var seen Watcher
	_, _ = seen.Write(mem)
	c.Close() // while the server still writes
	return errors.Join(w.end(), seen.Err())
}

// killedPlayer is a process of its own that stores and restores through shared memory, and is killed in the middle.
type killedPlayer struct{ now atomic.Int64 }

// Name implements Player.
func (*killedPlayer) Name() string { return "killed" }

// Play implements Player.
func (k *killedPlayer) Play(ctx context.Context, t *Target, r *rand.Rand) error {
	if k.now.Add(1) > 1 { // a process costs more than all the others
		k.now.Add(-1)
		pause(ctx, 20*time.Millisecond)
		return nil
	}
	defer k.now.Add(-1)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p, err := os.StartProcess(self, []string{self}, &os.ProcAttr{Env: append(os.Environ(), childAddr+"="+t.Server.Addrs[Wire][1].String())})
	if err != nil {
		return nil // no process is to be had
	}
	pause(ctx, 30*time.Millisecond+timeUpTo(r, 400))
	_ = p.Kill()
	_, err = p.Wait()
	return err
}
