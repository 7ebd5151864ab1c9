package ttft

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/layout/twopointer"
	"github.com/skepkv/skep/layout/twopointer/sim"
	"github.com/skepkv/skep/store/unjudged"
	"github.com/skepkv/skep/tools/leaks"
)

// asServer does not return in a process that a test started to be its server.
var asServer = func() {}

func TestMain(m *testing.M) {
	unjudged.Drives()
	asServer()
	leaks.Main(m)
}

// conversation is a small workload: three sessions whose prompts grow.
func conversation() *Workload {
	w := &Workload{Name: "made up"}
	for turn := range 3 {
		for s := range 3 {
			n := 512 * (turn + 1 + s)
			p := Prompt{BlockTokens: 512, Request: sim.Request{At: float64(len(w.Requests)) * 0.02, Prefix: n, Suffix: 100}}
			for b := range n / 512 {
				p.Chain = append(p.Chain, uint64(s)<<20|uint64(b))
			}
			w.Requests = append(w.Requests, p)
		}
	}
	w.Requests[4].Prefix, w.Requests[4].Chain = 0, nil
	return w
}

// Every policy gets every request to its first token, on a real store.
func TestReal(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g, _ := twopointer.GPUNamed("h100")
	m, _ := twopointer.ModelNamed("qwen3-8b")
	w := conversation()
	b, err := newBed(ctx, t.TempDir(), m, 64, slog.New(slog.DiscardHandler), w)
	require.NoError(t, err)
	policies := twopointer.Policies()
	if testing.Short() {
		policies = []twopointer.Policy{twopointer.Recompute, twopointer.LoadOnly, twopointer.Skep}
	}
	var rows []*Row
	for k, p := range policies {
		row, err := Real(ctx, b, w, g, m, Point{Policy: p, Engine: twopointer.Engine(k % 2), Bandwidth: 40, Loop: k % 3 * 2, Load: "test", Seed: 1})
		require.NoError(t, err, p)
		require.Equal(t, len(w.Requests), row.Requests)
		require.Equal(t, len(w.Requests)-1, row.Hits)
		require.Positive(t, row.TTFT.Mean)
		require.GreaterOrEqual(t, row.TTFT.Mean, row.Restore.P50/10)
		switch p {
		case twopointer.Recompute:
			require.Zero(t, row.BytesLoaded)
		case twopointer.LoadOnly:
			require.Zero(t, row.TokensRecomputed)
		}
		rows = append(rows, row)
		t.Logf("%-15s ttft %.1f ms, restore %.1f ms, loaded %d, computed %d, bound %.1f ms", row.Policy, row.TTFT.Mean, row.Restore.Mean, row.BytesLoaded, row.TokensRecomputed, row.Bound)
	}
	attain(rows)
}
