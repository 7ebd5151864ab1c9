package support

import (
	"archive/tar"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/doctor"
	"github.com/skepkv/skep/tools/internal/inspect"
)

// About is about.json.
type About struct {
	Version string            `json:"version"`
	Time    time.Time         `json:"time"`
	Host    string            `json:"host"`
	OS      string            `json:"os"`
	Arch    string            `json:"arch"`
	CPUs    int               `json:"cpus"`
	Dir     string            `json:"dir"`
	Missing map[string]string `json:"missing"` // file: why it could not be gathered
}

// Options of Write.
type Options struct {
	Dir     string
	Version string
	Log     *slog.Logger
}

// Result says what is in a bundle.
type Result struct {
	Files   []string          `json:"files"`   // in it
	Bytes   int64             `json:"bytes"`   // before compression (bytes)
	Missing map[string]string `json:"missing"` // what could not be gathered: file and reason
}

// Write writes a bundle about the store in o.Dir.
func Write(ctx context.Context, o Options, out io.Writer) (*Result, error) {
	z, err := zstd.NewWriter(out)
	if err != nil {
		return nil, err
	}
	host, _ := os.Hostname()
	b := &bundle{tar: tar.NewWriter(z), about: About{Version: o.Version, Time: time.Now().UTC(), Host: host,
		OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Dir: o.Dir, Missing: map[string]string{}}}
	b.json("doctor.json", func() (any, error) { return doctor.Examine(o.Dir) })
	for _, ask := range []string{"options", "stats"} {
		b.json(ask+".json", func() (any, error) {
			var v json.RawMessage
			err := store.AskAdmin(ctx, o.Dir, ask, &v)
			return v, err
		})
	}
	b.file("log.txt", func() ([]byte, error) {
		var lines []string
		err := store.AskAdmin(ctx, o.Dir, "log", &lines)
		return []byte(strings.Join(lines, "\n") + "\n"), err
	})
	b.catalog(ctx, o)
	b.json("about.json", func() (any, error) { return b.about, nil })
	if b.err == nil {
		b.err = b.tar.Close()
	}
	if err := z.Close(); b.err == nil {
		b.err = err
	}
	if ctx.Err() != nil { // what was not asked for any more is missing, and nothing is wrong with it
		return nil, ctx.Err()
	}
	return &Result{b.files, b.bytes, b.about.Missing}, b.err
}

type bundle struct {
	tar   *tar.Writer
	about About
	files []string
	bytes int64
	err   error // of writing
}

// file adds what f gives, or why it gives nothing to about.json.
func (b *bundle) file(name string, f func() ([]byte, error)) {
	data, err := f()
	if err != nil {
		b.about.Missing[name] = err.Error()
		return
	}
	if b.err != nil {
		return
	}
	if b.err = b.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(data)), ModTime: b.about.Time}); b.err != nil {
		return
	}
	if _, b.err = b.tar.Write(data); b.err == nil {
		b.files = append(b.files, name)
		b.bytes += int64(len(data))
	}
}

func (b *bundle) json(name string, f func() (any, error)) {
	b.file(name, func() ([]byte, error) {
		v, err := f()
		if err != nil {
			return nil, err
		}
		return json.MarshalIndent(v, "", "  ")
	})
}

// catalog adds what can be read of the catalog beside a process that has it open.
func (b *bundle) catalog(ctx context.Context, o Options) {
	v, err := inspect.Open(o.Dir, o.Log)
	if err == nil {
		defer v.Close()
	}
	add := func(name string, f func() (any, error)) {
		if err != nil {
			f = func() (any, error) { return nil, err }
		}
		b.json(name, f)
	}
	add("devices.json", func() (any, error) { return v.Devices(ctx) })
	add("groups.json", func() (any, error) { return v.Groups(ctx) })
	add("namespaces.json", func() (any, error) { return v.Namespaces(ctx) })
}

// Check refuses a directory that holds no store.
func Check(dir string) error {
	if dir == "" {
		return skep.Invalidf("support", "--dir", "empty", "the directory of a store")
	}
	there, err := os.ReadDir(dir)
	if err != nil {
		return &skep.Error{Op: "support", Kind: skep.NotFound, Field: "--dir", Value: dir, Err: err}
	}
	if !slices.ContainsFunc(there, isOfStore) {
		return &skep.Error{Op: "support", Kind: skep.NotFound, Field: "--dir", Value: dir,
			Limit: "the directory of a store, or of what is left of one"}
	}
	return nil
}

// isOfStore says whether a store leaves such a thing in its directory.
func isOfStore(e os.DirEntry) bool {
	name := e.Name()
	return name == "LOCK" || name == store.AdminSocket || name == "cluster" ||
		strings.HasPrefix(name, "catalog") || strings.HasPrefix(name, "device-")
}
