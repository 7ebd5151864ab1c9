package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
)

// Exit codes.
const (
	exitOK          = 0
	exitFailed      = 1 // something failed, or the result is one that must not be
	exitInput       = 2 // bad flags, files or directories
	exitInterrupted = 130
)

// app is one run of the command.
type app struct {
	in       io.Reader
	out, err io.Writer
	json     bool
	logLevel string
	code     int // exit code of a command that printed its result
}

// openStore opens the embedded engine behind the interface everything here uses.
func openStore(ctx context.Context, o store.Options) (skep.Store, error) { return store.Open(ctx, o) }

// Main runs the command with args and returns the exit code. An interrupt ends the
// command in order; a second one at once.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the second interrupt finds nobody who waits for it
	a := &app{in: stdin, out: stdout, err: stderr}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		if code := a.fail(err); ctx.Err() == nil {
			return code
		}
		return exitInterrupted // whatever it broke off with
	}
	return a.code
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "skep",
		Short:         "the database for LLM KV caches",
		Long:          "skep keeps the KV cache of language models on NVMe drives and gives it back at their speed.\nBegin with: skep doctor, then skep demo.",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print the result as one JSON document")
	root.PersistentFlags().StringVar(&a.logLevel, "log", "error", "what to log on standard error: debug, info, warn or error")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{err, cmd.CommandPath() + " --help shows its flags"}
	})
	root.AddCommand(a.replayCommand(), a.reclusterCommand(), a.benchCommand(), a.gpuCommand(), a.inspectCommand(), a.verifyCommand(), a.rebuildCommand(), a.scrubCommand(), a.compactCommand(), a.deviceCommand(), a.topCommand(), a.supportCommand(), a.doctorCommand(), a.demoCommand(), a.demoWorker(), a.serveCommand(), a.versionCommand())
	root.CompletionOptions.HiddenDefaultCmd = true
	return root
}

// logger writes to standard error at the level asked for.
func (a *app) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(a.logLevel)); err != nil {
		return nil, skep.Invalidf("skep", "--log", a.logLevel, "debug, info, warn or error")
	}
	return slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: level})), nil
}

// print writes a result: JSON when asked for, else what text writes.
func (a *app) print(result any, text func(io.Writer)) error {
	if !a.json {
		text(a.out)
		return nil
	}
	e := json.NewEncoder(a.out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(result)
}

// usageError is a mistake on the command line that cobra found.
type usageError struct {
	err  error
	next string
}

func (e *usageError) Error() string        { return "skep: " + e.err.Error() }
func (e *usageError) Unwrap() error        { return e.err }
func (e *usageError) Is(target error) bool { return target == skep.Invalid }

// failure is an error as --json prints it.
type failure struct {
	Error failureBody `json:"error"`
}

type failureBody struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Field   string `json:"field"`
	Value   string `json:"value"`
	Limit   string `json:"limit"`
	Next    string `json:"next"`
}

// fail prints err, with what to do next, and returns the exit code.
func (a *app) fail(err error) int {
	if isCobraUsage(err) {
		err = &usageError{err, "skep --help lists the commands"}
	}
	next := nextStep(err)
	fmt.Fprintln(a.err, err)
	if next != "" {
		fmt.Fprintln(a.err, "next:", next)
	}
	if a.json {
		_ = a.print(failure{describe(err, next)}, nil)
	}
	if errors.Is(err, context.Canceled) {
		return exitInterrupted
	}
	if isInput(err) {
		return exitInput
	}
	return exitFailed
}

// isCobraUsage recognises what cobra itself returns for unknown commands and missing
// arguments: plain errors, where all of ours are typed.
func isCobraUsage(err error) bool {
	var own *skep.Error
	var usage *usageError
	return skep.KindOf(err) == skep.Other && !errors.As(err, &own) && !errors.As(err, &usage) && !errors.Is(err, skep.Invalid) &&
		errors.Unwrap(err) == nil && !errors.Is(err, context.Canceled) && isPlain(err)
}

// isInput says whether err is about what the user gave.
func isInput(err error) bool {
	for _, kind := range []skep.Kind{skep.Invalid, skep.NotFound, skep.Foreign, skep.Missing, skep.Conflict, skep.Version} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission)
}

func describe(err error, next string) failureBody {
	f := failureBody{Kind: skep.KindOf(err).Error(), Message: err.Error(), Next: next}
	if isInput(err) && f.Kind == skep.Other.Error() {
		f.Kind = skep.Invalid.Error()
	}
	var e *skep.Error
	var t fieldError
	switch {
	case errors.As(err, &t):
		f.Field, f.Value, f.Limit = t.fields()
	case errors.As(err, &e):
		f.Field, f.Value, f.Limit = e.Field, text(e.Value), text(e.Limit)
	}
	return f
}

func text(v any) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}
