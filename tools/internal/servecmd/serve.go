package servecmd

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/serve"
	"github.com/skepkv/skep/tools/internal/units"
	"github.com/skepkv/skep/wire/httpapi"
)

// Result is what skep serve --json prints once it serves.
type Result struct {
	Version   string             `json:"version"`   // of this build
	Listeners []httpapi.Listener `json:"listeners"` // where it listens
}

// New is the command serve.
func New(a *command.App) *cobra.Command {
	var s settings
	var show bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "a store on the network: binary protocol, RESP, HTTP and console",
		Long: `Serves the store in --dir until it is interrupted, then drains. Configured by flags, by the
environment (SKEP_ and a setting's path in capitals, such as SKEP_TLS_CERT) and by a YAML file,
the first winning over the last; skep config show shows every setting. Without credentials it
listens on loopback addresses and Unix sockets only.`,
		Args: command.NoArgs,
	}
	s.register(cmd)
	cmd.Flags().BoolVar(&show, "print-config", false, "print the settings as they would be used, each under what it means, and end")
	units.Replaced(cmd.Flags(), "print-config", "the command skep config show")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		load := s.loader(a, cmd)
		c, err := load()
		if show && c != nil {
			return errors.Join(c.Print(a.Out), asProblems(err))
		}
		if err != nil {
			return asProblems(err)
		}
		return run(a, cmd, c, load)
	}
	return cmd
}

func run(a *command.App, cmd *cobra.Command, c *serve.Config, load func() (*serve.Config, error)) error {
	again := make(chan os.Signal, 1)
	if len(reloadSignals) > 0 {
		signal.Notify(again, reloadSignals...)
		defer signal.Stop(again)
	}
	return asPassing(serve.Run(cmd.Context(), c, serve.Options{
		Version: command.BuildVersion(), Log: a.Err, Reload: load, Again: again,
		Ready: func(info httpapi.ServerInfo) {
			r := Result{Version: info.Version, Listeners: info.Listeners}
			if a.JSON {
				_ = a.Print(r, nil)
				return
			}
			for _, l := range r.Listeners {
				fmt.Fprintf(a.Out, "%-5s %s\n", l.Protocol, l.Address)
			}
		},
	}))
}

// asPassing marks what ended a server and may be over when it is started again: a store that another process has
// open, a device that is not there yet, an address in use. What is left is settings that are wrong, and
// whoever starts servers need not try those again.
func asPassing(err error) error {
	for _, kind := range []error{skep.Missing, skep.Conflict, syscall.EADDRINUSE, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, kind) {
			return command.Passing(err)
		}
	}
	return err
}

// problems is everything that is wrong with a configuration.
type problems struct{ error }

func (p problems) Unwrap() error { return p.error }

// asProblems marks an error as the user's: there may be several in it.
func asProblems(err error) error {
	if err == nil || skep.KindOf(err) != skep.Invalid {
		return err
	}
	return command.WithNext(problems{err}, "skep config show shows every setting, and docs/howto/secure.md examples")
}
