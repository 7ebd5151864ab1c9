// Command dist makes what is handed out: archives, Debian packages, an image of containers and a chart for Helm, with
// checksums.
//
//	go run -C tools/dist . -o ../../dist            all of it, for linux/amd64 and linux/arm64
//	go run -C tools/dist . -o ../../dist -kind image the image alone
//
// It builds from a commit, in a clone of its own, and not from what lies in the checkout. The same commit gives the
// same bytes: every time in what it makes is the commit's, entries are sorted, owners are fixed.
// The Go compiler has to be the same one, and for the library, which needs cgo, the C compiler.
//
// Nothing is published, and no daemon is asked.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The kinds of what is made.
const (
	kindArchive = "archive"
	kindDeb     = "deb"
	kindImage   = "image"
	kindChart   = "chart"
)

var (
	kinds  = []string{kindArchive, kindDeb, kindImage, kindChart}
	arches = []string{"amd64", "arm64"}
)

// want is what is to be made.
type want struct {
	out    string   // directory
	arches []string // of linux
	kinds  []string
	say    func(format string, args ...any)
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	f := flag.NewFlagSet("dist", flag.ContinueOnError)
	out := f.String("o", "", "directory to write to; files of these names are replaced")
	commit := f.String("commit", "HEAD", "what to build")
	arch := f.String("arch", strings.Join(arches, ","), "for these architectures of Linux")
	kind := f.String("kind", strings.Join(kinds, ","), "what to make")
	if err := f.Parse(args); err != nil {
		return err
	}
	w := want{out: *out, arches: strings.Split(*arch, ","), kinds: strings.Split(*kind, ",")}
	w.say = func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	if w.out == "" {
		return fmt.Errorf("-o is empty, must be a directory")
	}
	for _, c := range []struct {
		name string
		have []string
		of   []string
	}{{"-arch", w.arches, arches}, {"-kind", w.kinds, kinds}} {
		for _, x := range c.have {
			if !slices.Contains(c.of, x) {
				return fmt.Errorf("%s is %q, must be of %s", c.name, x, strings.Join(c.of, ", "))
			}
		}
	}
	tmp, err := os.MkdirTemp("", "skep-dist-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	root, err := git(".", "rev-parse", "--show-toplevel")
	if err != nil {
		return fmt.Errorf("this is no checkout, and what is handed out is built from a commit: %w", err)
	}
	src, err := cloned(root, *commit, filepath.Join(tmp, "src"))
	if err != nil {
		return err
	}
	if dirty, err := git(root, "status", "--porcelain"); err == nil && dirty != "" {
		w.say("what is not committed in %s is not in it", root)
	}
	_, err = w.make(src, filepath.Join(tmp, "build"))
	return err
}

// make makes what is wanted from a source, with a directory for what lies in between, and says which files it wrote.
func (w *want) make(src source, tmp string) (written []string, err error) {
	b, err := src.build(tmp, w.arches, w.say)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(w.out, 0o755); err != nil {
		return nil, err
	}
	w.say("version %s", b.version)
	for _, step := range []struct {
		kind string
		make func(*built, string) ([]string, error)
	}{{kindArchive, archives}, {kindDeb, debs(w.say)}, {kindImage, image}, {kindChart, charts}} {
		if !slices.Contains(w.kinds, step.kind) {
			continue
		}
		names, err := step.make(b, w.out)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", step.kind, err)
		}
		for _, n := range names {
			w.say("%s", filepath.Join(w.out, n))
		}
		written = append(written, names...)
	}
	return append(written, sums), writeSums(w.out, written)
}
