package cli

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/demo"
	"github.com/skepkv/skep/tools/internal/units"
)

func demoFlags(cmd *cobra.Command, o *demo.Options) {
	cmd.Args = command.NoArgs
	fl := cmd.Flags()
	fl.StringVar(&o.Dir, "dir", "", "where the store is made (default: the system's temporary directory)")
	fl.IntVar(&o.Requests, "requests", 1200, "requests of the workload")
	units.SizeVar(fl, &o.BlockBytes, "block-size", 64<<10, "payload of a block", "block-bytes")
	fl.IntVar(&o.Capacity, "capacity-blocks", 6000, "room on the devices, in blocks")
	fl.IntVar(&o.Devices, "file-devices", 4, "file devices")
	units.Renamed(fl, "file-devices", "devices")
	fl.Uint64Var(&o.Seed, "seed", 1, "of the workload")
	fl.StringVar(&o.Backend, "backend", device.Auto, "how devices are driven: auto, iouring or pool")
}

func (a *app) demoCommand() *cobra.Command {
	o := demo.Options{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "see it work in a minute: a workload, a kill, recovery, and a page of plots",
		Long: `Runs a chat workload on file devices in a temporary directory, kills the process in the
middle of a put, recovers, finishes the workload, and draws what happened. Needs no root, no
drives, no GPU and less than 90 s.`,
	}
	demoFlags(cmd, &o)
	cmd.Flags().StringVar(&o.Page, "page", "", "where the page is written (default: in the demo's directory)")
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "keep the store, to look at it with skep inspect")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if o.Log, err = a.Logger(); err != nil {
			return err
		}
		o.Note = a.Note
		r, err := demo.Run(cmd.Context(), o)
		if err != nil {
			return err
		}
		a.Code = demoCode(r, cmd.Context().Err() != nil)
		if r.Bad() {
			fmt.Fprintf(a.Err, "skep: demo: %d wrong bytes, %d broken promises: neither may ever happen, please report it\n", r.WrongBytes, r.BrokenPromises)
		}
		return a.Print(r, func(w io.Writer) { demoTable(w, r) })
	}
	return cmd
}

// demoCode is the exit code: an interrupt's before that of what was found until then, which is told.
func demoCode(r *demo.Result, interrupted bool) int {
	switch {
	case interrupted:
		return command.Interrupted
	case r.Bad():
		return command.Failed
	}
	return command.OK
}

func demoTable(w io.Writer, r *demo.Result) {
	command.Table(w,
		command.Row("requests", fmt.Sprintf("%d, killed with SIGKILL after %d", r.Requests, r.KilledAt)),
		command.Row("hit ratio", fmt.Sprintf("%.3f: %.3f before the kill, %.3f after", r.HitRatio, r.HitBefore, r.HitAfter)),
		command.Row("recovery", fmt.Sprintf("%.2f s, %d blocks; of the last requests' blocks %d of %d found", r.RecoverySeconds, r.BlocksRecovered, r.RecentFound, r.RecentBlocks)),
		command.Row("put", command.Size(r.BytesPut)),
		command.Row("restored", command.Size(r.BytesRestored)+", every byte compared"),
		command.Row("wrong bytes", r.WrongBytes),
		command.Row("broken promises", r.BrokenPromises),
		command.Row("lookup", fmt.Sprintf("p50 %.1f µs, p99 %.1f µs", r.LookupUs.P50, r.LookupUs.P99)),
		command.Row("restore", fmt.Sprintf("p50 %.2f ms, p99 %.2f ms", r.RestoreMs.P50, r.RestoreMs.P99)),
		command.Row("backend", command.Backend(r.Backend, r.BackendReason, r.Simulated)),
		command.Row("seconds", fmt.Sprintf("%.1f", r.Seconds)),
	)
	fmt.Fprintf(w, "\npage  %s\n\ntry next\n", r.Page)
	for _, n := range r.Next {
		fmt.Fprintf(w, "  %s\n", n)
	}
}

// demoWorker is the demo's first process, the one that is killed.
func (a *app) demoWorker() *cobra.Command {
	o := demo.Options{}
	var began int64
	cmd := &cobra.Command{Use: "demo-worker", Hidden: true}
	demoFlags(cmd, &o)
	cmd.Flags().Int64Var(&began, "began", 0, "when the demo began, in nanoseconds since 1970")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.Dir == "" {
			return command.Usage(cmd, errors.New("demo-worker is started by skep demo"), "skep demo")
		}
		return demo.Work(cmd.Context(), o, time.Unix(0, began), a.Out)
	}
	return cmd
}
