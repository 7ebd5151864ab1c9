package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/remote"
	"github.com/skepkv/skep/tools/internal/top"
	"github.com/skepkv/skep/wire/auth"
)

// topResult is top --once.
type topResult struct {
	Seconds       float64     `json:"seconds"`        // between the two looks that the rates are of (s)
	Rates         top.Rates   `json:"rates"`          // what happened a second
	Stats         *skep.Stats `json:"stats"`          // everything the store counts, as skep.Stats in stats.go
	Backend       string      `json:"backend"`        // what moves the bytes
	BackendReason string      `json:"backend_reason"` // why not a better one
	Simulated     bool        `json:"simulated"`      // a device is a simulation
}

func (a *app) topCommand() *cobra.Command {
	var o top.Options
	var once bool
	target := &remote.Target{}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "a live view of a store that is open in another process",
		Long: `Shows a store at work: devices with bandwidth, depth, latency and health, hits by tier and misses
by reason, admission, what twice the drives or DRAM would gain, background work, tenants. With --server it asks
a running server, with a credential that reaches every tenant and has the right admin. With --dir the
process that has the store open must have opened it with its admin socket (skep serve and skep
replay do; in Go store.Options.Admin). q quits.`,
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.top(cmd.Context(), o, once, target) },
	}
	fl := cmd.Flags()
	fl.StringVar(&o.Dir, "dir", "", "directory of the store, or else a server")
	target.Register(fl)
	fl.DurationVar(&o.Interval, "interval", top.DefaultInterval, "time between frames")
	fl.BoolVar(&once, "once", false, "print one frame, of one interval, and end")
	return cmd
}

func (a *app) top(ctx context.Context, o top.Options, once bool, target *remote.Target) error {
	switch named := target.Named(); {
	case o.Dir == "" && !named:
		return skep.Invalidf("top", "--dir", "empty", "the directory of a store; or --server, a server that has one")
	case o.Dir != "" && target.Server != "":
		return skep.Invalidf("top", "--dir and --server", "both", "one of them")
	}
	if o.Interval < 10*time.Millisecond {
		return skep.Invalidf("top", "--interval", o.Interval, "at least 10ms")
	}
	if o.Dir == "" {
		target.Err = a.Err
		c, err := target.Dial(ctx, "skep top")
		if err != nil {
			return err
		}
		defer c.Close()
		o.Dir = target.String()
		o.Ask = func(ctx context.Context) (skep.Stats, error) {
			st, err := c.Stats(ctx)
			if _, rights := c.Identity(); err == nil && rights&auth.Operator == 0 { // a node's: it is not told all
				err = &skep.Error{Op: "top", Kind: skep.Denied, Field: "rights", Value: rights, Limit: auth.Operator}
			}
			return st, target.Explain(err)
		}
	}
	in, out := terminal(a.In), terminal(a.Stdout())
	if !once && !a.JSON && in != nil && out != nil {
		o.In, o.Out = in, out
		return withTopNext(top.Run(ctx, o))
	}
	before, now, err := top.Once(ctx, o)
	if err != nil {
		return withTopNext(err)
	}
	st := &now.Stats
	r := topResult{now.At.Sub(before.At).Seconds(), top.RatesOf(before, now), st, st.Backend, st.BackendReason, st.Simulated}
	return a.Print(r, func(w io.Writer) {
		for _, l := range top.Frame(before, now, o.Dir, top.MinWidth) {
			fmt.Fprintln(w, l)
		}
	})
}

func withTopNext(err error) error {
	if skep.KindOf(err) == skep.Missing {
		return command.WithNext(command.Passing(err), "no process has it open, or one without its admin socket: start skep serve --dir D, or open the store with its admin socket (store.Options.Admin); skep inspect shows one that is not open")
	}
	return err
}

// terminal is f when it is one.
func terminal(f any) *os.File {
	if f, ok := f.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}
