package command

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/tools/internal/doctor"
)

// VersionResult is what version prints.
type VersionResult struct {
	Version       string `json:"version"`        // of the module
	Commit        string `json:"commit"`         // it was built from
	Modified      bool   `json:"modified"`       // with changes that are not committed
	Go            string `json:"go"`             // compiler
	OS            string `json:"os"`             // operating system that it was built for
	Arch          string `json:"arch"`           // architecture that it was built for
	IOUring       bool   `json:"iouring"`        // built with the tag iouring
	Backend       string `json:"backend"`        // what would move the bytes of a file in the temporary directory
	BackendReason string `json:"backend_reason"` // why not a better one
	Simulated     bool   `json:"simulated"`      // always false
}

// Version is the subcommand that every command has.
func (a *App) Version() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "print the version and what was built in", Args: NoArgs, RunE: func(*cobra.Command, []string) error {
		r := VersionResult{Version: "unknown", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, IOUring: doctor.BuiltWithIOUring}
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
		return a.Print(r, func(w io.Writer) {
			fmt.Fprintf(w, "%s %s %s, %s %s/%s, devices here: %s\n", a.Name, r.Version, r.Commit, r.Go, r.OS, r.Arch, Backend(r.Backend, r.BackendReason, r.Simulated))
		})
	}}
}

// BuildVersion is this build's version.
func BuildVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
