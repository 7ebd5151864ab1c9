package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
)

// Options outside their limits are refused with a name, and nothing is made.
func TestBadOptions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		field  string
		change func(o *Options)
	}{
		{"no directory", "dir", func(o *Options) { o.Dir = "" }},
		{"too many devices", "device count", func(o *Options) { o.DeviceCount = 65 }},
		{"too few devices", "device count", func(o *Options) { o.DeviceCount = -1 }},
		{"too many paths", "devices", func(o *Options) { o.Devices = make([]string, 65) }},
		{"one path twice", "devices", func(o *Options) { o.Devices = []string{"/a/b", "/a/./b"} }},
		{"negative capacity", "capacity bytes", func(o *Options) { o.CapacityBytes = -1 }},
		{"capacity for nothing", "capacity bytes", func(o *Options) { o.CapacityBytes = 10 << 10 }},
		{"capacity for two segments a device", "capacity bytes", func(o *Options) { o.SegmentBytes, o.CapacityBytes = 256<<10, 2*(2*256<<10+8<<10) }},
		{"negative reserve", "reserve bytes", func(o *Options) { o.ReserveBytes = -1 }},
		{"negative block", "block bytes", func(o *Options) { o.BlockBytes = -1 }},
		{"large block", "block bytes", func(o *Options) { o.BlockBytes = skep.MaxPartBytes + 1 }},
		{"odd segment", "segment bytes", func(o *Options) { o.SegmentBytes = 4097 }},
		{"large segment", "segment bytes", func(o *Options) { o.SegmentBytes = maxSegmentBytes + layout.PageSize }},
		{"unknown policy", "policy", func(o *Options) { o.Policy = "fifo" }},
		{"little memory", "io bytes", func(o *Options) { o.IOBytes = 1 << 20 }},
		{"memory that no arena takes", "io bytes", func(o *Options) { o.IOBytes = 1 << 44 }},
		{"a cache that no arena takes", "cache bytes", func(o *Options) { o.CacheBytes = 1<<43 - 4<<10 }},
		{"negative logical cap", "logical blocks", func(o *Options) { o.LogicalBlocks = -1 }},
		{"negative leases", "leased bytes", func(o *Options) { o.LeasedBytes = -1 }},
		{"negative pins", "pinned bytes", func(o *Options) { o.PinnedBytes = -1 }},
		{"negative share", "tenant bytes", func(o *Options) { o.TenantBytes = map[string]int64{"t": -1} }},
		{"negative workers", "workers", func(o *Options) { o.Workers = -1 }},
		{"negative flush bytes", "flush bytes", func(o *Options) { o.FlushBytes = -1 }},
		{"no flush interval", "flush interval", func(o *Options) { o.FlushInterval = 1 }},
		{"no time for operations", "op timeout", func(o *Options) { o.OpTimeout = 1 }},
		{"negative wait for space", "space timeout", func(o *Options) { o.SpaceTimeout = -1 }},
		{"negative events", "event buffer", func(o *Options) { o.EventBuffer = -1 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := tempRoot(t, "store")
			o := small(dir)
			o.SegmentBytes = 0
			tt.change(&o)
			s, err := Open(context.Background(), o)
			if err == nil {
				require.NoError(t, s.Close())
			}
			requireKind(t, skep.Invalid, err)
			var e *skep.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, tt.field, e.Field)
			require.NotNil(t, e.Limit)
			devices, _ := filepath.Glob(filepath.Join(dir, "device-*"))
			require.Empty(t, devices)
		})
	}
}

const openSize = 9000

// makeStore makes a store with a few blocks and closes it.
func makeStore(t *testing.T, dir string) (Options, skep.Scope, []skep.Key) {
	t.Helper()
	o := small(dir)
	s, err := Open(context.Background(), o)
	require.NoError(t, err)
	sc := openSpace(t, s, "n", skep.Durable, 1, true)
	keys := chainKeys(1, 20)
	requireOutcome(t, skep.Committed, putRun(t, s, sc, keys, openSize))
	require.NoError(t, s.Close())
	return o, sc, keys
}

func requireStore(t *testing.T, o Options, sc skep.Scope, keys []skep.Key) {
	t.Helper()
	s, err := Open(context.Background(), o)
	require.NoError(t, err)
	requireChain(t, s, sc, keys, openSize)
	require.NoError(t, s.Close())
}

// deviceSums are the devices' contents; the catalog's files may change with any opening,
// what is in them may not.
func deviceSums(t *testing.T, dir string) map[string][32]byte {
	out := map[string][32]byte{}
	list, err := filepath.Glob(filepath.Join(dir, "device-*"))
	require.NoError(t, err)
	for _, path := range list {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		out[path] = sha256.Sum256(b)
	}
	return out
}

func patch(t *testing.T, path string, off int64, f func(b []byte)) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	f(b[off:])
	require.NoError(t, os.WriteFile(path, b, 0o644))
}

func flip(b []byte) { b[100] ^= 0x10 }

// formatSuperblock turns a superblock into one of another format, or of a build from before the
// first release.
func formatSuperblock(n uint32, unreleased bool) func(page []byte) {
	return func(page []byte) {
		page = page[:layout.PageSize]
		if unreleased {
			copy(page, "skep/dev")
		}
		binary.LittleEndian.PutUint32(page[8:], n)
		binary.LittleEndian.PutUint64(page[len(page)-8:], xxh3.Hash(page[:len(page)-8]))
	}
}

// formatDevices does that to all superblocks of a store's devices.
func formatDevices(t *testing.T, dir string, n uint32, unreleased bool) {
	for _, name := range []string{"device-0", "device-1"} {
		for i := range int64(2) {
			patch(t, filepath.Join(dir, name), i*layout.PageSize, formatSuperblock(n, unreleased))
		}
	}
}

// formatCatalog does the same to a store's root row, which began with the format once.
func formatCatalog(t *testing.T, dir string, n uint32, unreleased bool) {
	db, err := pebble.Open(filepath.Join(dir, "catalog"), &pebble.Options{Logger: quiet{}})
	require.NoError(t, err)
	v, c, err := db.Get([]byte("s"))
	require.NoError(t, err)
	row := append([]byte{}, v...)
	require.NoError(t, c.Close())
	require.Equal(t, "\x01SKEP/cat\x01\x00\x00\x00", string(row[:13]))
	if unreleased {
		row = append([]byte{1}, row[9:]...)
		binary.LittleEndian.PutUint32(row[1:], n)
	} else {
		binary.LittleEndian.PutUint32(row[9:], n)
	}
	sum := crc32.Update(crc32.Checksum([]byte("s"), castagnoli), castagnoli, row[:len(row)-4])
	binary.LittleEndian.PutUint32(row[len(row)-4:], sum)
	require.NoError(t, db.Set([]byte("s"), row, pebble.Sync))
	require.NoError(t, db.Close())
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(string, ...any) {}

// What is not the store that was closed is refused with a kind that says what is wrong,
// and left as it is: mended, the store opens.
func TestBadOpenings(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		kind skep.Kind
		says string
		harm func(t *testing.T, dir string, o *Options)
	}{
		{"device of another store", skep.Missing, "device-1", func(t *testing.T, dir string, o *Options) {
			other := tempRoot(t, "other")
			makeStore(t, other)
			copyFile(t, filepath.Join(other, "device-1"), filepath.Join(dir, "device-1"))
		}},
		{"device missing", skep.Missing, "device-1", func(t *testing.T, dir string, o *Options) {
			require.NoError(t, os.Remove(filepath.Join(dir, "device-1")))
		}},
		{"device not named", skep.Missing, "device 1", func(t *testing.T, dir string, o *Options) {
			o.Devices = []string{filepath.Join(dir, "device-0")}
		}},
		{"a copy of a device in place of another", skep.Missing, "a second time", func(t *testing.T, dir string, o *Options) {
			copyFile(t, filepath.Join(dir, "device-0"), filepath.Join(dir, "device-1"))
		}},
		{"a device too many", skep.Foreign, "extra", func(t *testing.T, dir string, o *Options) {
			other := tempRoot(t, "other")
			makeStore(t, other)
			extra := filepath.Join(other, "extra")
			require.NoError(t, os.Rename(filepath.Join(other, "device-0"), extra))
			o.Devices = []string{filepath.Join(dir, "device-0"), filepath.Join(dir, "device-1"), extra}
		}},
		{"device cut short", skep.Missing, "device-1", func(t *testing.T, dir string, o *Options) {
			require.NoError(t, os.Truncate(filepath.Join(dir, "device-1"), 100<<10))
		}},
		{"device cut to nothing", skep.Missing, "device-1", func(t *testing.T, dir string, o *Options) {
			require.NoError(t, os.Truncate(filepath.Join(dir, "device-1"), 4096))
		}},
		{"both superblocks damaged", skep.Missing, "device-0", func(t *testing.T, dir string, o *Options) {
			patch(t, filepath.Join(dir, "device-0"), 0, flip)
			patch(t, filepath.Join(dir, "device-0"), layout.PageSize, flip)
		}},
		{"device blank", skep.Missing, "device-0", func(t *testing.T, dir string, o *Options) {
			patch(t, filepath.Join(dir, "device-0"), 0, func(b []byte) { clear(b[:2*layout.PageSize]) })
		}},
		{"a superblock of another format", skep.Version, "device-0: skep: superblock: other format: format is 2, must be 1,", func(t *testing.T, dir string, o *Options) {
			patch(t, filepath.Join(dir, "device-0"), 0, formatSuperblock(2, false))
		}},
		{"a device of an unreleased format", skep.Version, "format is 1 of a build from before the first release, must be 1,", func(t *testing.T, dir string, o *Options) {
			for i := range int64(2) {
				patch(t, filepath.Join(dir, "device-1"), i*layout.PageSize, formatSuperblock(1, true))
			}
		}},
		{"catalog of another format", skep.Version, "catalog: other format: store format is 2, must be 1,", func(t *testing.T, dir string, o *Options) {
			formatCatalog(t, dir, 2, false)
		}},
		{"catalog of an unreleased format", skep.Version, "store format is 1 of a build from before the first release, must be 1,", func(t *testing.T, dir string, o *Options) {
			formatCatalog(t, dir, 1, true)
		}},
		{"catalog gone", skep.Missing, "catalog", func(t *testing.T, dir string, o *Options) {
			o.NoRebuild = true
			require.NoError(t, os.RemoveAll(filepath.Join(dir, "catalog")))
		}},
		{"catalog damaged", skep.Damaged, "", func(t *testing.T, dir string, o *Options) {
			o.NoRebuild = true
			damageCatalog(t, dir)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := tempRoot(t, "store")
			good, sc, keys := makeStore(t, dir)
			saved := tempRoot(t, "saved")
			copyDir(t, dir, saved)
			o := good
			tt.harm(t, dir, &o)
			before := deviceSums(t, dir)
			for range 2 { // refused once, refused again: nothing was changed that hides it
				_, err := Open(context.Background(), o)
				requireKind(t, tt.kind, err)
				require.Contains(t, err.Error(), tt.says)
				var e *skep.Error
				require.True(t, errors.As(err, &e))
			}
			require.Equal(t, before, deviceSums(t, dir))
			require.NoError(t, os.RemoveAll(dir))
			copyDir(t, saved, dir)
			requireStore(t, good, sc, keys)
		})
	}
}

// A store of another format, or of a build from before the first release, is refused by every door, and
// nothing about it is changed: also where its catalog is gone or damaged, which the devices make good else.
func TestOtherFormatsAreRefused(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, f := range []struct {
		n          uint32
		unreleased bool
		says       string
	}{
		{1, true, "format is 1 of a build from before the first release, must be 1, the one that this program reads: use the skep that wrote the store, or make the store anew"},
		{4, true, "format is 4 of a build from before the first release, must be 1, "},
		{0, false, "format is 0, must be 1, "},
		{2, false, "format is 2, must be 1, the one that this program reads: use the skep that wrote the store, or make the store anew"},
	} {
		for name, harm := range map[string]func(t *testing.T, dir string){
			"whole":           func(t *testing.T, dir string) { formatCatalog(t, dir, f.n, f.unreleased) },
			"catalog gone":    func(t *testing.T, dir string) { require.NoError(t, os.RemoveAll(filepath.Join(dir, "catalog"))) },
			"catalog damaged": damageCatalog,
		} {
			t.Run(fmt.Sprintf("%d unreleased %v, %s", f.n, f.unreleased, name), func(t *testing.T) {
				dir := tempRoot(t, "store")
				o, _, _ := makeStore(t, dir)
				formatDevices(t, dir, f.n, f.unreleased)
				harm(t, dir)
				names, devices := namesIn(t, dir), deviceSums(t, dir)
				refused := func(err error) {
					t.Helper()
					requireKind(t, skep.Version, err)
					require.ErrorContains(t, err, f.says)
					require.Equal(t, names, namesIn(t, dir))
					require.Equal(t, devices, deviceSums(t, dir))
				}
				for range 2 {
					_, err := Open(ctx, o)
					refused(err)
				}
				for _, dry := range []bool{true, false} {
					_, err := Rebuild(ctx, o, dry, nil)
					refused(err)
				}
				if name == "whole" {
					ro := o
					ro.ReadOnly = true
					_, err := Open(ctx, ro)
					refused(err)
					rep, err := Verify(ctx, o, VerifyOptions{})
					require.NoError(t, err)
					require.Contains(t, rep.Faults[0].Problem, f.says)
					require.Contains(t, rep.Faults[0].Do, "make the store anew")
				}
			})
		}
	}
}

// namesIn are the files and directories in dir, but for the catalog's own files, which may change with any opening.
func namesIn(t *testing.T, dir string) (names []string) {
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func damageCatalog(t *testing.T, dir string) {
	list, err := filepath.Glob(filepath.Join(dir, "catalog", "MANIFEST-*"))
	require.NoError(t, err)
	for _, m := range list {
		patch(t, m, 0, func(b []byte) { b[len(b)/2] ^= 0xff })
	}
}

// What is not as it was and still the same store opens.
func TestGoodOpenings(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, dir string, o *Options)
	}{
		{"devices in another order", func(t *testing.T, dir string, o *Options) {
			o.Devices = []string{filepath.Join(dir, "device-1"), filepath.Join(dir, "device-0")}
		}},
		{"devices moved", func(t *testing.T, dir string, o *Options) {
			to := filepath.Join(t.TempDir(), "elsewhere")
			require.NoError(t, os.Rename(filepath.Join(dir, "device-1"), to))
			o.Devices = []string{to, filepath.Join(dir, "device-0")}
		}},
		{"directory moved", func(t *testing.T, dir string, o *Options) {
			o.Dir = tempRoot(t, "moved")
			require.NoError(t, os.Rename(dir, o.Dir))
		}},
		{"first superblock damaged", func(t *testing.T, dir string, o *Options) {
			patch(t, filepath.Join(dir, "device-0"), 0, flip)
		}},
		{"second superblock damaged", func(t *testing.T, dir string, o *Options) {
			patch(t, filepath.Join(dir, "device-1"), layout.PageSize, flip)
		}},
		{"larger capacity", func(t *testing.T, dir string, o *Options) {
			o.CapacityBytes, o.ChangeCapacity = o.CapacityBytes*2, true
		}},
		{"smaller capacity", func(t *testing.T, dir string, o *Options) {
			o.CapacityBytes, o.ChangeCapacity = o.CapacityBytes/2, true
		}},
		{"another block and segment size", func(t *testing.T, dir string, o *Options) { o.BlockBytes, o.SegmentBytes = 1<<20, 1<<20 }},
		{"another policy", func(t *testing.T, dir string, o *Options) { o.Policy, o.LogicalBlocks = "lru", 1000 }},
		{"a lock file left behind", func(t *testing.T, dir string, o *Options) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "LOCK"), []byte("process 1 (x) on y since z\n"), 0o644))
		}},
		{"read-only", func(t *testing.T, dir string, o *Options) { o.ReadOnly = true }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := tempRoot(t, "store")
			o, sc, keys := makeStore(t, dir)
			tt.do(t, dir, &o)
			requireStore(t, o, sc, keys)
			if o.ReadOnly {
				return
			}
			s, err := Open(context.Background(), o)
			require.NoError(t, err)
			more := chainKeys(2, 10)
			requireOutcome(t, skep.Committed, putRun(t, s, sc, more, openSize))
			requireChain(t, s, sc, more, openSize)
			require.NoError(t, s.Close())
			requireStore(t, o, sc, more)
		})
	}
}

// Reading only makes nothing, and changes nothing.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	dir := tempRoot(t, "store")
	o := small(dir)
	o.ReadOnly = true
	_, err := Open(context.Background(), o)
	requireKind(t, skep.NotFound, err)
	_, err = os.Stat(dir)
	require.ErrorIs(t, err, fs.ErrNotExist)

	o, sc, keys := makeStore(t, dir)
	before := treeSums(t, dir)
	o.ReadOnly = true
	requireStore(t, o, sc, keys)
	require.Equal(t, before, treeSums(t, dir))
}

func TestOpenTwice(t *testing.T) {
	t.Parallel()
	dir := tempRoot(t, "store")
	o, sc, keys := makeStore(t, dir)
	s, err := Open(context.Background(), o)
	require.NoError(t, err)
	_, err = Open(context.Background(), o)
	requireKind(t, skep.Locked, err)
	require.Contains(t, err.Error(), "process "+itoa(os.Getpid()))
	requireChain(t, s, sc, keys, openSize)
	ro := o
	ro.ReadOnly = true
	requireStore(t, ro, sc, keys)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err = s.Lookup(context.Background(), &skep.LookupRequest{Scope: sc, Keys: keys})
	requireKind(t, skep.Closed, err)
}

// A store made, closed and opened many times keeps no descriptors and no goroutines.
//
// Alone: descriptors of the whole process are counted.
func TestDescriptorsComeBack(t *testing.T) {
	dir := tempRoot(t, "store")
	o, sc, keys := makeStore(t, dir)
	requireStore(t, o, sc, keys)
	before := descriptors(t)
	for range 5 {
		requireStore(t, o, sc, keys)
		bad := o
		bad.Devices = []string{filepath.Join(dir, "device-0")}
		_, err := Open(context.Background(), bad)
		requireKind(t, skep.Missing, err)
	}
	eventually(t, "descriptors come back", func() bool { return descriptors(t) <= before })
}

func descriptors(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("/proc/self/fd is not there")
	}
	return len(list)
}

func treeSums(t *testing.T, dir string) map[string][32]byte {
	out := map[string][32]byte{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		out[strings.TrimPrefix(path, dir)] = sha256.Sum256(b)
		return err
	}))
	return out
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, b, 0o644))
}

func copyDir(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, os.CopyFS(to, os.DirFS(from)))
}
