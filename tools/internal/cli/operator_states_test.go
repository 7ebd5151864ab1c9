//go:build linux

package cli_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/skepkv/skep/store/segment"
)

// originals are the stores that are copied, and what gets in between: one that has nothing to do with them,
// and the first of them as it was earlier.
type originals struct {
	list    []*original
	foreign *original
	earlier map[*original]string // place
}

func makeOriginals(t *testing.T) *originals {
	b := &originals{earlier: map[*original]string{}}
	root := t.TempDir()
	for _, o := range []*original{
		{name: "two copies of each"},
		{name: "two copies of each, devices outside", outside: true},
		{name: "some once"},
	} {
		o.place = filepath.Join(root, fmt.Sprintf("original-%d", len(b.list)))
		earlier := filepath.Join(root, fmt.Sprintf("earlier-%d", len(b.list)))
		copies := 2
		if o.name == "some once" {
			copies = 1
		}
		o.fill(t, 0, 24, copies)
		copyTree(t, o.place, earlier)
		o.fill(t, 24, 12, copies)
		b.list, b.earlier[o] = append(b.list, o), earlier
	}
	b.foreign = &original{name: "another store", place: filepath.Join(root, "foreign")}
	b.foreign.fill(t, 100, 10, 2)
	return b
}

// namedAt are the devices that an operator names: where they lay in the original, and each once. Nobody names what is a link
// to the original's: that gives it to the copy.
func (p *mishap) namedAt(place string) (list []string) {
	dir := "store"
	if p.o.outside {
		dir = "drives"
	}
	met := map[segment.DeviceID]bool{}
	for _, path := range devicesAt(place) {
		sb, err := superblockOf(path)
		if filepath.Base(filepath.Dir(path)) == dir && (err != nil || !met[sb.Device]) && !p.isTheOriginals(path) {
			list, met[sb.Device] = append(list, path), true
		}
	}
	for _, path := range devicesAt(place) { // a command added it, where commands do
		if sb, err := superblockOf(path); err == nil && sb.Store == p.o.id && !met[sb.Device] && !p.isTheOriginals(path) {
			list, met[sb.Device] = append(list, path), true
		}
	}
	return list
}

func (p *mishap) isTheOriginals(path string) bool {
	info, err := os.Stat(path)
	return err == nil && slices.ContainsFunc(devicesAt(p.o.place), func(d string) bool {
		o, err := os.Stat(d)
		return err == nil && os.SameFile(o, info)
	})
}

func copyTree(t *testing.T, from, to string) {
	require.NoError(t, filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(from, path)
		target := filepath.Join(to, rel)
		switch {
		case e.IsDir():
			return os.MkdirAll(target, 0o755)
		case e.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		case !e.Type().IsRegular():
			return nil // a socket
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(target, b, 0o644); err != nil || !isLocked(path) {
			return err
		}
		return lock(target)
	}))
}

// copy makes the copy of the play: whole, or a half one. What it is compared with stays beside it.
func (p *mishap) copy(t *testing.T) {
	p.pristine = filepath.Join(p.root, "pristine")
	copyTree(t, p.o.place, p.pristine)
	copyTree(t, p.pristine, p.template)
	in := filepath.Join(p.template, "store")
	switch p.rng.IntN(8) {
	case 0:
		p.what = []string{"a copy without its catalog"}
		require.NoError(t, os.RemoveAll(filepath.Join(in, "catalog")))
	case 1:
		p.what = []string{"a copy of the directory alone"}
		require.NoError(t, os.RemoveAll(filepath.Join(p.template, "drives")))
	case 2:
		p.what = []string{"a copy of the catalog alone"}
		for _, d := range devicesAt(p.template) {
			require.NoError(t, os.Remove(d))
		}
	case 3:
		list := devicesAt(p.template)
		n := p.rng.IntN(len(list))
		p.what = []string{fmt.Sprintf("a copy that was cut off in %s", filepath.Base(list[n]))}
		require.NoError(t, os.Truncate(list[n], p.rng.Int64N(3<<20)))
		for _, d := range list[n+1:] {
			require.NoError(t, os.Remove(d))
		}
	case 4:
		p.what = []string{"a copy into the directory of another store"}
		require.NoError(t, os.RemoveAll(p.template))
		copyTree(t, p.book.foreign.place, p.template)
		copyTree(t, p.pristine, p.template)
	default:
		p.what = []string{"a copy"}
	}
}

// device is one of the copy's, as its directory has it.
func (p *mishap) device(place string) string {
	list := devicesAt(place)
	if len(list) == 0 {
		return ""
	}
	return list[p.rng.IntN(len(list))]
}

// state is what may have become of a copy. It says what it did; "" where it cannot.
type state func(t *testing.T, p *mishap, place, device string) string

var states = []state{
	func(t *testing.T, p *mishap, place, device string) string {
		other := p.device(place)
		if other == device {
			return ""
		}
		a, err := os.ReadFile(device)
		require.NoError(t, err)
		b, err := os.ReadFile(other)
		require.NoError(t, err)
		write(t, device, b)
		write(t, other, a)
		return "devices swapped"
	},
	func(t *testing.T, p *mishap, place, device string) string {
		st, err := os.Stat(device)
		require.NoError(t, err)
		n := st.Size()
		to := []int64{0, 100, 8 << 10, n / 2, n - 4096, n - 1}[p.rng.IntN(6)]
		require.NoError(t, os.Truncate(device, max(0, to)))
		return fmt.Sprintf("%s cut to %d bytes", filepath.Base(device), to)
	},
	func(t *testing.T, p *mishap, place, device string) string {
		blank(t, device, 0, 1<<40, nil)
		return filepath.Base(device) + " zeroed"
	},
	func(t *testing.T, p *mishap, place, device string) string {
		n := []int64{512, 4096, 8192, 64 << 10, 1 << 20}[p.rng.IntN(5)]
		blank(t, device, 0, n, p.noise())
		return fmt.Sprintf("the first %d bytes of %s overwritten", n, filepath.Base(device))
	},
	func(t *testing.T, p *mishap, place, device string) string {
		blank(t, device, 4096, 4096, p.noise())
		return "the second superblock of " + filepath.Base(device) + " overwritten"
	},
	func(t *testing.T, p *mishap, place, device string) string {
		at, n := 64<<10+4096*p.rng.Int64N(600), 4096*(1+p.rng.Int64N(200))
		blank(t, device, at, n, p.noise())
		return fmt.Sprintf("%d bytes of %s overwritten from %d on", n, filepath.Base(device), at)
	},
	func(t *testing.T, p *mishap, place, device string) string {
		for range 1 + p.rng.IntN(20) {
			blank(t, device, 64<<10+4096*p.rng.Int64N(700), 4096, p.noise())
		}
		return "pages of " + filepath.Base(device) + " overwritten"
	},
	func(t *testing.T, p *mishap, place, device string) string {
		b, err := os.ReadFile(devicesAt(p.book.foreign.place)[p.rng.IntN(3)])
		require.NoError(t, err)
		write(t, device, b)
		return filepath.Base(device) + " is another store's"
	},
	func(t *testing.T, p *mishap, place, device string) string {
		write(t, device, []byte("notes of somebody\n"))
		return filepath.Base(device) + " is a text"
	},
	func(t *testing.T, p *mishap, place, device string) string {
		require.NoError(t, os.Remove(device))
		require.NoError(t, os.Mkdir(device, 0o755))
		return filepath.Base(device) + " is a directory"
	},
	func(t *testing.T, p *mishap, place, device string) string {
		if lock(device) != nil {
			return ""
		}
		return filepath.Base(device) + " is read-only"
	},
	func(t *testing.T, p *mishap, place, device string) string {
		require.NoError(t, os.Remove(device))
		return filepath.Base(device) + " deleted"
	},
	func(t *testing.T, p *mishap, place, device string) string {
		list := []string{device, p.device(place)}
		var lost []int
		for _, path := range list {
			sb, err := superblockOf(path)
			if err != nil || sb.Store != p.o.id || slices.Contains(lost, sb.DeviceIndex) {
				return ""
			}
			lost = append(lost, sb.DeviceIndex)
		}
		for _, path := range list {
			require.NoError(t, os.Remove(path))
		}
		if len(p.what) == 1 && p.what[0] == "a copy" && !p.o.outside {
			p.lost = lost
		}
		return fmt.Sprintf("devices %v deleted", lost)
	},
	func(t *testing.T, p *mishap, place, device string) string {
		f, err := os.OpenFile(device, os.O_APPEND|os.O_WRONLY, 0)
		require.NoError(t, err)
		defer f.Close()
		n := []int{1, 4096, 100_000, 1 << 20}[p.rng.IntN(4)]
		_, err = f.Write(bytes.Repeat([]byte{byte(p.rng.IntN(2))}, n))
		require.NoError(t, err)
		return fmt.Sprintf("%s grown by %d bytes", filepath.Base(device), n)
	},
	func(t *testing.T, p *mishap, place, device string) string {
		for _, old := range devicesAt(p.book.earlier[p.o]) {
			if filepath.Base(old) == filepath.Base(device) {
				b, err := os.ReadFile(old)
				require.NoError(t, err)
				write(t, device, b)
				return filepath.Base(device) + " as it was earlier"
			}
		}
		return ""
	},
	func(t *testing.T, p *mishap, place, device string) string {
		b, err := os.ReadFile(device)
		require.NoError(t, err)
		write(t, filepath.Join(filepath.Dir(device), "device-7"), b)
		return filepath.Base(device) + " is there twice"
	},
	func(t *testing.T, p *mishap, place, device string) string {
		if p.isOpen {
			return ""
		}
		require.NoError(t, os.Rename(device, filepath.Join(filepath.Dir(device), "device-old")))
		return filepath.Base(device) + " has another name"
	},
	func(t *testing.T, p *mishap, place, device string) string {
		if p.isOpen || !p.o.outside && filepath.Base(filepath.Dir(device)) != "store" {
			return ""
		}
		for _, d := range devicesAt(p.o.place) {
			if filepath.Base(d) == filepath.Base(device) {
				require.NoError(t, os.Remove(device))
				link := []func(a, b string) error{os.Symlink, os.Link}[p.rng.IntN(2)]
				require.NoError(t, link(d, device))
				p.linked = true
				return filepath.Base(device) + " is a link to the original's"
			}
		}
		return ""
	},
	func(t *testing.T, p *mishap, place, device string) string {
		require.NoError(t, os.RemoveAll(filepath.Join(place, "store", "catalog")))
		return "no catalog"
	},
	func(t *testing.T, p *mishap, place, device string) string {
		if p.isOpen {
			return ""
		}
		dir := filepath.Join(place, "store", "catalog")
		from, what := p.book.earlier[p.o], "the catalog of earlier"
		if p.rng.IntN(2) == 0 {
			from, what = p.book.foreign.place, "the catalog of another store"
		}
		require.NoError(t, os.RemoveAll(dir))
		copyTree(t, filepath.Join(from, "store", "catalog"), dir)
		return what
	},
	func(t *testing.T, p *mishap, place, device string) string {
		list, _ := filepath.Glob(filepath.Join(place, "store", "catalog", "*"))
		list = slices.DeleteFunc(list, func(path string) bool {
			st, err := os.Lstat(path)
			return err != nil || !st.Mode().IsRegular() || st.Size() == 0
		})
		if len(list) == 0 {
			return ""
		}
		file := list[p.rng.IntN(len(list))]
		name := "catalog/" + filepath.Base(file)
		switch p.rng.IntN(4) {
		case 0:
			require.NoError(t, os.Remove(file))
			return name + " deleted"
		case 1:
			require.NoError(t, os.Truncate(file, 0))
			return name + " emptied"
		case 2:
			st, err := os.Stat(file)
			require.NoError(t, err)
			require.NoError(t, os.Truncate(file, st.Size()/2))
			return name + " cut"
		}
		blank(t, file, 0, 1<<20, p.noise())
		return name + " overwritten"
	},
	func(t *testing.T, p *mishap, place, device string) string {
		dir := filepath.Join(place, "store", "catalog")
		require.NoError(t, os.RemoveAll(dir))
		write(t, dir, []byte("no directory"))
		return "the catalog is a file"
	},
}

// spoil draws a state that the copy gets into.
func (p *mishap) spoil(t *testing.T, place string) {
	for range 20 {
		device := p.device(place)
		if device == "" {
			device = filepath.Join(place, "store", "device-0")
			write(t, device, nil)
		}
		if st, err := os.Lstat(device); err != nil || !st.Mode().IsRegular() || isLocked(device) || p.isLink(device) {
			continue
		}
		if what := states[p.rng.IntN(len(states))](t, p, place, device); what != "" {
			if p.what = append(p.what, what); len(p.what) > 2 {
				p.lost = nil
			}
			return
		}
	}
}

// isLink says that a device is the original's file: an operator who overwrites that one knows what they do.
func (p *mishap) isLink(device string) bool {
	st, err := os.Stat(device)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(devicesAt(p.o.place), func(d string) bool {
		other, err := os.Stat(d)
		return err == nil && os.SameFile(st, other)
	})
}

// noise is what something is overwritten with: nil is zeros.
func (p *mishap) noise() []byte {
	if p.rng.IntN(2) == 0 {
		return nil
	}
	b := make([]byte, 4096)
	for i := range b {
		b[i] = byte(p.rng.Uint32())
	}
	return b
}

// blank overwrites n bytes from at on, as far as the file goes.
func blank(t *testing.T, path string, at, n int64, with []byte) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	st, err := f.Stat()
	require.NoError(t, err)
	b := make([]byte, max(0, min(n, st.Size()-at)))
	for i := 0; len(with) > 0 && i < len(b); i += len(with) {
		copy(b[i:], with)
	}
	_, err = f.WriteAt(b, at)
	require.NoError(t, err)
}

func write(t *testing.T, path string, b []byte) { require.NoError(t, os.WriteFile(path, b, 0o644)) }

// lock makes a file one that nobody may write to: by its attribute, for who is root writes to any.
func lock(path string) error { return attribute(path, true) }

func attribute(path string, set bool) error {
	const immutable = 0x10
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	flags &^= immutable
	if set {
		flags |= immutable
	}
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
}

func isLocked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	return err == nil && flags&0x10 != 0
}

// unlock makes what is below dir removable again.
func unlock(dir string) {
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && isLocked(path) {
			_ = attribute(path, false)
		}
		return nil
	})
}

func (p *mishap) text() string { return p.o.name + ": " + strings.Join(p.what, ", ") }
