package lab

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/tools/internal/bench/routebench"
	"github.com/skepkv/skep/tools/internal/command"
)

func (a *app) benchRoute() *cobra.Command {
	o := routebench.Options{}
	cmd := &cobra.Command{Use: "route FILE", Args: cobra.ExactArgs(1),
		Short: "ways to send requests to engines, on a recorded workload; simulated",
		Long: `Sends the requests of a recorded workload (as skep replay reads it) to a model of several engines, once
for each policy: affinity (one engine for each first block), round-robin, least-loaded, and two-choices, which is what
POST /api/v1/route answers. An engine computes at --rate what its own cache of --blocks does not have.`}
	f := cmd.Flags()
	f.IntVar(&o.Engines, "engines", 8, "engines")
	f.Float64Var(&o.Rate, "rate", 20000, "tokens a second that each computes of a prompt")
	f.IntVar(&o.Blocks, "blocks", 16384, "blocks that each one's cache holds")
	f.IntVar(&o.Sessions, "sessions", 64, "sessions under way at once, of a workload that has sessions")
	f.Float64Var(&o.Speed, "speed", 1, "of the workload's own times")
	f.DurationVar(&o.Goal, "goal", 2*time.Second, "to the first token")
	f.IntVar(&o.Limit, "limit", 0, "stop after so many requests; 0: all")
	f.Uint64Var(&o.Seed, "seed", 1, "of the order of sessions")
	f.StringSliceVar(&o.Policies, "policy", nil, "only these: "+strings.Join(routebench.Policies(), ", "))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.Trace, o.Note = args[0], a.Note
		r, err := routebench.Run(cmd.Context(), o)
		if err != nil {
			return err
		}
		return a.Print(r, func(w io.Writer) { routeTable(w, r) })
	}
	return cmd
}

func routeTable(w io.Writer, r *routebench.Result) {
	fmt.Fprintf(w, "%d requests, %d engines; %s\n", r.Requests, r.Engines, r.Method)
	rows := [][]string{command.Row("policy", "hit ratio", "busiest ÷ mean", "first token mean ms", "p50", "p99",
		"after the goal", "decision µs")}
	for _, x := range r.Rows {
		rows = append(rows, command.Row(x.Policy, fmt.Sprintf("%.4f", x.HitRatio), fmt.Sprintf("%.2f", x.Balance),
			fmt.Sprintf("%.0f", x.TTFTMeanMs), fmt.Sprintf("%.0f", x.TTFTP50Ms), fmt.Sprintf("%.0f", x.TTFTP99Ms),
			fmt.Sprintf("%.1f %%", 100*x.Late), fmt.Sprintf("%.1f", x.DecideUs)))
	}
	command.Table(w, rows...)
}
