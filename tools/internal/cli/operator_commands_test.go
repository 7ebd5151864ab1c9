//go:build linux

package cli_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/internal/cli"
	"github.com/skepkv/skep/tools/internal/command/commandtest"
)

// operation is a command as an operator gives it.
type operation struct {
	name     string
	path     []string
	args     func(p *mishap, at string) []string
	dir      bool   // it takes --dir
	devices  bool   // it takes --device
	reads    bool   // it changes nothing, whatever it finds
	verdict  bool   // a result may be one that must not be: exit code 1 without an error
	served   bool   // it is given while the store is open, too
	endless  bool   // it ends when it is interrupted
	rebuilds bool   // the catalog is made anew
	forgets  string // the namespace that is gone when it is done
}

func none(*mishap, string) []string { return nil }

func words(w ...string) func(*mishap, string) []string {
	return func(*mishap, string) []string { return w }
}

// onDevice has the command's first argument name one of the devices.
func onDevice(more ...string) func(*mishap, string) []string {
	return func(p *mishap, at string) []string {
		return append([]string{[]string{"0", "1", "2", filepath.Join(at, "store", "device-1")}[p.rng.IntN(4)]}, more...)
	}
}

func (p *mishap) someKey() string { return p.o.blocks[p.rng.IntN(len(p.o.blocks))].key.String() }

// played are the commands that take a directory. Every command with --dir is here or in notPlayed.
var played = map[string][]operation{
	"verify":             {{args: none, reads: true, verdict: true, devices: true}, {name: "verify --deep", args: words("--deep"), reads: true, verdict: true, devices: true}},
	"inspect devices":    {{args: none, reads: true, served: true}},
	"inspect groups":     {{args: none, reads: true, served: true}},
	"inspect namespaces": {{args: none, reads: true, served: true}},
	"inspect side":       {{args: none, reads: true, served: true}},
	"inspect keys":       {{args: none, reads: true, served: true}},
	"inspect block":      {{args: func(p *mishap, _ string) []string { return []string{p.someKey()} }, reads: true, served: true}},
	"inspect chain":      {{args: func(p *mishap, _ string) []string { return []string{p.someKey()} }, reads: true, served: true}},
	"inspect clusters": {{args: func(p *mishap, _ string) []string {
		return []string{p.someKey(), "--tenant", "t", "--namespace", "twice"}
	}, reads: true}},
	"inspect memory": {{args: none, reads: true, served: true}},
	"inspect mrc":    {{args: none, reads: true, served: true}},
	"top":            {{args: words("--once", "--interval", "10ms"), reads: true, served: true}},
	"support": {{args: func(p *mishap, _ string) []string {
		return []string{"-o", filepath.Join(p.root, fmt.Sprint("support-", p.rng.Uint32()))}
	}, reads: true, served: true}},
	"doctor":      {{args: none, reads: true, verdict: true, served: true}},
	"device list": {{args: none, reads: true, served: true}},
	"device add": {
		{args: func(p *mishap, at string) []string {
			return []string{filepath.Join(at, "store", "device-"+strconv.Itoa(p.rng.IntN(6)))}
		}, served: true},
		{name: "device add --dry-run", args: func(p *mishap, at string) []string {
			return []string{filepath.Join(at, "store", "device-"+strconv.Itoa(p.rng.IntN(6))), "--dry-run"}
		}, reads: true, served: true},
	},
	"device drain": {
		{args: onDevice(), served: true}, {name: "device drain --dry-run", args: onDevice("--dry-run"), reads: true, served: true},
		{name: "device drain --cancel", args: onDevice("--cancel"), served: true},
	},
	"device remove": {
		{args: onDevice(), served: true}, {name: "device remove --dry-run", args: onDevice("--dry-run"), reads: true, served: true},
		{name: "device remove --force", args: onDevice("--force"), served: true},
	},
	"device replace": {
		{args: func(p *mishap, at string) []string {
			return []string{strconv.Itoa(p.rng.IntN(3)), filepath.Join(at, "store", "device-5")}
		}, served: true},
		{name: "device replace --dry-run", args: func(p *mishap, at string) []string {
			return []string{strconv.Itoa(p.rng.IntN(3)), filepath.Join(at, "store", "device-5"), "--dry-run"}
		}, reads: true, served: true},
	},
	"rebuild": {
		{args: none, devices: true, rebuilds: true}, {name: "rebuild --dry-run", args: words("--dry-run"), reads: true, verdict: true, devices: true},
		{name: "rebuild --without-missing", args: words("--without-missing"), devices: true, rebuilds: true},
		{name: "rebuild --without-missing --dry-run", args: words("--without-missing", "--dry-run"), reads: true, verdict: true, devices: true},
	},
	"scrub": {
		{args: none, verdict: true, devices: true, served: true},
		{name: "scrub --dry-run", args: words("--dry-run"), reads: true, verdict: true, devices: true, served: true},
	},
	"compact": {{args: none, served: true}, {name: "compact --dry-run", args: words("--dry-run"), reads: true, served: true}},
	"namespace delete": {
		{args: words("t", "held", "--yes"), forgets: "held", served: true},
		{name: "namespace delete --dry-run", args: words("t", "held", "--dry-run"), reads: true, served: true},
	},
	"recluster": {{args: func(p *mishap, _ string) []string {
		return []string{p.someKey(), "--tenant", "t", "--namespace", "twice"}
	}}},
	"replay":      {{args: words("-", "--block-size", "8192", "--file-devices", "3"), devices: true}},
	"config show": {{args: none, reads: true}},
	"serve": {
		{args: words("--listen", "none", "--resp", "none", "--unix", "none", "--http", "127.0.0.1:0", "--dram", "0", "--file-devices", "3"), endless: true},
	},
}

// notPlayed work in directories of their own that they make in --dir and remove, and take long.
var notPlayed = []string{"demo", "cluster", "bench"}

// operations are all that are played.
func operations(t *testing.T) (list []operation) {
	known := map[string]bool{}
	for _, c := range commandtest.Commands(&cli.Program) {
		name := strings.Join(c.Path, " ")
		ops := played[name]
		known[name] = true
		if !c.Takes("dir") || c.Parent || slices.Contains(notPlayed, c.Path[0]) {
			continue
		}
		require.NotEmpty(t, ops, "skep %s takes a directory: what an operator's mistakes do to it is to be played", name)
		dry := false
		for _, op := range ops {
			op.path, op.dir = c.Path, true
			if op.name == "" {
				op.name = name
			}
			dry = dry || strings.Contains(op.name, "--dry-run")
			list = append(list, op)
		}
		require.Equal(t, c.Takes("dry-run"), dry, "skep %s is played with --dry-run if it has it", name)
	}
	for name := range played {
		require.True(t, known[name], "there is no command %s any more", name)
	}
	return list
}
