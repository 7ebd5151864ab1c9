package servecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/inspect"
	"github.com/skepkv/skep/tools/internal/serve"
	"github.com/skepkv/skep/tools/internal/units"
)

// settings are the flags that name a server's settings.
type settings struct {
	file   string
	values map[string]func() string
}

func (s *settings) register(cmd *cobra.Command) {
	s.values = map[string]func() string{}
	cmd.Flags().StringVar(&s.file, "config", "", "YAML file of settings; SKEP_CONFIG names one too")
	for _, f := range serve.Flags() {
		if f.List {
			v := cmd.Flags().StringSlice(f.Name, nil, f.Doc)
			s.values[f.Path] = func() string { return strings.Join(*v, ",") }
			continue
		}
		v := cmd.Flags().String(f.Name, f.Default, f.Doc)
		s.values[f.Path] = func() string { return *v }
		if f.Switch {
			cmd.Flags().Lookup(f.Name).NoOptDefVal = "true"
		}
	}
	units.Renamed(cmd.Flags(), "device", "devices")
	units.Replaced(cmd.Flags(), "devices", "--file-devices N, or --device PATH,")
}

// loader gives what reads the settings that flags, environment and file say, as often as it is called.
func (s *settings) loader(a *command.App, cmd *cobra.Command) func() (*serve.Config, error) {
	flags := map[string]string{}
	for _, f := range serve.Flags() {
		if cmd.Flags().Changed(f.Name) || f.Name == "device" && cmd.Flags().Changed("devices") {
			flags[f.Path] = s.values[f.Path]()
		}
	}
	if cmd.Flags().Changed("log") {
		flags["log.level"] = a.LogLevel
	}
	file := s.file
	if file == "" {
		file = os.Getenv("SKEP_CONFIG")
	}
	return func() (*serve.Config, error) { return serve.Load(file, os.Environ(), flags) }
}

// Checked is what skep config check --json prints.
type Checked struct {
	File string `json:"file"` // the file, which is in order
}

// Config is the command config: what a server would be told.
func Config(a *command.App) *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "settings of a server: shown with their meaning, and checked", RunE: command.NeedsSubcommand,
		Example: "  skep config show --dir /var/lib/skep --capacity 2TB > skep.yaml\n  skep config check skep.yaml"}
	var s settings
	show := &cobra.Command{
		Use: "show", Short: "print a file of all settings, as they would be used, each under what it means", Args: command.NoArgs,
		Long: `Prints what skep serve would use with the same flags, environment and file, as a YAML file that
skep serve --config takes. Problems are told after it. Files of tokens and keys that settings name are
read to check them; what they hold is not printed.`,
	}
	s.register(show)
	show.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := s.loader(a, cmd)()
		if c == nil {
			return asProblems(err)
		}
		return errors.Join(c.Print(a.Out), asProblems(err))
	}
	check := &cobra.Command{
		Use: "check FILE", Short: "say what is wrong with a file of settings; nothing is started",
		Long: `Reads FILE, under the environment, as skep serve --config FILE would, and names every problem at once.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return command.Usage(cmd, fmt.Errorf("%s needs one file, not %d", cmd.CommandPath(), len(args)), cmd.CommandPath()+" --help")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := serve.Load(args[0], os.Environ(), nil)
			if err != nil {
				return asProblems(err)
			}
			for _, d := range c.Doubts(0, time.Now()) {
				a.Note("warning: %s", d)
			}
			if has := otherDevices(cmd.Context(), c); len(has) > 0 {
				a.Note("warning: devices names others than the store in %s has: %s", c.Dir, command.NameDevices(has))
			}
			return a.Print(Checked{args[0]}, func(w io.Writer) { fmt.Fprintf(w, "%s is in order\n", args[0]) })
		},
	}
	cmd.AddCommand(show, check)
	return cmd
}

// otherDevices are the paths of the devices of the store that settings are of, where they name others. Where there is
// no store yet, or its catalog cannot be read, nothing is known.
func otherDevices(ctx context.Context, c *serve.Config) []string {
	if len(c.Devices) == 0 {
		return nil
	}
	v, err := inspect.Open(c.Dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil
	}
	defer v.Close()
	has, err := v.Others(ctx, c.Devices)
	if err != nil {
		return nil
	}
	return has
}
