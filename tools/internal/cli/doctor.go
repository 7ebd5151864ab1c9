package cli

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/doctor"
	"github.com/skepkv/skep/tools/internal/remote"
)

func (a *app) doctorCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{Use: "doctor", Short: "say what works on this machine, what does not, and what to do about it", Args: command.NoArgs}
	cmd.AddCommand(remote.KeysCommand(a.App))
	cmd.Flags().StringVar(&dir, "dir", "", "directory devices would be in (default: the system's temporary directory)")
	cmd.RunE = func(*cobra.Command, []string) error {
		if dir == "" {
			dir = os.TempDir()
		}
		r, err := doctor.Examine(dir)
		if err != nil {
			return command.WithNext(err, "make the directory, or name the one the devices are to be in")
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
