package cli

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/tools/internal/doctor"
)

func (a *app) doctorCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{Use: "doctor", Short: "say what works on this machine, what does not, and what to do about it", Args: noArgs}
	cmd.Flags().StringVar(&dir, "dir", "", "directory devices would be in (default: the system's temporary directory)")
	cmd.RunE = func(*cobra.Command, []string) error {
		if dir == "" {
			dir = os.TempDir()
		}
		r, err := doctor.Examine(dir)
		if err != nil {
			return withNext(err, "make the directory, or name the one the devices are to be in")
		}
		if r.Status == doctor.Fail {
			a.code = exitFailed
		}
		return a.print(r, func(w io.Writer) {
			var rows [][]string
			for _, c := range r.Checks {
				rows = append(rows, row(c.Status, c.Name, c.Detail))
				if c.Next != "" {
					rows = append(rows, row("", "", "→ "+c.Next))
				}
			}
			table(w, rows...)
			fmt.Fprintf(w, "\ndevices in %s are driven by: %s\n", r.Dir, backend(r.Backend, r.BackendReason, r.Simulated))
		})
	}
	return cmd
}

// versionResult is skep version.
type versionResult struct {
	Version       string `json:"version"`
	Commit        string `json:"commit"`
	Modified      bool   `json:"modified"`
	Go            string `json:"go"`
	OS            string `json:"os"`
	Arch          string `json:"arch"`
	IOUring       bool   `json:"iouring"`
	Backend       string `json:"backend"`
	BackendReason string `json:"backend_reason"`
	Simulated     bool   `json:"simulated"`
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "print the version and what was built in", Args: noArgs, RunE: func(*cobra.Command, []string) error {
		r := versionResult{Version: "unknown", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, IOUring: doctor.BuiltWithIOUring}
		if info, ok := debug.ReadBuildInfo(); ok {
			r.Version = info.Main.Version
			for _, s := range info.Settings {
				switch s.Key {
				case "vcs.revision":
					r.Commit = s.Value
				case "vcs.modified":
					r.Modified = s.Value == "true"
				}
			}
		}
		r.Backend, r.BackendReason = doctor.Backend(os.TempDir())
		return a.print(r, func(w io.Writer) {
			fmt.Fprintf(w, "skep %s %s, %s %s/%s, devices here: %s\n", r.Version, r.Commit, r.Go, r.OS, r.Arch, backend(r.Backend, r.BackendReason, r.Simulated))
		})
	}}
}
