package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/replaycmd"
	"github.com/skepkv/skep/tools/internal/servecmd"
)

// app is one run of the command.
type app struct{ *command.App }

// Program is the command.
var Program = command.Program{
	Name:  "skep",
	Short: "the database for LLM KV caches",
	Long:  "skep keeps the KV cache of language models on NVMe drives and gives it back at their speed.\nBegin with: skep doctor, then skep demo.",
	Commands: func(c *command.App) []*cobra.Command {
		a := &app{c}
		return []*cobra.Command{replaycmd.New(c), a.reclusterCommand(), a.bench(), a.gpuCommand(), a.inspectCommand(), a.verifyCommand(), a.rebuildCommand(),
			a.scrubCommand(), a.compactCommand(), a.namespaceCommand(), a.deviceCommand(), a.topCommand(), a.supportCommand(), a.sizeCommand(), a.doctorCommand(), a.demoCommand(), a.demoWorker(), a.clusterCommand(),
			servecmd.New(c), a.Version()}
	},
}

// Main runs the command with args and returns the exit code.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return Program.Main(ctx, args, stdin, stdout, stderr)
}
