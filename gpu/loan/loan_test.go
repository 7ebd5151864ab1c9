//go:build linux

package loan_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/loan"
	"github.com/skepkv/skep/gpu/sim"
	"github.com/skepkv/skep/layout/elastic"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/tools/leaks"
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(borrowerEnv); socket != "" {
		if err := runBorrower(socket); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if socket := os.Getenv(lenderEnv); socket != "" {
		if err := runLender(socket); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	files, maps := descriptors(), shared()
	code := leaks.Run(m)
	if f, s := descriptors(), shared(); code == 0 && (f > files || s > maps) {
		fmt.Fprintf(os.Stderr, "the tests leave %d descriptors open and %d arenas mapped\n", f-files, s-maps)
		code = 1
	}
	os.Exit(code)
}

// unit has two blocks of each side.
var unit = elastic.Unit{Bytes: 64 << 10, LenderBlock: 32 << 10, BorrowerBlock: blockBytes, Lender: 2, Borrower: 2}

const units = 16

// lender is a Lender in this process, on a simulated GPU, that writes to all that is its own.
type lender struct {
	*loan.Lender
	t      *testing.T
	socket string
	stream gpu.Stream
	marks  [units]byte // what it wrote into its own units; 0: nothing since it got them back
	rng    byte
}

// newLender has long leases: a loaded machine is no reason to end anybody.
func newLender(t *testing.T, change func(*loan.LenderOptions)) *lender {
	so := sim.H20()
	so.Devices, so.MemoryBytes = 1, 16<<20
	w, err := sim.New(so)
	require.NoError(t, err)
	o := loan.LenderOptions{Socket: filepath.Join(t.TempDir(), "lender"), Name: "model", Device: w.Device(0), Unit: unit, Units: units, Floor: 2,
		Lease: patience, Reclaim: patience}
	if change != nil {
		change(&o)
	}
	l := &lender{t: t, socket: o.Socket}
	l.Lender, err = loan.Lend(o)
	require.NoError(t, err)
	l.stream, err = w.Device(0).NewStream()
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		require.NoError(t, l.Close(), "twice")
		require.NoError(t, l.stream.Close())
		require.NoError(t, w.Device(0).Close())
		_, err := os.Stat(o.Socket)
		require.ErrorIs(t, err, os.ErrNotExist)
	})
	return l
}

// descriptors and shared are how many sockets, arenas and processes this process has open, and
// how many arenas it has mapped; descriptorsOf and sharedOf the same of another, and -1 when it cannot be seen.
func descriptors() int { return descriptorsOf("self") }

func shared() int { return sharedOf("self") }

func descriptorsOf(pid any) int {
	dir := fmt.Sprintf("/proc/%v/fd/", pid)
	list, err := os.ReadDir(dir)
	if err != nil {
		return -1
	}
	n := 0
	for _, e := range list {
		to, _ := os.Readlink(dir + e.Name())
		for _, ours := range []string{"socket:", "/memfd:", "anon_inode:[pidfd]"} {
			if strings.HasPrefix(to, ours) {
				n++
			}
		}
	}
	return n
}

func sharedOf(pid any) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%v/maps", pid))
	if err != nil {
		return -1
	}
	return bytes.Count(b, []byte("memfd:simulated GPU"))
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// move moves the border; then all below it is the lender's: it writes there, and finds what
// it wrote before.
func (l *lender) move(border int) {
	l.t.Helper()
	l.check()
	clear(l.marks[border:])
	require.NoError(l.t, l.Move(bounded(l.t), border))
	require.Equal(l.t, border, l.Border())
	l.check()
	for u := range border {
		l.rng = max(l.rng+1, 1)
		l.marks[u] = l.rng
		l.stream.CopyIn(gpu.Place{Memory: l.Memory(), Offset: int64(u) * unit.Bytes}, bytes.Repeat([]byte{l.marks[u]}, int(unit.Bytes)))
	}
	require.NoError(l.t, l.stream.Sync(bounded(l.t)))
}

// check finds all that the lender wrote into its own units.
func (l *lender) check() {
	l.t.Helper()
	got := make([]byte, unit.Bytes)
	for u, mark := range l.marks {
		if mark == 0 {
			continue
		}
		l.stream.CopyOut(got, gpu.Place{Memory: l.Memory(), Offset: int64(u) * unit.Bytes})
		require.NoError(l.t, l.stream.Sync(bounded(l.t)))
		require.Equal(l.t, len(got), bytes.Count(got, []byte{mark}), "somebody wrote into unit %d, which is the lender's", u)
	}
}

// lent waits until n units are lent, all in all.
func (l *lender) lent(n int) {
	l.t.Helper()
	soon(l.t, func() bool {
		got := 0
		for _, b := range l.Status().Borrowers {
			got += b.To - b.From
		}
		return got == n
	}, "%d units are lent", n)
}

// The border goes up and down under a borrower that reads and writes all the time: it never
// sees a wrong byte, nor does the lender, and what is taken back is served from behind.
func TestBorderMoves(t *testing.T) {
	t.Parallel()
	l := newLender(t, nil)
	b := spawn(t, l.socket)
	b.holding(0)
	l.move(4)
	l.lent(12)
	b.holding(24)
	for _, to := range []int{10, 6, 15, 16, 2, 8, 12, 4} {
		l.move(to)
		l.lent(units - to)
		b.holding(min(chainBlocks, 2*(units-to)))
		l.check()
	}
	s, err := loan.Ask(l.socket)
	require.NoError(t, err)
	require.True(t, s.Simulated)
	require.Equal(t, []any{"model", 4, 4, units, 2, "holds", "borrower", b.cmd.Process.Pid, 4, 16},
		[]any{s.Name, s.Border, s.Offer, s.Units, s.Floor, s.Borrowers[0].State, s.Borrowers[0].Name, s.Borrowers[0].PID, s.Borrowers[0].From, s.Borrowers[0].To})
	require.EqualValues(t, 5, s.Counts.Reclaims)

	b.quit()
	l.lent(0)
	l.move(16)
	s = l.Status()
	require.Empty(t, s.Borrowers)
	require.Zero(t, s.Counts.Died)
	r := prometheus.NewPedanticRegistry()
	require.NoError(t, r.Register(l.Lender))
	_, err = r.Gather()
	require.NoError(t, err)
}

// Whatever happens to a borrower: the lender's memory comes back, and it was nobody's but the
// lender's from then on.
func TestBorrowersThatEnd(t *testing.T) {
	t.Parallel()
	quick := func(o *loan.LenderOptions) { o.Reclaim = 50 * time.Millisecond }
	silent := func(o *loan.LenderOptions) { o.Lease, o.Reclaim = 5*time.Second, 50*time.Millisecond }
	for _, tt := range []struct {
		name   string
		change func(*loan.LenderOptions)
		do     func(t *testing.T, b *child)
		ended  int64 // by the lender
	}{
		{"killed", nil, func(t *testing.T, b *child) { require.NoError(t, b.cmd.Process.Kill()) }, 0},
		{"stopped when it is to give back", quick, func(t *testing.T, b *child) { b.stop() }, 1},
		{"its GPU fails, and it cannot know what is still under way", quick, func(t *testing.T, b *child) {
			_, err := fmt.Fprintln(b.in, "fail")
			require.NoError(t, err)
			b.holding(0)
		}, 1},
		{"stopped for longer than its lease", silent, func(t *testing.T, b *child) {
			b.stop()
			require.Error(t, b.wait(), "it is ended without anybody's asking for memory")
		}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if testing.Short() && tt.name == "stopped for longer than its lease" {
				t.Skip("leases are long, so that a loaded machine is no reason to end anybody")
			}
			l := newLender(t, tt.change)
			b := spawn(t, l.socket)
			l.move(4)
			b.holding(24)
			tt.do(t, b)
			l.move(16)
			l.check()
			soon(t, func() bool { return len(l.Status().Borrowers) == 0 }, "it is forgotten")
			require.Equal(t, tt.ended, l.Status().Counts.Ended)
			require.EqualValues(t, 1, l.Status().Counts.Died)

			again := spawn(t, l.socket)
			l.move(10)
			again.holding(12)
			again.quit()
		})
	}
}

// A borrower whose lender goes away goes on without.
func TestLenderEnds(t *testing.T) {
	t.Parallel()
	l := newLender(t, nil)
	b := spawn(t, l.socket)
	l.move(4)
	b.holding(24)
	require.NoError(t, l.Close())
	b.holding(0)
	b.over()
	b.quit()
	_, err := loan.Ask(l.socket)
	require.ErrorIs(t, err, skep.Unavailable)
	require.ErrorIs(t, l.Move(bounded(t), 4), skep.Closed)
}

// Whoever closes a lender knows afterwards that nothing is lent, when others close it, too.
func TestTwoCloseALender(t *testing.T) {
	t.Parallel()
	l := newLender(t, func(o *loan.LenderOptions) { o.Reclaim = time.Second })
	b := spawn(t, l.socket)
	l.move(4)
	l.lent(12)
	b.stop() // it answers nobody, and is ended
	crew := storetest.NewCrew(t)
	crew.Go(func(t testing.TB) { require.NoError(t, l.Close()) })
	soon(t, func() bool { return errors.Is(l.Move(bounded(t), 4), skep.Closed) }, "it is being closed")
	require.NoError(t, l.Close())
	require.Equal(t, units, l.Status().Border)
	crew.Wait()
	require.Error(t, b.wait())
}

// Borrowers share, and moves, ends and beginnings come in any order.
func TestSeveralAtRandom(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	l := newLender(t, func(o *loan.LenderOptions) { o.Borrowers, o.Reclaim = 2, 250*time.Millisecond })
	list := []*child{spawn(t, l.socket), spawn(t, l.socket)}
	l.move(2)
	l.lent(14)
	for _, b := range l.Status().Borrowers {
		require.Equal(t, 7, b.To-b.From, "each its share")
	}
	full := spawn(t, l.socket)
	require.Error(t, full.wait())
	require.Contains(t, full.stderr.String(), "as many borrowers as there may be")
	steps := 24
	if testing.Short() {
		steps = 10
	}
	for range steps {
		i := rng.IntN(len(list))
		switch rng.IntN(6) {
		case 0:
			_ = list[i].cmd.Process.Kill() // the lender may have been quicker
			_ = list[i].wait()
			soon(t, func() bool { return len(l.Status().Borrowers) < 2 }, "it is forgotten")
			list[i] = spawn(t, l.socket)
		case 1: // it may be ended for it, or not
			_ = list[i].cmd.Process.Signal(syscall.SIGSTOP)
			l.move(2 + rng.IntN(units-1))
			_ = list[i].cmd.Process.Signal(syscall.SIGCONT)
		default:
			l.move(2 + rng.IntN(units-1))
		}
		for i, b := range list {
			select {
			case <-b.ended:
				require.NotContains(t, b.stderr.String(), errWrong.Error())
				list[i] = spawn(t, l.socket)
			default:
			}
		}
		l.check()
	}
	l.move(16)
	l.check()
	for _, b := range list {
		if b.in.Close(); b.wait() != nil {
			require.NotContains(t, b.stderr.String(), errWrong.Error())
		}
	}
	t.Logf("%+v", l.Status().Counts)
}

func TestRefused(t *testing.T) {
	t.Parallel()
	l := newLender(t, nil)
	so := sim.H20()
	w, err := sim.New(so)
	require.NoError(t, err)
	s, err := gpu.New(nil, gpu.Options{Device: w.Device(0), BlockBytes: blockBytes})
	require.NoError(t, err)
	ok := loan.BorrowerOptions{Socket: l.socket, Device: w.Device(1), Tier: s}
	_, err = loan.Borrow(ok)
	require.ErrorIs(t, err, skep.Denied)
	require.ErrorContains(t, err, "own process")
	for name, tt := range map[string]struct {
		change func(*loan.BorrowerOptions)
		kind   skep.Kind
	}{
		"nobody there": {func(o *loan.BorrowerOptions) { o.Socket += "x" }, skep.Unavailable},
		"no device":    {func(o *loan.BorrowerOptions) { o.Device = nil }, skep.Invalid},
		"no tier":      {func(o *loan.BorrowerOptions) { o.Tier = nil }, skep.Invalid},
		"want":         {func(o *loan.BorrowerOptions) { o.Want = -1 }, skep.Invalid},
		"long name":    {func(o *loan.BorrowerOptions) { o.Name = strings.Repeat("x", 200) }, skep.Invalid},
	} {
		o := ok
		tt.change(&o)
		_, err := loan.Borrow(o)
		require.ErrorIs(t, err, tt.kind, name)
	}
	good := loan.LenderOptions{Socket: filepath.Join(t.TempDir(), "s"), Device: w.Device(0), Unit: unit, Units: 4}
	for name, tt := range map[string]struct {
		change func(*loan.LenderOptions)
		kind   skep.Kind
	}{
		"no device": {func(o *loan.LenderOptions) { o.Device = nil }, skep.Invalid},
		"no units":  {func(o *loan.LenderOptions) { o.Units = 0 }, skep.Invalid},
		"floor":     {func(o *loan.LenderOptions) { o.Floor = 5 }, skep.Invalid},
		"borrowers": {func(o *loan.LenderOptions) { o.Borrowers = 65 }, skep.Invalid},
		"window":    {func(o *loan.LenderOptions) { o.Window = -1 }, skep.Invalid},
		"lease":     {func(o *loan.LenderOptions) { o.Lease = 1 }, skep.Invalid},
		"too large": {func(o *loan.LenderOptions) { o.Unit.Bytes = 1 << 40 }, skep.Invalid},
		"no socket": {func(o *loan.LenderOptions) { o.Socket = "" }, skep.Invalid},
		"no path":   {func(o *loan.LenderOptions) { o.Socket = t.TempDir() }, skep.Invalid},
		"in use":    {func(o *loan.LenderOptions) { o.Socket = l.socket }, skep.Locked},
	} {
		o := good
		tt.change(&o)
		_, err := loan.Lend(o)
		require.ErrorIs(t, err, tt.kind, name)
	}
	for _, border := range []int{1, 17} {
		require.ErrorIs(t, l.Move(bounded(t), border), skep.Invalid)
	}
}

// Blocks of the lender's own keep their units from being lent until they are freed.
func TestOwnBlocks(t *testing.T) {
	t.Parallel()
	l := newLender(t, nil)
	var mine []int
	for range 20 { // of 32: ten units
		block, ok := l.Alloc()
		require.True(t, ok)
		mine = append(mine, block)
	}
	require.EqualValues(t, 19*(32<<10), l.Place(19).Offset)
	b := spawn(t, l.socket)
	require.NoError(t, l.Move(bounded(t), 4))
	l.lent(6)
	_, ok := l.Alloc()
	require.False(t, ok, "it stands beyond its border already")
	for _, block := range mine[12:] {
		require.NoError(t, l.Free(block))
	}
	require.ErrorIs(t, l.Free(mine[12]), skep.Invalid)
	l.lent(10)
	b.holding(20)
	b.quit()
}
