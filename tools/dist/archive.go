package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// sums is the file of the checksums, in the form of sha256sum.
const sums = "SHA256SUMS"

// entry is a file of an archive, or a directory where none of from, text and link is given.
type entry struct {
	name     string // path in it
	from     string // where the file lies
	text     []byte // what it holds, where it lies nowhere
	link     string // of a symbolic link: what it leads to
	mode     int64
	uid, gid int
}

// directory says whether it is one.
func (e entry) directory() bool { return e.from == "" && e.text == nil && e.link == "" }

// writeTar writes entries by their names, all with one time.
func writeTar(w io.Writer, entries []entry, at time.Time) error {
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	t := tar.NewWriter(w)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: e.mode, Uid: e.uid, Gid: e.gid, ModTime: at, Format: tar.FormatUSTAR}
		if e.directory() {
			h.Typeflag, h.Name = tar.TypeDir, strings.TrimSuffix(e.name, "/")+"/"
			if err := t.WriteHeader(h); err != nil {
				return err
			}
			continue
		}
		if e.link != "" {
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
			if err := t.WriteHeader(h); err != nil {
				return err
			}
			continue
		}
		text := e.text
		if e.from != "" {
			var err error
			if text, err = os.ReadFile(e.from); err != nil {
				return err
			}
		}
		h.Typeflag, h.Size = tar.TypeReg, int64(len(text))
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(text); err != nil {
			return err
		}
	}
	return t.Close()
}

// create writes a file under a name that is there only when it is whole.
func create(dir, name string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(dir, "."+name+"-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := write(f); err != nil {
		f.Close()
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(dir, name))
}

// writeArchive writes a compressed archive, with all entries in one directory, and gives its name.
func writeArchive(out, top string, entries []entry, at time.Time) (name string, err error) {
	for i := range entries {
		entries[i].name = path.Join(top, entries[i].name)
	}
	name = top + ".tar.gz"
	return name, writeCompressed(out, name, entries, at)
}

// writeCompressed writes a compressed archive.
func writeCompressed(out, name string, entries []entry, at time.Time) error {
	return create(out, name, func(w io.Writer) error {
		z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
		if err != nil {
			return err
		}
		if err := writeTar(z, entries, at); err != nil {
			return err
		}
		return z.Close()
	})
}

// manual is the files of docs/ by their paths in the tree, which are those in archives and packages, too: links from
// README and between pages lead on there.
func (b *built) manual() (map[string]string, error) {
	list := map[string]string{}
	err := filepath.WalkDir(filepath.Join(b.dir, "docs"), func(from string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			name, _ := filepath.Rel(b.dir, from)
			list[filepath.ToSlash(name)] = from
		}
		return err
	})
	return list, err
}

// archives writes an archive of each architecture, and one of the library for this machine's.
func archives(b *built, out string) (names []string, err error) {
	manual, err := b.manual()
	if err != nil {
		return nil, err
	}
	kubernetes, err := b.manifests()
	if err != nil {
		return nil, err
	}
	for arch, bin := range sorted(b.bin) {
		top := fmt.Sprintf("skep_%s_linux_%s", b.version, arch)
		entries := []entry{
			{name: "LICENSE", from: filepath.Join(b.dir, "LICENSE")},
			{name: "README.md", from: filepath.Join(b.dir, "README.md")},
			{name: "skep.service", from: filepath.Join(b.dir, "tools/deploy/skep.service")},
			{name: "skep.yaml", from: filepath.Join(b.made, madeSettings)},
			{name: "examples/alerts.yaml", from: filepath.Join(b.dir, "tools/deploy/alerts.yaml")},
			{name: "examples/grafana.json", from: filepath.Join(b.dir, "tools/deploy/grafana.json")},
		}
		for _, name := range []string{madeBash, madeZsh, madeFish} {
			entries = append(entries, entry{name: "completions/" + name, from: filepath.Join(b.made, name)})
		}
		for name, from := range sorted(manual) {
			entries = append(entries, entry{name: name, from: from})
		}
		entries = append(entries, kubernetes...)
		for i := range entries {
			entries[i].mode = 0o644
		}
		for name, from := range sorted(bin) {
			entries = append(entries, entry{name: "bin/" + name, from: from, mode: 0o755})
		}
		dirs := map[string]bool{"": true}
		for _, e := range entries {
			for dir := path.Dir(e.name); dir != "."; dir = path.Dir(dir) {
				dirs[dir] = true
			}
		}
		for dir := range sorted(dirs) {
			entries = append(entries, entry{name: dir, mode: 0o755})
		}
		name, err := writeArchive(out, top, entries, b.time)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	if b.lib == "" {
		return names, nil
	}
	name, err := b.archiveLibskep(out)
	return append(names, name), err
}

// writeSums writes the checksums of what was written.
func writeSums(out string, names []string) error {
	var text strings.Builder
	for _, name := range slices.Sorted(slices.Values(names)) {
		f, err := os.Open(filepath.Join(out, name))
		if err != nil {
			return err
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		f.Close()
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%x  %s\n", h.Sum(nil), name)
	}
	return create(out, sums, func(w io.Writer) error {
		_, err := io.WriteString(w, text.String())
		return err
	})
}
