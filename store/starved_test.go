//go:build unix

package store

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memory"
)

// A host on which others use up what the store needs, and give it back: descriptors, the catalog's disk as it says
// itself, a disk that the catalog and the devices lie on, the memory of reads. What is asked for meanwhile is done, or
// declined with the reason; what is there is read; afterwards all is well without a restart. SKEP_STARVED_TIME says
// for how long; without it each is used up once or more.
//
// Alone: it has the machine for as long as it runs.
func TestStarved(t *testing.T) {
	limit := 2 * hangs
	long, _ := time.ParseDuration(os.Getenv("SKEP_STARVED_TIME"))
	if !aloneFor(t, limit+long) {
		return
	}
	h := &starvedHost{T: t, rnd: newRand(testSeed(t))}
	h.avail.Store(10 << 30)
	o := small(filepath.Join(h.disk(), "store"))
	// It grows as the disk allows, and keeps its hands off the last of it.
	o.CapacityBytes, o.ReserveBytes, o.CatalogFS = 0, 4<<20, starvedFS{meteredFS{vfs.Default, &h.avail}}
	o.ballastAfter = time.Nanosecond
	var err error
	h.s, err = Open(context.Background(), o)
	require.NoError(t, err)
	h.sc = openSpace(t, h.s, "n", skep.Durable, 1, false)

	wants := []want{{"descriptors", h.descriptors}, {"the catalog's disk", h.catalogDisk}, {"memory", h.memory}}
	if h.full != "" {
		wants = append(wants, want{"the disk of all", h.wholeDisk})
	}
	for i, end := 0, time.Now().Add(long); i < 2*len(wants) || time.Now().Before(end); i++ {
		w := wants[h.rnd.IntN(len(wants))]
		if i < len(wants) {
			w = wants[i]
		}
		t.Logf("%d: %s", i, w.of)
		require.Equal(t, skep.Committed, h.put().Outcome)
		giveBack := w.starve()
		for range 3 + h.rnd.IntN(5) {
			h.put()
		}
		h.readAll()
		giveBack()
		eventually(t, "puts are taken again after want of "+w.of, func() bool { return h.put().Outcome == skep.Committed })
		eventually(t, "all is well after want of "+w.of, func() bool { return h.state() == "ok" })
		h.readAll()
		if len(h.book) > 1000 {
			n, err := h.s.Delete(testContext(t), h.sc, h.book)
			require.NoError(t, err)
			require.Equal(t, len(h.book), n)
			h.book = nil
		}
	}
	require.NoError(t, h.s.Close())
	h.s, err = Open(context.Background(), o)
	require.NoError(t, err)
	h.readAll()
	require.NoError(t, h.s.Close())
}

// want is something that is used up, and the way to give it back.
type want struct {
	of     string
	starve func() (giveBack func())
}

type starvedHost struct {
	*testing.T
	rnd   *rand.Rand
	avail atomic.Uint64 // in the catalog's file system, as it says
	full  string        // a file that fills the disk; "": it is not the test's own
	short bool          // of memory
	s     *Store
	sc    skep.Scope
	book  []skep.Key // what was acknowledged
	root  int
}

// starvedFS has no more room than there is.
type starvedFS struct{ meteredFS }

func (f starvedFS) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	u, err := f.FS.GetDiskUsage(path)
	u.AvailBytes = min(u.AvailBytes, f.avail.Load())
	return u, err
}

// disk is a directory on a file system of its own, where that may be mounted.
func (h *starvedHost) disk() string {
	dir := tempRoot(h.T, "disk")
	require.NoError(h, os.MkdirAll(dir, 0o700))
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=96m,mode=700", "skep-starved", dir).CombinedOutput(); err != nil {
		h.Logf("NOT PLAYED: a disk that fills up: %v: %s", err, out)
		return dir
	}
	h.full = filepath.Join(dir, "filler")
	h.Cleanup(func() {
		_ = h.s.Close()
		eventually(h.T, "the disk is let go", func() bool { return exec.Command("umount", dir).Run() == nil })
	})
	return dir
}

func (h *starvedHost) put() skep.PutResult {
	h.Helper()
	h.root++
	keys := chainKeys(h.root, 1)
	ctx := testContext(h.T)
	if h.short {
		ctx = brief(h.T)
	}
	res, err := h.s.Put(ctx, putRequest(h.sc, nil, 0, keys, faultBlock))
	err, _ = skep.Held(err) // nobody else has the memory
	if err != nil {
		require.True(h, h.short, "%v", err)
		requireKind(h.T, skep.Deadline, err)
		return skep.PutResult{}
	}
	switch {
	case res[0].Outcome == skep.Committed:
		h.book = append(h.book, keys...)
	case h.short:
		require.Equal(h, skep.PutResult{Outcome: skep.Declined, Reason: skep.NoMemory}, res[0])
	default:
		require.Equal(h, skep.PutResult{Outcome: skep.Declined, Reason: skep.Full}, res[0])
	}
	return res[0]
}

// readAll requires that what was acknowledged is there. Short of memory, what is lent may have to wait for some.
func (h *starvedHost) readAll() {
	h.Helper()
	keys := h.book
	if h.short {
		keys = keys[:min(len(keys), 3)]
	}
	for _, k := range keys {
		if !h.short {
			requireChain(h.T, h.s, h.sc, []skep.Key{k}, faultBlock)
			continue
		}
		list, err := fetch(brief(h.T), h.s, skep.Chain{Scope: h.sc, Keys: []skep.Key{k}})
		if err != nil {
			requireKind(h.T, skep.Deadline, err)
			continue
		}
		if list[0].err != nil {
			require.Contains(h, []skep.Kind{skep.NoMemory, skep.Deadline}, skep.KindOf(list[0].err))
			continue
		}
		require.True(h, string(content(k, skep.PartKV, 1, faultBlock)) == string(list[0].data))
	}
}

func (h *starvedHost) state() string {
	st, err := h.s.Stats(testContext(h.T))
	require.NoError(h, err)
	return st.State
}

func (h *starvedHost) noticed() {
	h.Helper()
	eventually(h.T, "it is noticed", func() bool { return h.state() != "ok" })
}

// descriptors takes all, those of the catalog's reserve too: a limit that is lowered below what is in use stops every
// opening at once.
func (h *starvedHost) descriptors() func() {
	var was unix.Rlimit
	require.NoError(h, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	low := was
	low.Cur = 3
	require.NoError(h, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	_, err := os.Open(os.DevNull)
	require.ErrorIs(h, err, unix.EMFILE)
	err = h.s.AddDevice(testContext(h.T), NewDevice{Path: h.s.options.Dir + "/another"})
	require.ErrorIs(h, err, unix.EMFILE, "refused with the reason")
	h.s.catalog.SpendReserve()
	h.noticed()
	return func() { require.NoError(h, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) }
}

func (h *starvedHost) catalogDisk() func() {
	h.avail.Store(1 << 20)
	h.noticed()
	return func() { h.avail.Store(10 << 30) }
}

// wholeDisk fills the file system that the catalog and the devices lie on to its last page.
func (h *starvedHost) wholeDisk() func() {
	f, err := os.Create(h.full)
	require.NoError(h, err)
	for b := make([]byte, 1<<20); len(b) > 0; {
		if _, err := f.Write(b); err != nil {
			require.ErrorIs(h, err, unix.ENOSPC)
			b = b[:len(b)/2]
		}
	}
	require.NoError(h, f.Close())
	h.noticed()
	return func() { require.NoError(h, os.Remove(h.full)) }
}

// memory is what sessions of others hold of what is for reads and writes.
func (h *starvedHost) memory() func() {
	h.short = true
	bufs := holdMemory(h.s.arena)
	return func() {
		memory.ReleaseAll(bufs)
		h.short = false
	}
}
