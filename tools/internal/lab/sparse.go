package lab

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/tools/internal/bench/sparsebench"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/units"
)

func (a *app) benchSparse() *cobra.Command {
	o := sparsebench.Options{}
	cmd := &cobra.Command{Use: "sparse", Short: "strategies of choosing, placing and reading single KV entries, on recorded attention",
		Long: `Replays recorded attention (see docs/notebook/sparse.md for the files) and compares strategies:
track A reads the same entries, those attention really activated, from each strategy's layout;
track B lets each strategy choose for itself and compares at equal attention mass and equal DRAM.
Profiles pm9a3 and 900p are models of drives: such rows are simulated. Profile native reads
from --native-device, or from files in --dir, and measures them first.`}
	a.common(cmd, &o.Common)
	f := cmd.Flags()
	f.StringSliceVar(&o.Traces, "trace", nil, "recorded attention, one file a document (required)")
	f.IntSliceVar(&o.Devices, "drives", []int{4, 8}, "numbers of devices; a row each")
	units.Renamed(f, "drives", "devices")
	f.StringSliceVar(&o.Profiles, "profile", []string{"pm9a3", "900p"}, "drives: pm9a3, 900p, native")
	f.StringSliceVar(&o.NativePaths, "native-device", nil, "blank devices or files for profile native, the first so many a row; they are overwritten")
	f.StringSliceVar(&o.Tracks, "track", []string{"A", "B"}, "A: placement and retrieval; B: choice too")
	f.StringSliceVar(&o.Strategies, "strategy", nil, "only these: "+strings.Join(sparsebench.Strategies(), ", "))
	units.SizeVar(f, &o.EntryBytes, "entry-size", 4096, "bytes of an entry; recorded ones are padded to it", "entry-bytes")
	f.Float64Var(&o.DRAM, "dram", 0.1, "DRAM, as a share of the context's bytes, index included")
	f.Float64SliceVar(&o.Mass, "mass", []float64{0.90, 0.95}, "attention mass, as a share of the oracle's, at which track B compares")
	f.IntVar(&o.Profiled, "profiled", -1, "steps of the profile to use; -1: all of the profile questions")
	f.IntSliceVar(&o.Generate, "generate", nil, "entries of contexts generated after each trace, to be used in place of it")
	f.IntSliceVar(&o.Layers, "layers", nil, "layers generated contexts have of the trace's; none: all")
	f.IntVar(&o.Questions, "questions", 0, "questions asked of a generated context; 0: as many as were recorded")
	f.IntVar(&o.Steps, "steps", 0, "steps of each; 0: as many as were recorded")
	f.Uint64Var(&o.Seed, "seed", 1, "of samples and starting points")
	f.BoolVar(&o.Figures, "figures", false, "the other figures in place of the tracks: profile length, appended entries, DRAM, prefetch, choice at 1M entries, clustering 128k entries; of generated contexts: what choosing costs, and entries to mass 0.90")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.begin(&o.Common); err != nil {
			return err
		}
		r, err := sparsebench.Run(cmd.Context(), o)
		if err != nil {
			return err
		}
		return a.Print(r, func(w io.Writer) { sparseTable(w, r) })
	}
	return cmd
}

func sparseTable(w io.Writer, r *sparsebench.Result) {
	if len(r.Rows) > 0 {
		rows := [][]string{command.Row("track", "document", "profile", "devices", "mass asked", "strategy", "I/O µs", "± µs", "select ms", "KiB", "reads", "balance", "mass", "bound µs", "share")}
		for _, r := range r.Rows {
			share := "-"
			if r.Track == "A" {
				share = fmt.Sprintf("%.2f", r.Share)
			}
			asked := "-"
			if r.Target > 0 {
				asked = fmt.Sprintf("%.2f", r.Target)
			}
			rows = append(rows, command.Row(r.Track, r.Document, r.Profile, r.Devices, asked, r.Strategy, fmt.Sprintf("%.1f", r.IOMs*1e3), fmt.Sprintf("%.1f", (r.IOMsHigh-r.IOMsLow)*500),
				fmt.Sprintf("%.2f", r.SelectMs), fmt.Sprintf("%.0f", r.Bytes/1024), fmt.Sprintf("%.0f", r.Reads), fmt.Sprintf("%.2f", r.Balance), fmt.Sprintf("%.3f", r.Mass), fmt.Sprintf("%.1f", r.BoundMs*1e3), share))
		}
		command.Table(w, rows...)
	}
	for _, q := range r.Ratios {
		var names []string
		for n := range q.Times {
			names = append(names, n)
		}
		slices.SortFunc(names, func(x, y string) int { return strings.Compare(x, y) })
		fmt.Fprintf(w, "\n%s, %s, %d devices, mass %.2f: I/O time ÷ skep's:", q.Document, q.Profile, q.Devices, q.Target)
		for _, n := range names {
			fmt.Fprintf(w, " %s %.2f", n, q.Times[n])
		}
	}
	if len(r.Figures) > 0 {
		rows := [][]string{command.Row("figure", "document", "setting", "value", "unit")}
		for _, f := range r.Figures {
			rows = append(rows, command.Row(f.Figure, f.Document, f.Setting, fmt.Sprintf("%.4g", f.Value), f.Unit))
		}
		command.Table(w, rows...)
	}
	fmt.Fprintf(w, "\n\ndrives   %s\nmethod   %s\n", map[bool]string{true: "simulated by model", false: "real"}[r.Simulated], r.Method)
}
