package main

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// buildArgs are the arguments of the go command for a program that is handed out. The Containerfile has the same.
var buildArgs = []string{"build", "-trimpath", "-tags", "iouring", "-ldflags=-s -w -checklinkname=0"}

// programs are the commands in an archive and a package, by their names in tools.
var programs = []string{"skep", "skep-bench"}

// source is what is built.
type source struct {
	dir  string    // a checkout
	time time.Time // of its commit
}

// built is what was made of a source, and is put into archives, packages and images.
type built struct {
	source
	version string                       // as the programs say it, without the v
	bin     map[string]map[string]string // path of a program, by architecture and name
	made    string                       // directory of what programs printed: completions, settings
	lib     string                       // path of libskep.so.1 of this machine's architecture; empty: it was not built
	noLib   string                       // why not
}

// The names of what programs print, in the directory made.
const (
	madeSettings = "skep.yaml"
	madeBash     = "skep.bash"
	madeZsh      = "_skep"
	madeFish     = "skep.fish"
)

// git runs git in a directory and gives what it prints, without white space around it.
func git(dir string, args ...string) (string, error) {
	return output(dir, nil, "git", args...)
}

// output runs a program in a directory, with variables beside those of this process, and gives what it prints.
func output(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var errs strings.Builder
	cmd.Stderr = &errs
	b, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return strings.TrimSpace(string(b)), nil
}

// cloned is a commit of a checkout, in a directory of its own with the tags: nothing that is not committed is there,
// and the go command writes the commit and its version into what it builds.
func cloned(root, commit, dir string) (source, error) {
	if _, err := git(root, "clone", "-q", "--shared", "--no-checkout", root, dir); err != nil {
		return source{}, err
	}
	id, err := git(root, "rev-parse", "--verify", commit+"^{commit}")
	if err != nil {
		return source{}, err
	}
	if _, err := git(dir, "checkout", "-q", "--detach", id); err != nil {
		return source{}, err
	}
	return checkout(dir)
}

// checkout is a checkout as it lies there, with its commit's time.
func checkout(dir string) (source, error) {
	text, err := git(dir, "log", "-1", "--format=%ct")
	if err != nil {
		return source{}, err
	}
	sec, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return source{}, fmt.Errorf("the time of the commit: %w", err)
	}
	return source{dir: dir, time: time.Unix(sec, 0).UTC()}, nil
}

// pinned are the variables of the go command that a build depends on, whatever the caller has.
func pinned(arch string, cgo bool) []string {
	enabled := "0"
	if cgo {
		enabled = "1"
	}
	return []string{"GOFLAGS=-trimpath -buildvcs=auto", "GOWORK=off", "GOOS=linux", "GOARCH=" + arch, "GOAMD64=v1",
		"GOARM64=v8.0", "GOEXPERIMENT=", "CGO_ENABLED=" + enabled, "LC_ALL=C", "TZ=UTC"}
}

// build builds the programs into tmp for each architecture, what they print, and libskep where it can.
func (s source) build(tmp string, arches []string, say func(string, ...any)) (*built, error) {
	b := &built{source: s, bin: map[string]map[string]string{}, made: filepath.Join(tmp, "made")}
	for _, arch := range arches {
		b.bin[arch] = map[string]string{}
		for _, p := range programs {
			say("build %s for linux/%s", p, arch)
			path := filepath.Join(tmp, arch, p)
			args := append(append([]string{}, buildArgs...), "-o", path, "./tools/"+p)
			if _, err := output(s.dir, pinned(arch, false), "go", args...); err != nil {
				return nil, err
			}
			b.bin[arch][p] = path
		}
	}
	info, err := buildinfo.ReadFile(b.bin[arches[0]]["skep"])
	if err != nil {
		return nil, err
	}
	if b.version = strings.TrimPrefix(info.Main.Version, "v"); b.version == "" || b.version == "(devel)" {
		b.version = "0.0.0-devel" // git is not there, or this is no checkout
	}
	if err := b.print(tmp); err != nil {
		return nil, err
	}
	b.libskep(filepath.Join(tmp, "lib"))
	return b, nil
}

// print writes what the command prints into files: it does the same on every architecture, and this machine's is run.
func (b *built) print(tmp string) error {
	skep, ok := b.bin[runtime.GOARCH]["skep"]
	if !ok || runtime.GOOS != "linux" {
		skep = filepath.Join(tmp, "host", "skep")
		here := []string{"GOFLAGS=-trimpath", "GOOS=", "GOARCH="}
		if _, err := output(b.dir, here, "go", "build", "-o", skep, "./tools/skep"); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(b.made, 0o755); err != nil {
		return err
	}
	for name, args := range map[string][]string{
		madeSettings: {"config", "show"},
		madeBash:     {"completion", "bash"},
		madeZsh:      {"completion", "zsh"},
		madeFish:     {"completion", "fish"},
	} {
		cmd := exec.Command(skep, args...)
		cmd.Env = []string{"SKEP_DIR=" + stateDir} // and no other setting of whoever builds; the unit gives it this one
		text, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("skep %s: %w", strings.Join(args, " "), err)
		}
		if err := os.WriteFile(filepath.Join(b.made, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
