package lab

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/ttft"
)

func (a *app) benchTTFT() *cobra.Command {
	o := ttft.Options{}
	html := ""
	cmd := &cobra.Command{Use: "ttft", Short: "time to first token under each way of restoring prefixes, with an emulated engine", Args: command.NoArgs}
	f := cmd.Flags()
	f.StringVar(&o.Trace, "trace", "", "recorded prompts: Mooncake JSONL, kv-cache-tester, or Azure's CSV of arrivals; not for load single")
	f.StringVar(&o.Model, "model", "qwen3-8b", "whose KV and context: a preset")
	f.StringVar(&o.GPU, "gpu", "h100", "what the emulated engine runs on: a preset")
	f.Float64SliceVar(&o.Bandwidth, "bandwidth", []float64{10, 40, 80}, "of the devices, Gb/s")
	f.IntSliceVar(&o.Batch, "batch", []int{1, 4, 8}, "requests at once, of closed loops")
	f.Float64SliceVar(&o.Utilisation, "utilisation", []float64{0.5, 0.8}, "share of time that recomputing everything would keep the engine busy for, of open arrivals")
	f.StringSliceVar(&o.Policies, "policy", []string{"all"}, "recompute, load, per-request, cacheflow, shortest-first, no-layers, no-stages, no-batch, skep, or all")
	f.StringSliceVar(&o.Loads, "load", []string{"closed", "open"}, "closed, open (arrivals at the --utilisation of recompute-only), single")
	f.StringSliceVar(&o.Engines, "engine", []string{"round-robin"}, "how the engine computes: round-robin, first-come")
	f.IntVar(&o.Requests, "requests", 24, "requests of the trace")
	f.IntVar(&o.Skip, "skip", 2000, "requests before them, whose prefixes count as stored")
	f.IntVar(&o.Context, "context", 0, "longest prompt in tokens; 0: the model's")
	f.Float64Var(&o.Divide, "divide", 64, "bytes a token and bandwidth are divided by this")
	f.Uint64Var(&o.Seed, "seed", 1, "of arrivals and of the emulated engine")
	f.BoolVar(&o.Virtual, "virtual", false, "virtual time: no store, no bytes, the same grid in seconds")
	f.StringVar(&o.Dir, "dir", "", "directory for the store, removed afterwards (default: the system's temporary directory)")
	f.StringVar(&html, "html", "", "also write a report with CDFs and timelines to this file")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if o.Log, err = a.Logger(); err != nil {
			return err
		}
		o.Note = a.Note
		if html != "" {
			file, err := os.Create(html)
			if err != nil {
				return err
			}
			defer file.Close()
			o.HTML = file
		}
		rows, err := ttft.Run(cmd.Context(), o)
		if err != nil {
			return err
		}
		return a.Print(rows, func(w io.Writer) {
			out := [][]string{command.Row("load", "engine", "Gb/s", "batch", "policy", "TTFT ms", "p99", "restore ms", "bound ms", "attained", "io", "compute", "loaded", "computed")}
			for _, r := range rows {
				out = append(out, command.Row(r.Load, r.Engine, fmt.Sprintf("%g", r.Bandwidth), r.Batch, r.Policy, r.TTFT.Mean, r.TTFT.P99, r.Restore.Mean, r.Bound, r.Attained, r.IOUtil, r.ComputeUtil, command.Size(r.BytesLoaded), r.TokensRecomputed))
			}
			command.Table(w, out...)
			fmt.Fprintf(w, "\nthe engine is emulated; ")
			if o.Virtual {
				fmt.Fprintf(w, "time is virtual, no bytes were moved\n")
			} else {
				fmt.Fprintf(w, "devices are slowed down in process (simulated); bytes and bandwidth are divided by %g\n", rows[0].Factor)
			}
		})
	}
	return cmd
}

func (a *app) benchCrossover() *cobra.Command {
	var model, gpu string
	var gbps float64
	var chunk, longest int
	cmd := &cobra.Command{Use: "crossover", Short: "from which length on prefixes are restored faster by tokens than by layers", Args: command.NoArgs}
	f := cmd.Flags()
	f.StringVar(&model, "model", "qwen3-8b", "a preset")
	f.StringVar(&gpu, "gpu", "h100", "a preset")
	f.Float64Var(&gbps, "bandwidth", 40, "of the devices, Gb/s")
	f.IntVar(&chunk, "chunk", 512, "tokens of a chunk")
	f.IntVar(&longest, "longest", 16384, "longest prefix tried, in tokens")
	cmd.RunE = func(*cobra.Command, []string) error {
		r, err := ttft.MeasureCrossover(gpu, model, gbps, chunk, longest)
		if err != nil {
			return err
		}
		return a.Print(r, func(w io.Writer) {
			out := [][]string{command.Row("tokens", "chunks, by tokens, ms", "by layers, ms", "skep, by tokens, ms", "by layers, ms", "bound, ms")}
			for _, c := range r.Rows {
				out = append(out, command.Row(c.Tokens, c.TokenMs, c.LayerMs, c.SkepTokenMs, c.SkepLayerMs, c.BoundMs))
			}
			command.Table(w, out...)
			fmt.Fprintf(w, "\ncrossover by whole chunks  %d tokens; reckoned from the stated cost %d\n", r.Found, r.Reckoned)
			fmt.Fprintf(w, "crossover of skep          %d tokens; a store reckons %d, and goes by it either way\nthe engine is emulated, time is virtual\n", r.SkepFound, r.SkepReckoned)
		})
	}
	return cmd
}
