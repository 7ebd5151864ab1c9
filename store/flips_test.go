package store

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// harmed is a store on files that a test harms: closed, with an older image of every file
// as it was before the last puts.
type harmed struct {
	*testing.T
	rng    *rand.Rand
	dir    string
	o      Options
	stale  string // the older image
	scopes []skep.Scope
	keys   []skep.Key
	model  map[string]string
	ranges map[string][]fileRange // by structure
}

type fileRange struct {
	path string
	off  int64
	n    int64
}

// newHarmed makes the store, with two copies of everything or one.
func newHarmed(t *testing.T, rng *rand.Rand, copies int) *harmed {
	h := &harmed{T: t, rng: rng, dir: tempRoot(t, "store"), stale: tempRoot(t, "stale"), model: map[string]string{}, ranges: map[string][]fileRange{}}
	h.o = small(h.dir)
	h.o.DeviceCount, h.o.CapacityBytes, h.o.CacheBytes, h.o.SegmentBytes = 3, 3<<20, -1, 64<<10
	h.keys = chainKeys(1, 24)
	s := h.open()
	h.scopes = []skep.Scope{openSpace(t, s, "chain", skep.Durable, copies, true), openSpace(t, s, "keys", skep.Cache, copies, false)}
	h.fill(s, 1)
	require.NoError(t, s.Close())
	copyDir(t, h.dir, h.stale)
	s = h.open()
	h.fill(s, 2) // the same keys again: what the older image has is stale
	h.survey(s)
	require.NoError(t, s.Close())
	return h
}

func (h *harmed) open() *Store {
	s, err := Open(testContext(h.T), h.o)
	require.NoError(h.T, err)
	return s
}

func (h *harmed) fill(s *Store, version int) {
	ctx := testContext(h.T)
	r := &skep.PutRequest{Scope: h.scopes[0]}
	for _, k := range h.keys {
		r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: content(k, skep.PartKV, 1, 9000)}}})
		h.model["0"+k.Short()] = string(content(k, skep.PartKV, 1, 9000))
	}
	_, err := s.Put(ctx, r)
	require.NoError(h.T, err)
	for i := 0; i < len(h.keys); i += 3 { // three at a time: one in its record, two that share a page or do not
		r := &skep.PutRequest{Scope: h.scopes[1]}
		for j, k := range h.keys[i : i+3] {
			b := content(k, "keys", version, []int{300, 900, []int{1800, 6000}[i%2]}[j])
			r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: b}}})
			h.model["1"+k.Short()] = string(b)
		}
		_, err := s.Put(ctx, r)
		require.NoError(h.T, err)
	}
}

// survey finds where the structures lie on the devices.
func (h *harmed) survey(s *Store) {
	page := int64(layout.PageSize)
	for _, d := range s.members.Opened {
		h.ranges["superblock"] = append(h.ranges["superblock"], fileRange{d.Path, 0, 2 * page})
	}
	for _, num := range s.space.Numbers(0) {
		g := s.space.Find(num)
		for i, d := range g.Drives {
			at := d.SegmentOffset(g.Segments[i])
			h.ranges["segment header"] = append(h.ranges["segment header"], fileRange{d.Path, at, page})
			if g.Logged != nil && g.Logged[i] > 0 {
				n := int64(g.Logged[i]) * page
				h.ranges["log"] = append(h.ranges["log"], fileRange{d.Path, at + s.space.SegmentBytes - n, n})
			}
		}
	}
	for _, rec := range recordsOf(h.T, s) {
		for _, p := range rec.Copies {
			g := s.space.Find(p.Group)
			for _, e := range layout.Extents(nil, layout.Location{Group: p.Group, Page: p.Page, Device: p.Device}, int64(rec.Pages)*page, len(g.Drives)) {
				d := g.Drives[e.Device]
				h.ranges["payload"] = append(h.ranges["payload"], fileRange{d.Path, d.SegmentOffset(g.Segments[e.Device]) + int64(e.Page)*page, e.Len})
			}
		}
	}
}

// catalogFiles are the files of the catalog whose name begins so.
func (h *harmed) catalogFiles(match func(name string) bool) (out []fileRange) {
	list, err := os.ReadDir(filepath.Join(h.dir, "catalog"))
	require.NoError(h.T, err)
	for _, e := range list {
		st, err := e.Info()
		require.NoError(h.T, err)
		if match(e.Name()) && st.Size() > 0 {
			out = append(out, fileRange{filepath.Join(h.dir, "catalog", e.Name()), 0, st.Size()})
		}
	}
	return out
}

// harm does one kind of damage somewhere in one of ranges.
func (h *harmed) harm(kind string, ranges []fileRange) string {
	r := ranges[h.rng.IntN(len(ranges))]
	b, err := os.ReadFile(r.path)
	require.NoError(h.T, err)
	at := r.off + h.rng.Int64N(r.n)
	switch kind {
	case "bit":
		b[at] ^= 1 << h.rng.IntN(8)
	case "bytes":
		for i := range min(int64(1+h.rng.IntN(600)), r.off+r.n-at) {
			b[at+i] ^= byte(1 + h.rng.IntN(255))
		}
	case "zeros":
		clear(b[at&^511 : min(at&^511+512, int64(len(b)))])
	case "misdirected": // a page of another place of the same structure lands here
		o := ranges[h.rng.IntN(len(ranges))]
		src, err := os.ReadFile(o.path)
		require.NoError(h.T, err)
		from, to := (o.off+h.rng.Int64N(o.n))&^4095, at&^4095
		copy(b[to:min(to+4096, int64(len(b)))], src[from:min(from+4096, int64(len(src)))])
	case "stale": // the page as it was in the older image
		old, err := os.ReadFile(filepath.Join(h.stale, strings.TrimPrefix(r.path, h.dir)))
		if err != nil { // it was not there then: another of its kind
			if old = h.staleLike(r.path); old == nil {
				return ""
			}
		}
		to := at &^ 4095
		if to >= int64(len(old)) {
			return ""
		}
		copy(b[to:min(to+4096, int64(len(b)))], old[to:min(to+4096, int64(len(old)))])
	}
	f, err := os.OpenFile(r.path, os.O_WRONLY, 0)
	require.NoError(h.T, err)
	was, err := os.ReadFile(r.path)
	require.NoError(h.T, err)
	if bytes.Equal(was, b) {
		require.NoError(h.T, f.Close())
		return ""
	}
	_, err = f.WriteAt(b, 0)
	require.NoError(h.T, err)
	require.NoError(h.T, f.Close())
	return filepath.Base(r.path) + " at " + itoa64(at)
}

// staleLike is a file of the older catalog of the same kind as path; nil: there is none.
func (h *harmed) staleLike(path string) []byte {
	list, err := os.ReadDir(filepath.Join(h.stale, "catalog"))
	require.NoError(h.T, err)
	for _, e := range list {
		if kindOfFile(e.Name()) == kindOfFile(filepath.Base(path)) {
			b, err := os.ReadFile(filepath.Join(h.stale, "catalog", e.Name()))
			require.NoError(h.T, err)
			return b
		}
	}
	return nil
}

// kindOfFile is which of the catalog's files a name is of: .sst, .log, MANIFEST, OPTIONS.
func kindOfFile(name string) string {
	if ext := filepath.Ext(name); ext != "" {
		return ext
	}
	kind, _, _ := strings.Cut(name, "-")
	return kind
}

// harmOnce does one kind of damage, checks what comes of it, and mends it. It says whether
// there was something to damage, and whether it was noticed.
func (h *harmed) harmOnce(kind, structure string, ranges []fileRange, rebuild bool) (done, noticed bool) {
	h.Helper()
	saved := filepath.Join(h.T.TempDir(), "saved")
	copyDir(h.T, h.dir, saved)
	if what := h.harm(kind, ranges); what != "" {
		done, noticed = true, h.check(kind+" in "+structure+", "+what, rebuild)
	}
	require.NoError(h.T, os.RemoveAll(h.dir))
	copyDir(h.T, saved, h.dir)
	require.NoError(h.T, os.RemoveAll(saved))
	return done, noticed
}

// Each kind of file that the catalog is made of, harmed in each way: what the store gives
// afterwards is what was put last, or a miss, or it says what is wrong.
func TestCatalogDamageNeverComesOut(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("twenty opens of a store on files")
	}
	rng := newRand(testSeed(t))
	h := newHarmed(t, rng, 1)
	done, noticed := map[string]int{}, 0
	for _, file := range []string{".log", ".sst", "MANIFEST", "OPTIONS"} {
		for _, kind := range []string{"bit", "bytes", "zeros", "misdirected", "stale"} {
			ranges := h.catalogFiles(func(n string) bool { return kindOfFile(n) == file })
			require.NotEmpty(t, ranges, file)
			was, seen := h.harmOnce(kind, file, ranges, false)
			if was {
				done[file+" "+kind]++
			}
			if seen {
				noticed++
			}
		}
	}
	t.Logf("%v; in %d of them something was missing or refused", done, noticed)
}

// No bit flip, misdirected or stale write in any structure, on a device or in the
// catalog, makes the store give wrong bytes: what it gives is what was put last, or a
// miss, and a miss of a chained block only where damage could not be made good. With a
// catalog made anew from the harmed devices the same holds.
func TestDamageNeverComesOut(t *testing.T) {
	t.Parallel()
	rng := newRand(testSeed(t))
	seconds := 12
	if testing.Short() {
		seconds = 6
	}
	end := time.Now().Add(time.Duration(testNumber(t, "SKEP_DAMAGE_SECONDS", seconds)) * time.Second)
	tables := func(n string) bool { return strings.HasSuffix(n, ".sst") }
	logs := func(n string) bool { return strings.HasSuffix(n, ".log") }
	structures := []struct {
		name   string
		ranges func(h *harmed) []fileRange
		kinds  []string
	}{
		{"superblock", nil, []string{"bit", "bytes", "zeros", "misdirected"}},
		{"segment header", nil, []string{"bit", "bytes", "zeros", "misdirected", "stale"}},
		{"log", nil, []string{"bit", "bytes", "zeros", "misdirected", "stale"}},
		{"payload", nil, []string{"bit", "bytes", "zeros", "misdirected", "stale"}},
		{"catalog manifest", func(h *harmed) []fileRange {
			return h.catalogFiles(func(n string) bool { return strings.HasPrefix(n, "MANIFEST") })
		}, []string{"bit", "bytes", "zeros"}},
		{"catalog log", func(h *harmed) []fileRange { return h.catalogFiles(logs) }, []string{"bit", "bytes", "zeros"}},
		{"catalog table", func(h *harmed) []fileRange { return h.catalogFiles(tables) }, []string{"bit", "bytes", "zeros"}},
	}
	done, detected := map[string]int{}, 0
	base := map[int]*harmed{}
	for round := 0; time.Now().Before(end); round++ {
		for _, st := range structures {
			kind := st.kinds[rng.IntN(len(st.kinds))]
			copies := 1 + rng.IntN(2)
			if base[copies] == nil {
				base[copies] = newHarmed(t, rng, copies)
			}
			h := base[copies]
			ranges := h.ranges[st.name]
			if st.ranges != nil {
				ranges = st.ranges(h)
			}
			if len(ranges) == 0 {
				continue
			}
			was, seen := h.harmOnce(kind, st.name+", copies "+itoa(copies), ranges, rng.IntN(2) == 0)
			if was {
				done[st.name+" "+kind]++
			}
			if seen {
				detected++
			}
		}
	}
	t.Logf("%v; in %d of them something was missing or refused", done, detected)
}

// check opens the harmed store, perhaps with a new catalog, and compares everything.
func (h *harmed) check(where string, rebuild bool) (missing bool) {
	h.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if rebuild {
		where += ", rebuilt"
		if _, err := Rebuild(ctx, h.o, false, nil); err != nil {
			h.refused(where, err)
			return true
		}
	}
	s, err := Open(ctx, h.o)
	if err != nil {
		h.refused(where, err)
		return true
	}
	for range 2 { // the first time may mend
		for k, v := range storedAll(h.T, s, h.scopes, h.keys) {
			if h.model[k] != v && !(rebuild && k[0] == '1' && strings.Contains(where, "in log,")) {
				h.Fatalf("%s: block %s has wrong bytes (%d, must be %d)", where, k, len(v), len(h.model[k]))
			}
		}
	}
	missing = len(storedAll(h.T, s, h.scopes, h.keys)) < len(h.model)
	require.NoError(h.T, s.Close(), where)
	return missing
}

// refused requires that an error names what is wrong.
func (h *harmed) refused(where string, err error) {
	h.Helper()
	switch skep.KindOf(err) {
	case skep.Damaged, skep.Foreign, skep.Missing, skep.Version, skep.NotFound, skep.Conflict, skep.DeviceFailed:
	default:
		h.Fatalf("%s: %v", where, err)
	}
}
