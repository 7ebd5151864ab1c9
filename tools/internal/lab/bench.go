package lab

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/tools/internal/bench"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/units"
)

// common adds the flags all benchmarks have.
func (a *app) common(cmd *cobra.Command, c *bench.Common) {
	cmd.Args = command.NoArgs
	cmd.Flags().StringVar(&c.Dir, "dir", "", "directory to work in, on the drives to be measured; what is made there is removed (default: the system's temporary directory)")
	cmd.Flags().IntVar(&c.Rounds, "rounds", bench.DefaultRounds, "rounds; the medians are reported")
	cmd.Flags().StringVar(&c.Backend, "backend", device.Auto, "how devices are driven: auto, iouring or pool")
}

// begin sets up logging and progress.
func (a *app) begin(c *bench.Common) (err error) {
	if c.Backend != device.Auto && c.Backend != device.IOUring && c.Backend != device.Pool {
		return skep.Invalidf("bench", "--backend", c.Backend, "auto, iouring or pool")
	}
	if c.Rounds < 1 {
		return skep.Invalidf("bench", "--rounds", c.Rounds, "1 or more")
	}
	c.Note = a.Note
	c.Log, err = a.Logger()
	return err
}

func chainFlags(cmd *cobra.Command, o *bench.ChainOptions) {
	cmd.Flags().IntSliceVar(&o.Devices, "file-devices", []int{4}, "file devices; several numbers give a row each")
	units.Renamed(cmd.Flags(), "file-devices", "devices")
	cmd.Flags().StringSliceVar(&o.Paths, "device", nil, "blank block devices to use in place of files, the first so many a row; blank again afterwards")
	units.SizeVar(cmd.Flags(), &o.ChainBytes, "chain-size", 4<<30, "payload of the chain; larger than every cache", "chain-bytes")
	units.SizeVar(cmd.Flags(), &o.BlockBytes, "block-size", 2<<20, "payload of a block", "block-bytes")
}

func (a *app) benchRestore() *cobra.Command {
	o := bench.ChainOptions{}
	cmd := &cobra.Command{Use: "restore", Short: "restore a long chain, whole and by layers, beside fio"}
	a.common(cmd, &o.Common)
	chainFlags(cmd, &o)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.begin(&o.Common); err != nil {
			return err
		}
		r, err := bench.Restore(cmd.Context(), o)
		if err != nil {
			return err
		}
		return a.Print(r, func(w io.Writer) {
			rows := [][]string{command.Row("devices", "order", "GB/s", "limit", "ratio", "CPU s/GB", "limit", "ratio", "I/O", "depth")}
			for _, r := range r.Rows {
				rows = append(rows, command.Row(r.Devices, r.Order, r.GBps, r.LimitGBps, r.Ratio, r.CPU, r.LimitCPU, r.CPURatio, command.Size(r.IOBytes), r.Depth))
			}
			command.Table(w, rows...)
			benchFoot(w, r.About, r.Limit, r.Method, r.Rounds)
		})
	}
	return cmd
}

func benchFoot(w io.Writer, about bench.About, limit, method string, rounds int) {
	fmt.Fprintf(w, "\nlimit    %s\nbackend  %s\nrounds   %d, medians\nmethod   %s\n", limit, command.Backend(about.Backend, about.BackendReason, about.Simulated), rounds, method)
}

func (a *app) benchPut() *cobra.Command {
	o := bench.ChainOptions{}
	cmd := &cobra.Command{Use: "put", Short: "put a long chain into a new store, beside fio"}
	a.common(cmd, &o.Common)
	chainFlags(cmd, &o)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.begin(&o.Common); err != nil {
			return err
		}
		r, err := bench.Put(cmd.Context(), o)
		if err != nil {
			return err
		}
		return a.Print(r, func(w io.Writer) {
			rows := [][]string{command.Row("devices", "GB/s", "limit", "ratio", "CPU s/GB", "limit", "ratio", "I/O", "depth")}
			for _, r := range r.Rows {
				rows = append(rows, command.Row(r.Devices, r.GBps, r.LimitGBps, r.Ratio, r.CPU, r.LimitCPU, r.CPURatio, command.Size(r.IOBytes), r.Depth))
			}
			command.Table(w, rows...)
			benchFoot(w, r.About, r.Limit, r.Method, r.Rounds)
		})
	}
	return cmd
}

func (a *app) benchDevice() *cobra.Command {
	o := bench.DeviceOptions{}
	cmd := &cobra.Command{Use: "device", Short: "random reads of one device through both backends, beside fio"}
	a.common(cmd, &o.Common)
	units.SizeVar(cmd.Flags(), &o.FileBytes, "file-size", 2<<30, "size of the file", "file-bytes")
	cmd.Flags().Int64SliceVar(&o.Sizes, "io-bytes", []int64{4 << 10, 64 << 10}, "sizes of a read")
	cmd.Flags().IntVar(&o.Depth, "depth", 64, "reads under way")
	cmd.Flags().Float64Var(&o.Seconds, "seconds", 1, "length of a run")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.begin(&o.Common); err != nil {
			return err
		}
		r, err := bench.Device(cmd.Context(), o)
		if err != nil {
			return err
		}
		return a.Print(r, func(w io.Writer) {
			rows := [][]string{command.Row("backend", "read", "IOPS", "limit", "ratio", "GB/s", "limit", "CPU µs/op", "limit")}
			for _, r := range r.Rows {
				rows = append(rows, command.Row(r.Backend, command.Size(r.IOBytes), fmt.Sprintf("%.0f", r.IOPS), fmt.Sprintf("%.0f", r.LimitIOPS), r.Ratio, r.GBps, r.LimitGBps, r.CPUUs, r.LimitCPUUs))
			}
			command.Table(w, rows...)
			benchFoot(w, r.About, r.Limit, r.Method, r.Rounds)
		})
	}
	return cmd
}

func lookupFlags(cmd *cobra.Command, o *bench.LookupOptions) {
	cmd.Flags().IntVar(&o.Blocks, "blocks", 10_000_000, "blocks in the index")
	cmd.Flags().IntVar(&o.Keys, "keys", 2000, "keys of a lookup")
	cmd.Flags().IntVar(&o.Lookups, "lookups", 1000, "lookups a round")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "of the chains and of what is asked")
}

func (a *app) benchLookup() *cobra.Command {
	o := bench.LookupOptions{}
	cmd := &cobra.Command{Use: "lookup", Short: "longest-prefix lookups among many blocks, with puts and cleaning meanwhile"}
	a.common(cmd, &o.Common)
	lookupFlags(cmd, &o)
	cmd.Flags().IntVar(&o.StoreBlocks, "store-blocks", 200_000, "real blocks of 4 KiB for the row through the store; 0: leave it out")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.begin(&o.Common); err != nil {
			return err
		}
		r, err := bench.Lookup(cmd.Context(), o)
		if err != nil {
			return err
		}
		return a.Print(r, func(w io.Writer) {
			rows := [][]string{command.Row("what", "blocks", "keys", "µs p50", "µs p99", "bytes/block", "found", "changed meanwhile", "wrong")}
			for _, r := range r.Rows {
				rows = append(rows, command.Row(r.What, r.BlocksStored, r.Keys, r.UsP50, r.UsP99, r.BytesPerBlock, fmt.Sprintf("%.0f", r.FoundMean), r.Changed, r.Wrong))
			}
			command.Table(w, rows...)
			benchFoot(w, r.About, r.Limit, r.Method, r.Rounds)
		})
	}
	return cmd
}

// benchLookupIndex is bench lookup's row of the index alone, for a process of its own.
func (a *app) benchLookupIndex() *cobra.Command {
	o := bench.LookupOptions{}
	cmd := &cobra.Command{Use: "lookup-index", Hidden: true}
	a.common(cmd, &o.Common)
	lookupFlags(cmd, &o)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r, err := bench.LookupIndex(cmd.Context(), o)
		if err != nil {
			return err
		}
		return a.Print(r, func(w io.Writer) { fmt.Fprintf(w, "%+v\n", *r) })
	}
	return cmd
}

func recoverFlags(cmd *cobra.Command, o *bench.RecoverOptions) {
	units.SizeVar(cmd.Flags(), &o.BlockBytes, "block-size", 4096, "payload of a block", "block-bytes")
	cmd.Flags().IntVar(&o.ChainLen, "chain-blocks", 100, "blocks of a chain")
	cmd.Flags().IntVar(&o.Devices, "file-devices", 4, "file devices")
	units.Renamed(cmd.Flags(), "file-devices", "devices")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "of the chains and of what is asked")
}

func (a *app) benchRecover() *cobra.Command {
	o := bench.RecoverOptions{}
	cmd := &cobra.Command{Use: "recover", Short: "open after kill -9 in mid-put, to the first right answer"}
	a.common(cmd, &o.Common)
	recoverFlags(cmd, &o)
	cmd.Flags().IntVar(&o.Blocks, "blocks", 1_000_000, "blocks to put before the kill")
	cmd.Flags().IntVar(&o.Check, "check", 10_000, "chains looked up afterwards; every tenth is restored and compared")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.begin(&o.Common); err != nil {
			return err
		}
		r, err := bench.Recover(cmd.Context(), o)
		if err != nil {
			return err
		}
		if r.Wrong > 0 {
			a.Code = command.Failed
		}
		return a.Print(r, func(w io.Writer) {
			caches := "dropped"
			if !r.CachesDropped {
				caches = r.CachesReason
			}
			command.Table(w,
				command.Row("blocks", fmt.Sprintf("%d of %d bytes on %d devices, put in %.1f s", r.Blocks, r.BlockBytes, r.Devices, r.WriteSeconds)),
				command.Row("page cache", caches),
				command.Row("open", fmt.Sprintf("%.3f s", r.OpenSeconds)),
				command.Row("first right lookup", fmt.Sprintf("%.3f s", r.FirstLookup)),
				command.Row("chains checked", fmt.Sprintf("%d, %d whole, %d acknowledged blocks not found", r.ChainsChecked, r.ChainsWhole, r.Lost)),
				command.Row("all of them", fmt.Sprintf("after %.3f s", r.AllLookups)),
				command.Row("restored", fmt.Sprintf("%d chains, %s compared, %d bytes wrong", r.Restored, command.Size(r.BytesCompared), r.Wrong)),
				command.Row("backend", command.Backend(r.Backend, r.BackendReason, r.Simulated)),
			)
		})
	}
	return cmd
}

// benchRecoverWriter puts blocks until it is killed.
func (a *app) benchRecoverWriter() *cobra.Command {
	o := bench.RecoverOptions{}
	cmd := &cobra.Command{Use: "recover-writer", Hidden: true}
	a.common(cmd, &o.Common)
	recoverFlags(cmd, &o)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return bench.RecoverWriter(cmd.Context(), o, a.Out) }
	return cmd
}
