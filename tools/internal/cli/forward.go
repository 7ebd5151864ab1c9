package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/command"
)

// benchProgram is the command that measures. It is a program of its own, so that who runs a store installs no
// laboratory.
const benchProgram = "skep-bench"

const forwarded = `Measuring is a command of its own, ` + benchProgram + `, which this hands its arguments on to. It is looked for
beside skep's own executable, then on PATH.`

// bench is skep bench, with the arguments of skep-bench.
func (a *app) bench() *cobra.Command {
	return a.forward(&cobra.Command{Use: "bench", Short: "measure the store beside what bounds it (" + benchProgram + ")", Long: forwarded})
}

// forward has cmd hand everything on to skep-bench: flags and arguments, standard streams, exit code.
func (a *app) forward(cmd *cobra.Command) *cobra.Command {
	cmd.DisableFlagParsing = true
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path, err := findBench(cmd.Name())
		if err != nil {
			return err
		}
		return a.handOver(cmd.Context(), path, args)
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
		path, err := findBench(cmd.Name())
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return completions(cmd.Context(), path, append(args, toComplete))
	}
	return cmd
}

// findBench says where skep-bench is.
func findBench(op string) (string, error) {
	beside := "the directory of skep's executable, which is not known"
	if own, err := os.Executable(); err == nil {
		beside = filepath.Dir(own)
		path, err := exec.LookPath(filepath.Join(beside, benchProgram))
		if err == nil || !errors.Is(err, os.ErrNotExist) {
			return path, err
		}
	}
	path, err := exec.LookPath(benchProgram)
	if err != nil {
		return "", command.WithNext(&skep.Error{Op: op, Kind: skep.NotFound, Field: benchProgram, Value: "neither in " + beside + " nor on PATH"},
			"go install github.com/skepkv/skep/tools/"+benchProgram+", or make build in a checkout, which puts it beside skep")
	}
	return path, nil
}

// handOver runs the program in this one's place, where the system can do that and the streams are this process's own;
// else as a child, whose exit code becomes this one's.
func (a *app) handOver(ctx context.Context, path string, args []string) error {
	if a.In == os.Stdin && a.Stdout() == os.Stdout && a.Err == os.Stderr {
		if err := replaceProcess(path, args); !errors.Is(err, errors.ErrUnsupported) {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.In, a.Stdout(), a.Err
	cmd.Cancel = func() error { return interrupt(cmd.Process) }
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		a.Code = exit.ExitCode()
		return nil
	}
	return err
}

// completions asks the program what may come next, as a shell asks this one.
func completions(ctx context.Context, path string, args []string) (list []cobra.Completion, directive cobra.ShellCompDirective) {
	out, err := exec.CommandContext(ctx, path, append([]string{cobra.ShellCompRequestCmd}, args...)...).Output()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSuffix(line, "\n")
		if n, err := strconv.Atoi(strings.TrimPrefix(line, ":")); err == nil && strings.HasPrefix(line, ":") {
			return list, cobra.ShellCompDirective(n)
		}
		list = append(list, line)
	}
	return list, cobra.ShellCompDirectiveDefault
}
