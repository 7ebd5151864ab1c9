package cli

import (
	"context"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/remote"
	"github.com/skepkv/skep/tools/internal/replaycmd"
	"github.com/skepkv/skep/tools/internal/servecmd"
)

// app is one run of the command.
type app struct{ *command.App }

// Program is the command.
var Program = command.Program{
	Name:  "skep",
	Short: "the database for LLM KV caches",
	Long:  "skep keeps the KV cache of language models on NVMe drives and gives it back at their speed.",
	Example: "  skep serve --dir kv --file-devices 1 --capacity 8GiB      a server on this machine\n" +
		"  skep put greeting --text hello; skep get greeting    what redis-cli -p 7421 get greeting finds, too\n" +
		"  skep status --wait ready                             how it stands",
	Groups: []command.Group{
		{Title: "Run", Commands: []string{"serve", "config", "doctor", "size", "demo", "cluster"}},
		{Title: "Data, of a running server", Commands: []string{"put", "get", "del", "ls", "ns", "purge"}},
		{Title: "Watch", Commands: []string{"status", "ready", "top", "inspect", "gpu"}},
		{Title: "Keep", Commands: []string{"device", "namespace", "verify", "scrub", "compact", "rebuild", "recluster", "support"}},
		{Title: "Measure", Commands: []string{"bench", "replay"}},
	},
	Commands: func(c *command.App) []*cobra.Command {
		a := &app{c}
		return slices.Concat([]*cobra.Command{servecmd.New(c), servecmd.Config(c), a.doctorCommand(), a.sizeCommand(), a.demoCommand(), a.demoWorker(), a.clusterCommand()},
			remote.Commands(c), []*cobra.Command{a.topCommand(), a.inspectCommand(), a.gpuCommand(), a.deviceCommand(), a.namespaceCommand(), a.verifyCommand(),
				a.scrubCommand(), a.compactCommand(), a.rebuildCommand(), a.reclusterCommand(), a.supportCommand(), a.bench(), replaycmd.New(c), a.Version()})
	},
}

// Main runs the command with args and returns the exit code.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return Program.Main(ctx, args, stdin, stdout, stderr)
}
