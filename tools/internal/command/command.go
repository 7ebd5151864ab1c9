package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/units"
)

// Exit codes. CodeOf says which errors end with which.
const (
	OK          = 0
	Failed      = 1 // something failed, or the result is one that must not be
	Input       = 2 // wrong usage or settings; nothing was changed
	NotFound    = 3 // what was named is not there, or a device that is needed
	TryAgain    = 4 // unreachable, locked, overloaded, timed out
	Denied      = 5 // credentials or permissions do not allow it
	Faults      = 6 // what was looked at has faults
	Interrupted = 130
)

// Program is a command.
type Program struct {
	Name     string
	Short    string
	Long     string
	Commands func(a *App) []*cobra.Command
	// Groups are headings of the help, each with the commands under it; what is in none comes last.
	Groups  []Group
	Example string
	// NeedsSubcommand has it refuse to be called without a subcommand; otherwise it shows its help then.
	NeedsSubcommand bool
}

// Group is commands that the help shows together.
type Group struct {
	Title    string
	Commands []string
}

// App is one run of a command.
type App struct {
	Name     string
	In       io.Reader
	Out      io.Writer // where results go
	Err      io.Writer
	JSON     bool
	Lines    bool // JSON is one line
	LogLevel string
	Code     int // exit code of a subcommand that printed its result
	out      *output
}

// Main runs the command with args and returns the exit code. An interrupt ends the
// command in order; a second one at once.
func (p *Program) Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the second interrupt finds nobody who waits for it
	a := p.app(stdin, stdout, stderr)
	root := p.root(a)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if a.out.failed != nil && !errors.Is(err, a.out.failed) {
		err = errors.Join(err, a.out.failed)
	}
	if err != nil {
		a.JSON = a.JSON || wantsJSON(args) // flags are not read to their end where one is wrong
		if code := a.fail(err); ctx.Err() == nil {
			return code
		}
		return Interrupted // whatever it broke off with
	}
	return a.Code
}

func (p *Program) app(stdin io.Reader, stdout, stderr io.Writer) *App {
	out := &output{w: stdout}
	return &App{Name: p.Name, In: stdin, Out: out, Err: stderr, out: out}
}

// Stdout is the standard output itself, for what asks whether it is a terminal or hands it on.
func (a *App) Stdout() io.Writer { return a.out.w }

// output is where results go. The first error stays: what is lost then is the result, so the command fails,
// whichever way of printing looked at the error and whichever did not.
type output struct {
	w      io.Writer
	failed error
	some   bool // something was printed
}

func (o *output) Write(p []byte) (int, error) {
	if o.failed != nil {
		return 0, o.failed
	}
	n, err := o.w.Write(p)
	o.some = o.some || n > 0
	if err != nil {
		o.failed = fmt.Errorf("standard output: %w", err)
	}
	return n, err
}

// wantsJSON says whether the arguments ask for JSON, as far as they can be read: one of them is wrong.
func wantsJSON(args []string) bool {
	end := slices.Index(args, "--")
	if end < 0 {
		end = len(args)
	}
	for i, a := range args[:end] {
		if next := i + 1; next < end && (a == "-o" || a == "--output") {
			a += "=" + args[next]
		}
		switch a {
		case "--json", "--json=true", "--json=1", "-ojson", "-ojsonl", "-o=json", "-o=jsonl", "--output=json",
			"--output=jsonl":
			return true
		}
	}
	return false
}

// Root is the command with all its subcommands, for who looks at them and runs none.
func (p *Program) Root() *cobra.Command { return p.root(p.app(nil, nil, nil)) }

func (p *Program) root(a *App) *cobra.Command {
	root := &cobra.Command{
		Use:           p.Name,
		Short:         p.Short,
		Long:          p.Long,
		Example:       p.Example,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(a.In)
	root.SetOut(a.Out) // before the completion command, which keeps it
	root.SetErr(a.Err)
	root.PersistentFlags().BoolVar(&a.JSON, "json", false, "print the result as one JSON document")
	root.PersistentFlags().StringVar(&a.LogLevel, "log", "error", "what to log on standard error: debug, info, warn or error")
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) { units.Tell(cmd.Flags(), a.Err) }
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return Usage(cmd, err, cmd.CommandPath()+" --help shows its flags")
	})
	if p.NeedsSubcommand {
		root.Args, root.RunE = NoArgs, NeedsSubcommand
	}
	root.AddCommand(p.Commands(a)...)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.InitDefaultCompletionCmd()
	root.SetHelpCommand(helpCommand())
	for _, c := range root.Commands() {
		refuseUnknown(c)
	}
	p.group(root)
	return root
}

// group has the help show the commands by group, after examples.
func (p *Program) group(root *cobra.Command) {
	if len(p.Groups) == 0 {
		return
	}
	for _, g := range p.Groups {
		root.AddGroup(&cobra.Group{ID: g.Title, Title: g.Title + ":"})
		for _, name := range g.Commands {
			if c, _, err := root.Find([]string{name}); err == nil && c != root {
				c.GroupID = g.Title
			}
		}
	}
}

// refuseUnknown makes every command that only has commands of its own refuse to be called without one, or
// with one it does not have: cobra would show its help and call that a success.
func refuseUnknown(c *cobra.Command) {
	for _, s := range c.Commands() {
		refuseUnknown(s)
	}
	if c.HasSubCommands() && !c.Runnable() {
		c.Args, c.RunE = NoArgs, NeedsSubcommand
	}
}

// OnlyParent says whether a command only has commands of its own.
func OnlyParent(c *cobra.Command) bool {
	return !c.HasParent() || reflect.ValueOf(c.RunE).Pointer() == reflect.ValueOf(NeedsSubcommand).Pointer()
}

// helpCommand is cobra's, but that it refuses what there is no help on.
func helpCommand() *cobra.Command {
	return &cobra.Command{Use: "help [command]", Short: "help about a command", RunE: func(cmd *cobra.Command, args []string) error {
		c, rest, err := cmd.Root().Find(args)
		if err != nil || len(rest) > 0 {
			return Usage(cmd, fmt.Errorf("there is no help on %q", strings.Join(args, " ")), cmd.Root().Name()+" --help lists the commands")
		}
		return c.Help()
	}}
}

// NoArgs refuses arguments, and names an unknown subcommand as one.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return Usage(cmd, fmt.Errorf("unknown command or argument %q for %q", args[0], cmd.CommandPath()), cmd.CommandPath()+" --help lists what it takes")
}

// NeedsSubcommand is what a command does that only has commands of its own.
func NeedsSubcommand(cmd *cobra.Command, _ []string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if !c.Hidden && c.Name() != "help" {
			names = append(names, c.Name())
		}
	}
	return Usage(cmd, fmt.Errorf("%s needs one of: %s", cmd.CommandPath(), strings.Join(names, ", ")), cmd.CommandPath()+" --help")
}

// Logger writes to standard error at the level asked for.
func (a *App) Logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(a.LogLevel)); err != nil {
		return nil, skep.Invalidf(a.Name, "--log", a.LogLevel, "debug, info, warn or error")
	}
	return slog.New(slog.NewTextHandler(a.Err, &slog.HandlerOptions{Level: level})), nil
}

// Note prints a line of progress to standard error.
func (a *App) Note(format string, args ...any) {
	fmt.Fprintln(a.Err, PrintableLines(fmt.Sprintf(format, args...)))
}

// Print writes a result: JSON when asked for, else what text writes.
func (a *App) Print(result any, text func(io.Writer)) error {
	if !a.JSON {
		var b bytes.Buffer
		text(&b)
		_, err := io.WriteString(a.Out, PrintableLines(b.String()))
		return err
	}
	e := json.NewEncoder(a.Out)
	if !a.Lines {
		e.SetIndent("", "  ")
	}
	e.SetEscapeHTML(false)
	return e.Encode(result)
}
