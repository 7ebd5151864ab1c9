package consensus

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/drawn"
	"github.com/skepkv/skep/tools/leaks"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func open(t *testing.T, fsys vfs.FS) *logs {
	t.Helper()
	s, err := openLogs(fsys, "data/raft/log", quiet)
	require.NoError(t, err)
	return s
}

// model is what logs should have.
type model struct {
	entries map[uint64]raft.Log
	values  map[string]string
}

func (m *model) same(t *testing.T, s *logs) {
	t.Helper()
	first, last := uint64(0), uint64(0)
	if len(m.entries) > 0 {
		all := slices.Sorted(maps.Keys(m.entries))
		first, last = all[0], all[len(all)-1]
	}
	got, err := s.FirstIndex()
	require.NoError(t, err)
	require.Equal(t, first, got)
	got, err = s.LastIndex()
	require.NoError(t, err)
	require.Equal(t, last, got)
	for i := uint64(1); i <= last+1; i++ {
		m.sameEntry(t, s, i)
	}
	for name, v := range m.values {
		b, err := s.Get([]byte(name))
		require.NoError(t, err)
		require.Equal(t, v, string(b))
	}
	_, err = s.Get([]byte("no such"))
	require.EqualError(t, err, "not found", "raft compares the text")
	_, err = s.GetUint64([]byte("no such"))
	require.EqualError(t, err, "not found")
}

func (m *model) sameEntry(t *testing.T, s *logs, index uint64) {
	t.Helper()
	want, ok := m.entries[index]
	var got raft.Log
	err := s.GetLog(index, &got)
	if !ok {
		require.ErrorIs(t, err, raft.ErrLogNotFound)
		return
	}
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// Random writes, deletions, and stops: what was answered to is there, also after a crash that takes all or some of what
// was not synced, and nothing else is.
func TestTheLogIsItsModel(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(drawn.Seed(t), 1))
	fsys := vfs.NewCrashableMem()
	s := open(t, fsys)
	m := model{map[uint64]raft.Log{}, map[string]string{}}
	next, steps := uint64(1), 600
	if testing.Short() {
		steps = 150
	}
	for range steps {
		switch rng.IntN(10) {
		case 0, 1, 2, 3:
			if rng.IntN(20) == 0 {
				if gap := uint64(rng.IntN(50)); gap > 0 { // what a snapshot stands for, and all before it
					next += gap
					clear(m.entries)
				}
			}
			var list []*raft.Log
			for range 1 + rng.IntN(20) {
				l := raft.Log{Index: next, Term: rng.Uint64(), Type: raft.LogType(rng.IntN(6))}
				if rng.IntN(4) > 0 {
					l.Data = []byte(strings.Repeat("d", 1+rng.IntN(3000)))
				}
				if rng.IntN(4) == 0 {
					l.Extensions = []byte{byte(next)}
				}
				if rng.IntN(4) > 0 {
					l.AppendedAt = time.Unix(0, 1+rng.Int64N(math.MaxInt64-1))
				}
				list = append(list, &l)
				m.entries[next] = l
				next++
			}
			if len(list) == 1 {
				require.NoError(t, s.StoreLog(list[0]))
			} else {
				require.NoError(t, s.StoreLogs(list))
			}
		case 4: // entries that another leader has otherwise
			from := max(next, 10) - uint64(rng.IntN(10))
			require.NoError(t, s.DeleteRange(from, math.MaxUint64))
			maps.DeleteFunc(m.entries, func(i uint64, _ raft.Log) bool { return i >= from })
			next = max(min(next, from), 1)
		case 5: // what a snapshot has
			to := max(next, 100) - 100
			require.NoError(t, s.DeleteRange(0, to))
			maps.DeleteFunc(m.entries, func(i uint64, _ raft.Log) bool { return i <= to })
		case 6:
			name, v := fmt.Sprint("value ", rng.IntN(5)), fmt.Sprint(rng.Uint64())
			require.NoError(t, s.Set([]byte(name), []byte(v)))
			m.values[name] = v
		case 7:
			v := rng.Uint64()
			require.NoError(t, s.SetUint64([]byte("CurrentTerm"), v))
			got, err := s.GetUint64([]byte("CurrentTerm"))
			require.NoError(t, err)
			require.Equal(t, v, got)
		case 8:
			m.sameEntry(t, s, uint64(rng.IntN(int(next)+1)))
		case 9:
			if rng.IntN(4) > 0 {
				continue
			}
			crashed := fsys
			if rng.IntN(3) > 0 {
				crashed = fsys.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * rng.IntN(2), RNG: rand.New(rand.NewPCG(rng.Uint64(), 1))})
			}
			require.NoError(t, s.Close())
			fsys = crashed
			s = open(t, fsys)
			m.same(t, s)
		}
	}
	require.NoError(t, s.DeleteRange(5, 4), "none")
	m.same(t, s)
	require.NoError(t, s.Close())
}

// What is no entry, and what is of another version, is refused, and raft's goroutine ends rather than panics.
func TestAnEntryThatIsNoneFails(t *testing.T) {
	t.Parallel()
	good, err := encodeEntry(&raft.Log{Data: []byte("data")})
	require.NoError(t, err)
	for what, c := range map[string]struct {
		row  []byte
		kind skep.Kind
	}{
		"short":          {good[:entryHeader-1], skep.Damaged},
		"cut":            {good[:entryHeader+2], skep.Damaged},
		"another format": {append([]byte{2}, good[1:]...), skep.Version},
	} {
		s := open(t, vfs.NewMem())
		require.NoError(t, s.db.Set(entryKey(1), c.row, nil))
		var l raft.Log
		require.Equal(t, c.kind, skep.KindOf(s.GetLog(1, &l)), what)
		require.Zero(t, l.Index)
		require.NoError(t, s.StoreLog(&raft.Log{Index: 2}), "raft does not run yet")
		s.ends.Store(true)
		answered := false
		for _, ask := range []func(){
			func() { _ = s.GetLog(1, &l) }, func() { _ = s.SetUint64([]byte("CurrentTerm"), 1) },
		} {
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				ask()
				answered = true
			}()
			<-ended
		}
		require.False(t, answered)
		require.ErrorIs(t, s.StoreLog(&raft.Log{Index: 2}), skep.Failed, "for good")
		require.NoError(t, s.db.Close())
	}
}

// child is set where this program runs one test of its own, which leaves goroutines behind.
const child = "SKEP_TEST_LEAVES_GOROUTINES"

func TestMain(m *testing.M) {
	if os.Getenv(child) != "" {
		os.Exit(m.Run())
	}
	leaks.Main(m)
}

// inChild says whether this is the child, and runs it where it is not.
func inChild(t *testing.T) bool {
	t.Helper()
	if os.Getenv(child) != "" {
		return true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return false
}

// failing is a drive that can be broken.
type failing struct {
	vfs.FS
	broken atomic.Bool
}

func newFailing(fsys vfs.FS) *failing {
	f := &failing{}
	f.FS = errorfs.Wrap(fsys, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if f.broken.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return errors.New("the drive is gone")
		}
		return nil
	}))
	return f
}

func TestADriveThatFailsIsAnError(t *testing.T) {
	t.Parallel()
	if !inChild(t) {
		return
	}
	drive := newFailing(vfs.NewMem())
	s := open(t, drive)
	require.NoError(t, s.StoreLog(&raft.Log{Index: 1}))
	drive.broken.Store(true)
	require.ErrorIs(t, s.StoreLog(&raft.Log{Index: 2}), skep.Failed)
	<-s.failed
	require.ErrorIs(t, s.Set([]byte("a"), nil), skep.Failed)
	require.ErrorIs(t, s.Close(), skep.Failed)
}

// Pebble finds no descriptor for its next log, or cannot sync the last one, where it would end the process: the log
// fails, and says so.
func TestAProcessOutlivesALogThatCannotGoOn(t *testing.T) {
	t.Parallel()
	if !inChild(t) {
		return
	}
	for _, kinds := range [][]errorfs.OpKind{
		{errorfs.OpCreate, errorfs.OpReuseForWrite}, {errorfs.OpFileSync, errorfs.OpFileSyncData},
	} {
		var armed atomic.Bool
		s := open(t, errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if armed.Load() && slices.Contains(kinds, op.Kind) && strings.HasSuffix(op.Path, ".log") {
				return syscall.EMFILE
			}
			return nil
		})))
		require.NoError(t, s.StoreLog(&raft.Log{Index: 1}))
		armed.Store(true)
		var err error
		for i := uint64(2); i < 1000 && err == nil; i++ {
			err = s.StoreLog(&raft.Log{Index: i, Data: make([]byte, 64<<10)})
		}
		require.ErrorIs(t, err, skep.Failed)
		require.ErrorIs(t, err, syscall.EMFILE)
		<-s.failed
		require.ErrorIs(t, s.Close(), skep.Failed)
	}
}
