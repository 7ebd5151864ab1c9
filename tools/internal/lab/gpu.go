package lab

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/tools/internal/bench"
	"github.com/skepkv/skep/tools/internal/command"
)

func (a *app) benchElastic() *cobra.Command {
	o := bench.ElasticOptions{}
	cmd := &cobra.Command{
		Use:   "elastic",
		Short: "move the border between lent and own GPU memory, block-major and layer-major",
	}
	a.common(cmd, &o.Common)
	cmd.Flags().IntSliceVar(&o.Blocks, "blocks", []int{10, 100, 1000, 10_000, 100_000, 1_000_000}, "blocks of the arena; several numbers give rows each")
	cmd.Flags().Float64Var(&o.Occupancy, "occupancy", 0.9, "share of the blocks in use, at random")
	cmd.Flags().IntVar(&o.Layers, "layers", 32, "layers of the layer-major pool")
	cmd.Flags().IntVar(&o.SlotBytes, "slot-bytes", 16, "bytes of one layer of a block in the layer-major pool")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "of the random occupancy")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.begin(&o.Common); err != nil {
			return err
		}
		rows, err := bench.Elastic(cmd.Context(), o)
		if err != nil {
			return err
		}
		return a.Print(rows, func(w io.Writer) {
			lines := [][]string{command.Row("layout", "blocks", "occupancy", "ns/move", "relocated", "stranded")}
			for _, r := range rows {
				lines = append(lines, command.Row(r.Layout, r.Blocks, r.Occupancy, fmt.Sprintf("%.0f", r.NsPerMove), r.Relocated, r.Stranded))
			}
			command.Table(w, lines...)
		})
	}
	return cmd
}

func (a *app) benchStream() *cobra.Command {
	o := bench.StreamOptions{}
	cmd := &cobra.Command{
		Use:   "stream",
		Short: "reckon what KV streamed layer by layer from lent GPU memory gains and costs",
		Long: `Nothing is measured: transfer time that computing does not hide, the longest prompt, and the time to
first token of a server under load, from data sheets and the schedule the GPU tier runs. All
assumptions are printed.`,
		Args: command.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&o.Model, "model", "qwen3-32b", "the borrower")
	f.StringVar(&o.GPU, "gpu", "h20", "its GPU")
	f.IntSliceVar(&o.History, "history", []int{5000, 10_000, 20_000, 40_000, 64_000}, "tokens loaded")
	f.IntSliceVar(&o.Suffix, "suffix", []int{32, 128, 512, 2048}, "tokens computed")
	f.IntVar(&o.Buffers, "buffers", 1, "layers in local memory at a time")
	f.Float64Var(&o.LinkGBps, "link-gbps", 200, "link to lenders, GB/s each way")
	f.Float64Var(&o.HostGBps, "host-gbps", 32, "link to host memory, GB/s each way")
	f.Float64Var(&o.MemoryGB, "memory-gb", 96, "memory of a GPU")
	f.Float64Var(&o.LentGB, "lent-gb", 100, "what the other GPUs lend together")
	f.Float64Var(&o.HostGB, "host-gb", 96, "host cache")
	f.IntVar(&o.Sessions, "sessions", 12, "sessions of the simulated server")
	f.IntVar(&o.Requests, "requests", 5000, "requests of the simulated server")
	f.Float64SliceVar(&o.Load, "load", []float64{0.5, 0.8}, "utilisation of the server with the host cache")
	f.Uint64Var(&o.Seed, "seed", 1, "of sessions and arrivals")
	cmd.RunE = func(*cobra.Command, []string) error {
		r, err := bench.Stream(o)
		if err != nil {
			return err
		}
		return a.Print(r, func(w io.Writer) { printStream(w, r) })
	}
	return cmd
}

func printStream(w io.Writer, r *bench.StreamResult) {
	fmt.Fprintf(w, "SIMULATED: %s on %s\n", r.Model, r.GPU)
	for _, s := range r.Assumptions {
		fmt.Fprintln(w, "  -", s)
	}
	lines := [][]string{command.Row("history", "suffix", "compute ms", "load ms", "exposed ms", "share", "first layer resident ms", "share", "a buffer more ms", "following ms", "from host ms", "covered")}
	for _, x := range r.Exposed {
		lines = append(lines, command.Row(x.History, x.Suffix, x.ComputeMs, x.LoadMs, x.ExposedMs, fmt.Sprintf("%.3f %%", x.ExposedShare*100), x.ResidentMs, fmt.Sprintf("%.3f %%", x.ResidentShare*100), x.BuffersMs, x.FollowingMs, x.HostExposedMs, x.Covered))
	}
	fmt.Fprintln(w, "\nTransfer time that computing does not hide")
	command.Table(w, lines...)
	lines = [][]string{command.Row("model", "GPU", "GB", "lent GB", "tokens, all local", "streamed", "ratio", "a layer more", "for local blocks", "ms/output token, local", "streamed")}
	for _, x := range r.Longest {
		lines = append(lines, command.Row(x.Model, x.GPU, x.MemoryGB, fmt.Sprintf("%.0f", x.LentGB), x.Conventional, x.Streamed, x.Ratio, x.Room2, x.LocalBlocks, x.LocalMs, x.LentMs))
	}
	fmt.Fprintln(w, "\nLongest prompt, and what decoding at that length costs")
	command.Table(w, lines...)
	lines = [][]string{command.Row("load", "arrivals/s", "host p50 ms", "host p99", "lent p50", "lent p99", "p99 less by", "recomputed, host", "lent")}
	for _, x := range r.TTFT {
		lines = append(lines, command.Row(x.Load, x.PerSecond, x.HostP50, x.HostP99, x.LentP50, x.LentP99, fmt.Sprintf("%.1f %%", x.Reduction*100), x.HostMissed, x.LentMissed))
	}
	fmt.Fprintln(w, "\nTime to first token")
	command.Table(w, lines...)
	lines = [][]string{command.Row("load", "policy", "requests", "GB lent", "waited", "wait p99 s", "evicted", "moves up", "down", "stranded")}
	for _, x := range r.Policies {
		lines = append(lines, command.Row(x.Load, x.Policy, x.Requests, fmt.Sprintf("%.1f", x.LentGB), fmt.Sprintf("%.2f %%", x.Waited*100), fmt.Sprintf("%.1f", x.WaitP99), x.Evicted, x.Up, x.Down, x.Stranded))
	}
	fmt.Fprintln(w, "\nA lender's border in an hour, by policy")
	command.Table(w, lines...)
}
