package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/catalogdir"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/doctor"
	"github.com/skepkv/skep/tools/internal/inspect"
	"github.com/skepkv/skep/tools/internal/remote"
)

func (a *app) doctorCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{Use: "doctor", Short: "say what works on this machine, what does not, and what to do about it", Args: command.NoArgs}
	cmd.AddCommand(remote.KeysCommand(a.App))
	cmd.Flags().StringVar(&dir, "dir", "", "directory devices would be in (default: the system's temporary directory)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if dir == "" {
			dir = os.TempDir()
		}
		r, err := doctor.Examine(dir)
		if err != nil {
			return command.WithNext(err, "make the directory, or name the one the devices are to be in")
		}
		if c := drivesOf(cmd.Context(), dir); c.Status != "" {
			r.Checks = append(r.Checks, c)
			if c.Status == doctor.Fail {
				r.Status = c.Status
			}
		}
		if r.Status == doctor.Fail {
			a.Code = command.Faults
		}
		return a.Print(r, func(w io.Writer) {
			var rows [][]string
			for _, c := range r.Checks {
				rows = append(rows, command.Row(c.Status, c.Name, c.Detail))
				if c.Next != "" {
					rows = append(rows, command.Row("", "", "→ "+c.Next))
				}
			}
			command.Table(w, rows...)
			fmt.Fprintf(w, "\ndevices in %s are driven by: %s\n", r.Dir, command.Backend(r.Backend, r.BackendReason, r.Simulated))
		})
	}
	return cmd
}

// drivesOf says whether the drives of the store in dir are there, and are used by who has it open; nothing where there
// is no store, or its catalog cannot be read: skep verify says what is wrong with that.
func drivesOf(ctx context.Context, dir string) doctor.Check {
	at, _, err := catalogdir.Of(dir)
	if err != nil {
		return doctor.Check{}
	}
	if st, err := os.Stat(at); err != nil || !st.IsDir() {
		return doctor.Check{}
	}
	var bad []string
	n := 0
	var stats skep.Stats
	if store.AskAdmin(ctx, dir, "stats", &stats) == nil {
		for i := range stats.Devices {
			d := &stats.Devices[i]
			if state, _, _ := strings.Cut(d.State, ":"); state == "fenced" || state == "dead" {
				bad = append(bad, d.Path+" is "+state)
			}
		}
		n = len(stats.Devices)
	} else {
		v, err := inspect.Open(dir, slog.New(slog.DiscardHandler))
		if err != nil {
			return doctor.Check{}
		}
		defer v.Close()
		list, err := v.Devices(ctx)
		if err != nil {
			return doctor.Check{}
		}
		for i := range list.Devices {
			d := &list.Devices[i]
			if d.State == "removed" {
				continue
			}
			if n++; !d.Present {
				bad = append(bad, d.Path+" is missing")
			} else if d.Problem != "" {
				bad = append(bad, d.Path+" is there, but "+d.Problem)
			}
		}
	}
	c := doctor.Check{Name: "drives of the store", Status: doctor.OK, Detail: fmt.Sprintf("%d are there", n)}
	if len(bad) > 0 {
		c.Status, c.Detail = doctor.Fail, strings.Join(bad, ", ")
		c.Next = "bring them back, or skep device replace OLD NEW --dir D (docs/howto/replace-a-drive.md)"
	}
	return c
}
